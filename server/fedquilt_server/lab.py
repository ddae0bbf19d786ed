"""What the server half of an algorithm may touch in one round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedquilt_common.seeds import derive_seed
from fedquilt_common.slicing import Anatomy, Slice
from fedquilt_common.types import Arrays, ClientId, Profile

Evaluate = Callable[[Arrays, Slice | None], dict[str, float]]


@dataclass(frozen=True)
class RunLab:
    """The lab of round ``round``; its random numbers depend on the run's seed and the round alone.

    ``measures``: whether the clients are to evaluate at the end of this round, on samples that they keep for that.
    """

    round: int
    fleet: Mapping[ClientId, Profile]
    seed: int
    rounds: int
    clients: int
    per_round: int
    measure: Evaluate
    trace: Callable[[], Anatomy]
    names: Callable[[], frozenset[str]] = frozenset
    measures: bool = False

    @cached_property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.seed, "round", self.round))

    def select(self) -> list[ClientId]:
        """``per_round`` clients of the fleet, drawn without replacement, in client order."""
        there = sorted(self.fleet)
        if len(there) <= self.per_round:
            return there
        return sorted(int(c) for c in self.rng.choice(there, self.per_round, replace=False))

    @property
    def anatomy(self) -> Anatomy:
        """The model's channel groups; raises UncuttableModelError for a model that cannot be cut."""
        return self.trace()

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the model's arrays that are trained; the others are buffers."""
        return self.names()

    def evaluate(self, arrays: Arrays, part: Slice | None = None) -> dict[str, float]:
        return self.measure(arrays, part)
