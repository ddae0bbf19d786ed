"""Which known layer a module is: a class of its own may only give a layer of torch other arguments."""

from __future__ import annotations

from typing import Final

from torch import nn

OURS: Final = (
    "fedquilt_common.models.attention", "fedquilt_common.models.static_norm", "fedquilt_common.tracing.attention",
)  # fmt: skip
"""Modules with layers of ours that have rules, or that stand for a layer of torch that has one."""
_KNOWN: Final = ("torch.nn.", "torch.ao.nn.", *OURS)
_PACKAGES: Final = ("torch.", "fedquilt_common.")
_CHANGES_NOTHING: Final = frozenset({
    "__init__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__constants__", "__firstlineno__", "__static_attributes__", "__type_params__",
    "__parameters__", "extra_repr", "reset_parameters",
})  # fmt: skip
"""What a class may define while its forward pass stays that of its base."""


def is_known(module: nn.Module) -> bool:
    """Whether all layers of a model are torch's or ours: their code does in both modes what it should."""
    return all(type(layer).__module__.startswith(_PACKAGES) for layer in module.modules())


def layer_kind(module: nn.Module) -> type[nn.Module]:
    """Return the class of torch or of ours that computes the module's forward pass; else the module's own class.

    It is the base of ``class Norm(nn.BatchNorm2d)`` that has only an ``__init__``, and not of one with a ``forward``.
    """
    own = type(module)
    for kind in own.__mro__:
        if kind.__module__.startswith(_KNOWN):
            return kind
        if not _CHANGES_NOTHING.issuperset(vars(kind)):
            break
    return own
