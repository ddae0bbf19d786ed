"""The levels of an algorithm that boards with little memory choose from, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedquilt_common.algorithm_api.hooks import call_hook
from fedquilt_common.errors import ExperimentError, SliceError

if TYPE_CHECKING:
    from fedquilt_common.algorithm_api.algorithm import ClientContext, ServerTools
    from fedquilt_common.submodels.slices import Anatomy, Slice


def find_level(algorithm: object, name: str, ctx: ServerTools | ClientContext) -> Slice:
    """Return the sub-model of a level's name, as a line of the fleet gives it (``fleet.N.fits``).

    Args:
        algorithm: its method ``find_level`` returns the sub-model of a name. Algorithms whose boards choose no
            sub-model do not have that method.
        name: of the level, such as ``M1``.
        ctx: has the model's ``anatomy``.

    Raises:
        ExperimentError: the algorithm has no levels, or none of this name.
    """
    if getattr(algorithm, "find_level", None) is None:
        raise ExperimentError(
            f"fleet: fits = {name}: the boards of this algorithm do not choose a sub-model; remove the key, or use "
            "adaptivefl"
        )
    try:
        part: Slice = call_hook(algorithm, "find_level", name, ctx)
    except SliceError as error:
        raise ExperimentError(str(error)) from None
    return part


def parts_to_try(algorithm: object, anatomy: Anatomy) -> Sequence[Slice]:
    """Return the smallest sub-models of an algorithm, which the coordinator runs once before the first round.

    Args:
        algorithm: its method ``parts_to_try`` returns them. An algorithm without that method has none.
        anatomy: of the experiment's model.

    Raises:
        SliceError: the model does not have the algorithm's sub-models.
    """
    if getattr(algorithm, "parts_to_try", None) is None:
        return ()
    parts: Sequence[Slice] = call_hook(algorithm, "parts_to_try", anatomy)
    return parts
