"""``data.normalise`` scales samples when they are read; they stay as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedquilt_common.datasets.normalise import normalise_samples
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.data_section import Normalise
from fedquilt_common.stored_samples import StoredSamples, as_samples, as_stored, join_samples

BYTES = np.random.default_rng(0).integers(0, 256, (40, 2, 3), dtype=np.uint8)
PLAIN = np.divide(BYTES, np.float32(255), dtype=np.float32)
HALF = Normalise.model_validate({"mean": 0.5, "std": 0.5})


def test_none_keeps_the_samples() -> None:
    assert normalise_samples(PLAIN, None) is PLAIN


@pytest.mark.parametrize("samples", [as_samples(BYTES, 255.0), PLAIN], ids=["bytes", "floats"])
def test_samples_are_scaled_as_in_float32_and_stay_as_stored(samples: Any) -> None:
    expected = (PLAIN - np.float32(0.5)) / np.float32(0.5)
    scaled: Any = normalise_samples(samples, HALF)
    chosen = scaled.select(np.arange(5, 25))
    joined = join_samples([chosen, scaled.select(np.arange(3))])
    for found, right in ((scaled, expected), (chosen, expected[5:25]), (scaled[7], expected[7])):
        assert np.asarray(found).tobytes() == right.tobytes()
    assert np.asarray(joined).tobytes() == np.concatenate([expected[5:25], expected[:3]]).tobytes()
    assert scaled.dtype == np.float32
    assert [as_stored(part).rows.dtype for part in (scaled, joined)] == [as_stored(samples).rows.dtype] * 2


def test_each_channel_can_have_its_numbers() -> None:
    normalise = Normalise.model_validate({"mean": [0.25, 0.5], "std": [0.5, 2]})
    found = normalise_samples(PLAIN, normalise)
    np.testing.assert_array_equal(found[:, 0], (PLAIN[:, 0] - np.float32(0.25)) / np.float32(0.5))
    np.testing.assert_array_equal(found[:, 1], (PLAIN[:, 1] - np.float32(0.5)) / np.float32(2))


def test_parts_of_other_scales_are_joined_as_they_are_read() -> None:
    joined = join_samples([normalise_samples(PLAIN, HALF), PLAIN])
    assert not isinstance(joined, StoredSamples)
    np.testing.assert_array_equal(joined[40:], PLAIN)


@pytest.mark.parametrize(
    ("samples", "mean", "words"),
    [
        (PLAIN, [0.1, 0.2, 0.3], r"data\.normalise\.mean: has 3 numbers, but the samples have 2 channels; give one"),
        (BYTES.astype(np.int64), [0.5], r"data\.normalise: the inputs are int64, such as words or categories"),
    ],
)
def test_what_does_not_suit_the_samples_is_refused(samples: Any, mean: list[float], words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        normalise_samples(samples, Normalise.model_validate({"mean": mean, "std": 1}))
