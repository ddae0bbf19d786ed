"""FedOPT: the server uses the clients' mean change as a gradient of an adaptive optimiser.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithm 2: FedAdagrad, FedAdam and FedYogi, without bias
correction. The second moment begins at tau^2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import Reply, ServerContext, State
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import ClientId

_Values = NDArray[np.float64]


@dataclass(frozen=True)
class FedOPT(FedAvg):
    """FedAvg with an optimiser on the server. Buffers have no gradient; they are averaged as in FedAvg.

    Attributes:
        optimizer: the update rule of the second moment.
        server_lr: the server's learning rate, eta in the paper, above 0.
        beta1: decay of the first moment, in [0, 1).
        beta2: decay of the second moment, in [0, 1).
        tau: degree of adaptivity, above 0; smaller is more adaptive.
    """

    optimizer: Literal["adam", "yogi", "adagrad"] = "adam"
    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 < self.server_lr < float("inf") or not 0 < self.tau < float("inf"):
            raise ValueError("server_lr and tau must be positive numbers")
        if not 0 <= self.beta1 < 1 or not 0 <= self.beta2 < 1:
            raise ValueError("beta1 and beta2 must be from 0 up to, not including, 1")

    def init(self, model: Mapping[str, NDArray[Any]], ctx: ServerContext) -> State:
        names = [name for name in model if name in ctx.parameters]
        first = {f"m/{name}": np.zeros(model[name].shape, np.float32) for name in names}
        second = {f"v/{name}": np.full(model[name].shape, self.tau**2, np.float32) for name in names}
        return State(model, {**first, **second})

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        arrays, extra = mean(replies, like=state.arrays), dict[str, NDArray[Any]]()
        for name in arrays:
            if f"m/{name}" in state.extra:
                before = np.asarray(state.arrays[name], np.float64)
                m, v = (np.asarray(state.extra[f"{moment}/{name}"], np.float64) for moment in "mv")
                new, m, v = self._step(before, arrays[name] - before, m, v)
                arrays[name] = new.astype(arrays[name].dtype)
                extra[f"m/{name}"], extra[f"v/{name}"] = m.astype(np.float32), v.astype(np.float32)
        return State(arrays, extra)

    def _step(self, w: _Values, change: _Values, m: _Values, v: _Values) -> tuple[_Values, _Values, _Values]:
        """Return (new parameters, first moment, second moment), all of the shape of ``w``."""
        m = self.beta1 * m + (1 - self.beta1) * change
        squared = change**2
        if self.optimizer == "adagrad":
            v = v + squared
        elif self.optimizer == "yogi":
            v = v - (1 - self.beta2) * squared * np.sign(v - squared)
        else:
            v = self.beta2 * v + (1 - self.beta2) * squared
        return w + self.server_lr * m / (np.sqrt(v) + self.tau), m, v
