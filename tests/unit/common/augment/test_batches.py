"""Random crops and flips of a batch: torchvision's recipe for CIFAR-10."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from fedquilt_common.augment.batches import augment_batch, crop_padded
from fedquilt_common.experiment.sections import BatchAugment

BLACK = np.array([-1.0, -2.0], np.float32)[:, None, None]


def images(count: int, height: int = 6, width: int = 5) -> NDArray[np.float32]:
    return np.random.default_rng(0).random((count, 2, height, width), dtype=np.float32)


def expected_crop(image: NDArray[np.float32], padding: int, down: int, right: int) -> NDArray[np.float32]:
    """Pad and cut one image, pixel by pixel."""
    height, width = image.shape[1:]
    padded = np.broadcast_to(BLACK, (2, height + 2 * padding, width + 2 * padding)).copy()
    padded[:, padding : padding + height, padding : padding + width] = image
    return padded[:, down : down + height, right : right + width]


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
    made = augment_batch(x, BatchAugment(crop=1, flip=True), BLACK, seed=3)
    windows = [expected_crop(x[0], 1, down, right) for down in range(3) for right in range(3)]
    allowed = {window.tobytes() for window in windows} | {window[..., ::-1].tobytes() for window in windows}
    drawn = [image.tobytes() for image in made]
    assert set(drawn) == allowed
    counts = [drawn.count(window) for window in allowed]
    assert min(counts) > 60  # 111 are expected of each of the 18


def test_the_seed_decides_and_the_samples_stay() -> None:
    x, augment = images(40), BatchAugment(crop=2, flip=True)
    before = x.copy()
    first, again, other = (augment_batch(x, augment, BLACK, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(x, before)


@pytest.mark.parametrize("augment", [BatchAugment(crop=2), BatchAugment(flip=True)])
def test_an_empty_batch_and_a_single_image(augment: BatchAugment) -> None:
    assert augment_batch(images(0), augment, BLACK, 0).shape == (0, 2, 6, 5)
    assert augment_batch(images(1), augment, BLACK, 0).shape == (1, 2, 6, 5)


def test_an_augmentation_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing would change; set crop, such as 4, or flip: true"):
        BatchAugment()
