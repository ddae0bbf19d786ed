"""Random crops and flips of a batch: torchvision's recipe for CIFAR-10."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.augment.batches import augment_batch, crop_padded
from fedquilt_common.experiment.training_section import BatchAugment

BLACK = np.array([-1.0, -2.0], np.float32)[:, None, None]


def images(count: int, height: int = 6, width: int = 5) -> NDArray[Any]:
    made: NDArray[Any] = np.random.default_rng(0).random((count, 2, height, width), dtype=np.float32)
    return made


def expected_crop(image: NDArray[Any], padding: int, down: int, right: int) -> NDArray[Any]:
    """Pad and cut one image, pixel by pixel."""
    height, width = image.shape[1:]
    padded = np.broadcast_to(BLACK, (2, height + 2 * padding, width + 2 * padding)).copy()
    padded[:, padding : padding + height, padding : padding + width] = image
    cut: NDArray[Any] = padded[:, down : down + height, right : right + width]
    return cut


def test_a_crop_shows_a_window_of_the_padded_image() -> None:
    x = images(25)
    down, right = np.divmod(np.arange(25), 5)
    cropped = crop_padded(x, 2, down, right, BLACK)
    for image, result, rows, columns in zip(x, cropped, down, right, strict=True):
        assert np.array_equal(result, expected_crop(image, 2, int(rows), int(columns)))
    assert np.array_equal(cropped[12], x[12])  # the middle of the padded image is the image
    assert cropped.dtype == x.dtype


def test_each_shift_and_each_side_comes_up_and_no_other() -> None:
    x = np.repeat(images(1, 8, 8), 2000, axis=0)
    made = augment_batch(x, 1, True, BLACK, seed=3)
    windows = [expected_crop(x[0], 1, down, right) for down in range(3) for right in range(3)]
    allowed = {window.tobytes() for window in windows} | {window[..., ::-1].tobytes() for window in windows}
    drawn = [image.tobytes() for image in made]
    assert set(drawn) == allowed
    counts = [drawn.count(window) for window in allowed]
    assert min(counts) > 60  # 111 are expected of each of the 18


def test_the_seed_decides_and_the_samples_stay() -> None:
    x = images(40)
    before = x.copy()
    first, again, other = (augment_batch(x, 2, True, BLACK, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(x, before)


@pytest.mark.parametrize(("padding", "flip"), [(2, False), (0, True)])
def test_an_empty_batch_and_a_single_image(padding: int, flip: bool) -> None:
    for count in (0, 1):
        assert augment_batch(images(count), padding, flip, BLACK, 0).shape == (count, 2, 6, 5)


def test_an_augmentation_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing would change; set crop, such as 4, or flip: true"):
        BatchAugment()
