"""Log-mel spectrograms against the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support.packages import needs

from fedquilt_common.datasets.log_mel import from_mel, log_mel, mel, mel_filters

needs("scipy", "SciPy is not installed: use make test")


def test_the_mel_scale_of_htk() -> None:
    assert mel(1000) == pytest.approx(999.9856)
    assert from_mel(mel(440.0)) == pytest.approx(440.0)


def test_filters_are_triangles_that_add_up_to_one() -> None:
    filters = mel_filters(24_000, 2048, 128)
    assert filters.shape == (1025, 128)
    inside = np.linspace(0, 12_000, 1025)
    between = (inside >= from_mel(mel(12_000) / 129)) & (inside <= from_mel(mel(12_000) * 128 / 129))
    assert filters[between].sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert filters.min() == 0


def test_a_tone_is_in_its_band() -> None:
    tone = np.sin(2 * np.pi * 3000 * np.arange(24_000) / 24_000).astype(np.float32)
    spectrogram = log_mel(tone, mel_filters(24_000, 2048, 128), 240, 120)
    assert spectrogram.shape == (201, 128)
    assert spectrogram.dtype == np.float32
    assert spectrogram[100].argmax() == round(mel(3000) / mel(12_000) * 129) - 1


def test_a_constant_is_the_sum_of_the_window() -> None:
    flat = np.zeros((1025, 1), dtype=np.float32)
    flat[0] = 1  # the magnitude at 0 Hz
    assert log_mel(np.ones(1200, dtype=np.float32), flat, 240, 120)[5, 0] == pytest.approx(math.log(120 + 1e-6))


@pytest.mark.parametrize(("samples", "times"), [(1, 1), (119, 1), (120, 2), (47_976, 400)])
def test_numbers_of_times(samples: int, times: int) -> None:
    sound = np.zeros(samples, dtype=np.float32)
    assert log_mel(sound, mel_filters(24_000, 2048, 128), 240, 120) == pytest.approx(math.log(1e-6), rel=1e-6)
    assert len(log_mel(sound, mel_filters(24_000, 2048, 128), 240, 120)) == times
