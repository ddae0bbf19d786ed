"""Checks that models of images share."""

from __future__ import annotations

from fedquilt_common.errors import ExperimentError


def check_image(name: str, input_shape: tuple[int, ...], smallest: int, instead: str) -> tuple[int, int, int]:
    """(channels, height, width). Raises ExperimentError unless it is an image of at least ``smallest`` a side."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise ExperimentError(
            f"model.name = {name}: samples of shape {tuple(input_shape)} are no images (channels, height, width) of at "
            f"least {smallest} x {smallest}; choose another model, such as {instead}"
        )
    channels, height, width = input_shape
    return channels, height, width


def check_size(name: str, size: object) -> None:
    """Raises ExperimentError unless the parameter ``name`` is a positive whole number."""
    if type(size) is not int or size < 1:
        raise ExperimentError(f"model.{name} = {size!r}: must be a positive whole number")


def check_sizes(name: str, sizes: object) -> None:
    """Raises ExperimentError unless the parameter ``name`` is a list of positive whole numbers."""
    if not isinstance(sizes, list | tuple) or not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise ExperimentError(f"model.{name} = {sizes!r}: must be a list of positive whole numbers, one for each stage")


def scaled(size: int, width: float) -> int:
    """``size`` channels at a width, at least one. Raises ExperimentError unless the width is positive."""
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width <= 64:
        raise ExperimentError(f"model.width = {width!r}: must be a positive number, such as 0.5 or 1")
    return max(1, int(size * width))
