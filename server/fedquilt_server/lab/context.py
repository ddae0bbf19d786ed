"""What the server half of an algorithm may touch in one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Learner, ServerTools
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.types import Arrays, ClientId, Profile


@dataclass(frozen=True)
class RoundContext:
    """The lab of round ``round``; its random numbers depend on the run's ``seed`` and the round alone.

    ``measures``: whether the clients are to evaluate at the end of this round.
    """

    round: int
    fleet: Mapping[ClientId, Profile]
    seed: int
    rounds: int
    clients: int
    per_round: int
    tools: ServerTools
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
        return self.tools.anatomy

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the model's arrays that are trained; the others are buffers."""
        return self.tools.parameters

    @property
    def classes(self) -> int:
        """Of the data set; 0 for regression."""
        return self.tools.classes

    @property
    def public(self) -> NDArray[Any]:
        """The samples that coordinator and boards share, shape (n, *input_shape). Raises ExperimentError."""
        return self.tools.public

    @property
    def learner(self) -> Learner:
        """Of the experiment's model."""
        return self.tools.learner

    @property
    def prototypes(self) -> Sequence[Learner]:
        """Of the different models that clients have, each once, in the order of the clients."""
        return self.tools.prototypes

    def prototype_of(self, client: ClientId) -> int:
        """Which of ``prototypes`` a client has."""
        return self.tools.prototype_of(client)

    def evaluate(self, arrays: Arrays, part: Slice | None = None, learner: Learner | None = None) -> dict[str, float]:
        return self.tools.evaluate(arrays, part, learner)
