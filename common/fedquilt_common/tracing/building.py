"""Build modules without their numbers, and modules whose parameters are loaded afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_FILLS: Final = (Tensor.normal_, Tensor.uniform_, Tensor.fill_, Tensor.zero_)
"""Methods that give a whole tensor values, as all functions of ``torch.nn.init`` do."""
_FACTS: Final = frozenset({
    Tensor.dim, Tensor.size, Tensor.numel, Tensor.is_floating_point, Tensor.requires_grad_,
    *(getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "requires_grad", "is_meta")),
})  # fmt: skip
"""What can be asked of a parameter without reading its values."""


def build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Build the module without its numbers if the factory allows that; else build the real one.

    Parameters without numbers are not filled: for some layers, torch would load its compiler for that. Nor does torch
    check the arguments of ``torch.nn.init`` then.
    """
    try:
        with torch.device("meta"), _SkipInitialValues(only_meta=True):
            return build()
    except Exception:  # a factory that reads its numbers; a wrong one raises again without the meta device
        return build()


def build_to_load(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a module without initial values, because ``load_arrays`` overwrites its parameters.

    Drawing them takes longer than all the rest: 0.2 s for VGG16 on a workstation. They are drawn nevertheless if
    anything else of the module could depend on it: if the factory reads a parameter or draws other numbers, or if a
    parameter is not among those of the module. ``build_on_meta`` would leave buffers and other tensors without values.
    """
    start, skipping = torch.get_rng_state(), _SkipInitialValues()
    try:
        with skipping:
            module = build()
    except Exception:  # a wrong factory raises again
        module = None
    if module is not None and skipping.was_harmless(module) and torch.equal(torch.get_rng_state(), start):
        return module
    torch.set_rng_state(start)
    return build()


def find_owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the module of which a parameter, buffer or child is an attribute, and the attribute's name."""
    owner, _, leaf = name.rpartition(".")
    return module.get_submodule(owner), leaf


def make_empty(shape: Sequence[int], dtype: torch.dtype, device: str = "cpu") -> Tensor:
    """Return a tensor of this shape that nothing has written: its pages of memory cost nothing until something does.

    Whole numbers are 0, because the model may look rows up by them.
    """
    make = torch.empty if dtype.is_floating_point else torch.zeros
    return make(tuple(shape), dtype=dtype, device=device)


class _SkipInitialValues(TorchFunctionMode):
    """Leave parameters as they are when something would fill them, and notice when something reads them.

    Args:
        only_meta: fill those that the factory makes with numbers.
    """

    def __init__(self, *, only_meta: bool = False) -> None:
        super().__init__()
        self._only_meta = only_meta
        self._skipped: dict[int, nn.Parameter] = {}
        self._was_read = False

    def was_harmless(self, module: nn.Module) -> bool:
        """Whether nothing has read the parameters without values, and all of them are the module's."""
        return not self._was_read and self._skipped.keys() <= {id(one) for one in module.parameters()}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        target = args[0] if args else given.get("tensor")
        if isinstance(target, nn.Parameter) and given.get("generator") is None and self._skips(func, target):
            self._skipped[id(target)] = target
            return target
        if self._skipped and not self._was_read and func not in _FACTS:
            self._was_read = any(id(one) in self._skipped for one in _flatten((*args, *given.values())))
        return func(*args, **given)

    def _skips(self, func: Any, target: nn.Parameter) -> bool:
        if self._only_meta and not target.is_meta:
            return False
        if func in _FILLS:  # torch refuses to change a parameter in place while it records gradients
            return not (torch.is_grad_enabled() and target.requires_grad)
        return getattr(func, "__module__", "") == nn.init.__name__


def _flatten(values: Iterable[Any]) -> Iterator[Any]:
    """Yield what is in lists within lists: torch's ``tree_flatten`` makes building MobileNetV2 half as long again."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flatten(value)
        else:
            yield value
