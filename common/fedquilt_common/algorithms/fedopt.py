"""FedOPT: the server uses the clients' mean change as a gradient of its own optimiser.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021, algorithm 2: FedAdagrad, FedAdam and FedYogi, without bias
correction. The second moment begins at tau^2. FedAvgM is Hsu et al., "Measuring the Effects of Non-Identical Data
Distribution for Federated Visual Classification", 2019, section 4.2: SGD with momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import Declaration, Reply, ServerContext, State
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import ClientId

_Values = NDArray[np.float64]


@dataclass(frozen=True)
class FedOPT(FedAvg):
    """FedAvg with an optimiser on the server. Buffers have no gradient; they are averaged as in FedAvg.

    Attributes:
        optimizer: `adam`, `yogi` and `adagrad` differ in the update of the second moment; `sgd` has none. With `sgd`
            this is FedAvgM, and FedAvg if `server_lr` is 1 and `beta1` is 0.
        server_lr: the server's learning rate, eta in the paper, above 0.
        beta1: decay of the first moment, in [0, 1); the momentum of `sgd`, whose changes are added up, not averaged.
            None: 0 for `adagrad`, as in the paper's experiments, and 0.9 otherwise.
        beta2: decay of the second moment, in [0, 1); without effect on `sgd` and `adagrad`.
        tau: degree of adaptivity, above 0; smaller is more adaptive. Without effect on `sgd`.
    """

    declares: ClassVar[Declaration] = FedAvg.declares

    optimizer: Literal["adam", "yogi", "adagrad", "sgd"] = "adam"
    server_lr: float = 0.1
    beta1: float | None = None
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        for name, value in (("server_lr", self.server_lr), ("tau", self.tau)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be a positive number")
        for name, value in (("beta1", self.momentum), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be from 0 up to, not including, 1")

    @property
    def momentum(self) -> float:
        """``beta1``, or its default."""
        if self.beta1 is not None:
            return self.beta1
        return 0.0 if self.optimizer == "adagrad" else 0.9

    def init(self, model: Mapping[str, NDArray[Any]], ctx: ServerContext) -> State:
        names = [name for name in model if name in ctx.parameters]
        first = {f"m/{name}": np.zeros(model[name].shape, np.float32) for name in names}
        second = {f"v/{name}": np.full(model[name].shape, self.tau**2, np.float32) for name in names}
        return State(model, first if self.optimizer == "sgd" else {**first, **second})

    def merge(self, state: State, replies: Mapping[ClientId, Reply], ctx: ServerContext) -> State:
        arrays, extra = mean(replies, like=state.arrays), dict[str, NDArray[Any]]()
        for name in arrays:
            keys = [key for key in (f"m/{name}", f"v/{name}") if key in state.extra]
            if keys:
                before, after = (np.asarray(one[name], np.float64) for one in (state.arrays, arrays))
                moments = (np.asarray(state.extra[key], np.float64) for key in keys)
                new, *changed = self._step(before, after, *moments)
                arrays[name] = new.astype(arrays[name].dtype)
                extra |= {key: moment.astype(np.float32) for key, moment in zip(keys, changed, strict=True)}
        return State(arrays, extra)

    def _step(self, w: _Values, mean: _Values, m: _Values, v: _Values | None = None) -> tuple[_Values, ...]:
        """Return the new parameters and moments, all of the shape of ``w``.

        Args:
            w: the parameters of the global model.
            mean: the mean of the clients' parameters.
            m: the first moment.
            v: the second moment; None for `sgd`.
        """
        change = mean - w
        if v is None:
            m = self.momentum * m + change
            return mean + (self.server_lr * m - change), m  # the mean to the bit if the rate is 1 without momentum
        m = self.momentum * m + (1 - self.momentum) * change
        v = self._second_moment(v, change**2)
        return w + self.server_lr * m / (np.sqrt(v) + self.tau), m, v

    def _second_moment(self, v: _Values, squared: _Values) -> _Values:
        if self.optimizer == "adagrad":
            return v + squared
        if self.optimizer == "yogi":
            return v - (1 - self.beta2) * squared * np.sign(v - squared)
        return self.beta2 * v + (1 - self.beta2) * squared
