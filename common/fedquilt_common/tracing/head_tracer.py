"""Find the heads of a module whose base cannot be traced: the base runs, and only the head is traced.

The base may branch on its input, or use any function. Where the head begins, the features are replaced by a symbol.
Everything after that is traced as usual. If it needs another result of the base, the layers are no head. A tensor that
is neither a parameter nor a buffer counts as such a result, because forward can create it from the sample's numbers.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.tracing.generators import use_seed
from fedquilt_common.tracing.outputs import refuse_exits
from fedquilt_common.tracing.symbolic import ModelTracer, used_arrays


class _NoHeadError(Exception):
    """What follows the layers needs another tensor of the base than the features."""


@refuse_exits()
def find_without_base(module: nn.Module, sample: Tensor) -> list[tuple[str, fx.Graph]]:
    """Return first layer and graph of the heads of 1, 2, ... last linear layers; ``find_heads`` has the conditions.

    Args:
        module: the model with its numbers; it stays as it is.
        sample: a batch of shape (n, *input_shape), on which the base runs.

    Raises:
        UncuttableModelError: the model does not run on the sample.
        ExperimentError: its forward calls ``sys.exit``.
    """
    runs = copy.deepcopy(module)  # a forward pass in training mode changes the statistics of norms
    with torch.no_grad(), use_seed(0):
        try:
            layers = _run_whole(runs, sample)
        except Exception as error:  # a user's forward can raise anything
            raise UncuttableModelError(
                f"the model does not run on a sample of shape {tuple(sample.shape[1:])}: {type(error).__name__}: "
                f"{error}; correct its forward, or choose another model for this data set"
            ) from error
        return list(_trace_heads(runs, sample, layers))


def _run_whole(module: nn.Module, sample: Tensor) -> list[str]:
    """Return the names of the linear layers that are called, in their order."""
    tracer = _HeadTracer(sample, None)
    with contextlib.suppress(_NoHeadError):  # the output is a result of the base too
        tracer.trace(module)
    return tracer.layers


def _trace_heads(module: nn.Module, sample: Tensor, layers: list[str]) -> Iterator[tuple[str, fx.Graph]]:
    tensors = module.state_dict(keep_vars=True)
    for place in reversed(range(len(layers))):
        tracer = _HeadTracer(sample, place)
        try:
            graph = tracer.trace(module)
        except Exception:  # what follows cannot be traced, or needs more than the features
            return
        head = {id(tensors[name]) for name in used_arrays(module, graph.nodes)}
        base = tracer.read & {id(tensor) for tensor in tensors.values()}
        output = list(graph.nodes)[-1].args[0]
        if not isinstance(output, fx.Node) or head & base or not base:
            return
        yield layers[place], graph


class _HeadTracer(ModelTracer):
    """Runs a module on a sample up to the linear call number ``place``, and traces the rest; None: runs it all.

    Attributes:
        layers: names of the linear layers that were called before.
        read: ids of the tensors that were read before.
    """

    def __init__(self, sample: Tensor, place: int | None) -> None:
        super().__init__()
        self.layers: list[str] = []
        self.read: set[int] = set()
        self._sample, self._place = sample, place
        self._features: Tensor | None = None
        self._symbol: fx.Proxy | None = None

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        return root_fn, [self.root, self._sample]

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if self._symbol is not None:
            return super().getattr(attr, attr_val, parameter_proxy_cache)
        if isinstance(attr_val, Tensor):
            self.read.add(id(attr_val))
        return attr_val

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._symbol is not None:
            return super().call_module(m, forward, args, kwargs)
        if isinstance(m, nn.Linear):
            if len(self.layers) == self._place:
                self._features = args[0]
                self._symbol = self.create_proxy("placeholder", "features", (), {})
                return super().call_module(m, forward, (self._symbol,), kwargs)
            self.layers.append(self.path_of_module(m))
        elif isinstance(m, nn.RNNBase):  # it reads its weights from a list
            self.read |= set(map(id, m.parameters()))
        return forward(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        if a is self._features and self._symbol is not None:
            return self._symbol.node
        if isinstance(a, Tensor) and not isinstance(a, nn.Parameter) and not self._is_attribute(a):
            raise _NoHeadError("another result of the base is needed, or a tensor that forward creates")
        return super().create_arg(a)

    def _is_attribute(self, tensor: Tensor) -> bool:
        return tensor in self.tensor_attrs or any(tensor is buffer for buffer in self.root.buffers())
