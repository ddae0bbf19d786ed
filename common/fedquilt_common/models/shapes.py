"""Checks of samples and parameters that several models share."""

from __future__ import annotations

from fedquilt_common.errors import ExperimentError


def check_image(name: str, input_shape: tuple[int, ...], smallest: int, instead: str) -> tuple[int, int, int]:
    """Check the shape of a sample and return (channels, height, width).

    Args:
        name: of the model, for errors.
        input_shape: shape of one sample.
        smallest: least height and width.
        instead: a model to suggest for other samples.

    Raises:
        ExperimentError: the sample is no image of at least ``smallest`` x ``smallest``.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise ExperimentError(
            f"model.name = {name}: samples of shape {tuple(input_shape)} are no images (channels, height, width) of at "
            f"least {smallest} x {smallest}; choose another model, such as {instead}"
        )
    channels, height, width = input_shape
    return channels, height, width


def check_size(name: str, size: object) -> None:
    """Check a model's parameter.

    Raises:
        ExperimentError: it is not a positive whole number.
    """
    if type(size) is not int or size < 1:
        raise ExperimentError(f"model.{name} = {size!r}: must be a positive whole number")


def check_sizes(name: str, sizes: object) -> None:
    """Check a model's parameter that has a number for each stage.

    Raises:
        ExperimentError: it is not a list of positive whole numbers, or it is empty.
    """
    if not isinstance(sizes, list | tuple) or not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise ExperimentError(f"model.{name} = {sizes!r}: must be a list of positive whole numbers, one for each stage")


def scale_channels(size: int, width: float) -> int:
    """Multiply a number of channels by the parameter ``width``; at least one remains.

    Raises:
        ExperimentError: the width is not a number above 0 and at most 64.
    """
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width <= 64:
        raise ExperimentError(f"model.width = {width!r}: must be a positive number of at most 64, such as 0.5 or 1")
    return max(1, int(size * width))
