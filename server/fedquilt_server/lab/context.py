"""What the server half of an algorithm may touch in one round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Learner, ServerTools
from fedquilt_common.learning_tasks import LearningTask
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.types import Arrays, ClientId, Examples, ExchangeId, Profile


@dataclass(frozen=True)
class RoundContext:
    """The server context of one round; its random numbers depend on the run's seed and the round only.

    What follows from the experiment, such as ``learner`` and ``public``, comes from ``tools``; ``ServerTools``
    documents it.

    Args:
        round: the round's number, from 1; 0 in ``Algorithm.init``.
        fleet: the clients that can take part now, with the profile of their board.
        seed: the run's seed.
        rounds: number of rounds of the run.
        clients: number of clients of the experiment.
        per_round: number of clients that take part in a round.
        tools: what the coordinator derives from the experiment.
        measures: whether the clients evaluate at the end of this round.
        opened: Unix time in seconds at which the round opened, by the journal; 0 outside rounds.
        working: the clients that still work on a task of an earlier round, with its round and exchange.
    """

    round: int
    fleet: Mapping[ClientId, Profile]
    seed: int
    rounds: int
    clients: int
    per_round: int
    tools: ServerTools
    measures: bool = False
    opened: float = 0.0
    working: Mapping[ClientId, ExchangeId] = field(default_factory=dict)

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random numbers that depend on the run's seed and the round only."""
        return np.random.default_rng(derive_seed(self.seed, "round", self.round))

    def select(self) -> list[ClientId]:
        """Draw the clients of this round: ``per_round`` of the fleet, uniformly, in client order."""
        available = sorted(self.fleet)
        if len(available) <= self.per_round:
            return available
        return sorted(int(c) for c in self.rng.choice(available, self.per_round, replace=False))

    @property
    def anatomy(self) -> Anatomy:
        """The channel groups of the experiment's model."""
        return self.tools.anatomy

    @property
    def parameters(self) -> frozenset[str]:
        """Names of the model's arrays that training changes; the others are buffers."""
        return self.tools.parameters

    @property
    def classes(self) -> int:
        """Number of classes of the data set, or words of its vocabulary; 0 for regression."""
        return self.tools.classes

    @property
    def learning_task(self) -> LearningTask:
        """What the model learns to do: its loss and its metrics."""
        return self.tools.learning_task

    @property
    def public(self) -> NDArray[Any]:
        """The public set that coordinator and boards share, shape (n, *input_shape)."""
        return self.tools.public

    @cached_property
    def learner(self) -> Learner:
        """Trains the experiment's model on the coordinator with this round's learning rate, and evaluates it."""
        return self.tools.learner.at_round(self.round)

    @cached_property
    def prototypes(self) -> Sequence[Learner]:
        """A learner as ``learner`` for each different model that clients have, in the order of the clients."""
        return [learner.at_round(self.round) for learner in self.tools.prototypes]

    @property
    def spare_test(self) -> Examples:
        """Samples for testing of the shares that no client has; there may be none."""
        return self.tools.spare_test

    def prototype_of(self, client: ClientId) -> int:
        """Return the position in ``prototypes`` of a client's model."""
        return self.tools.prototype_of(client)

    def evaluate(self, arrays: Arrays, part: Slice | None = None, learner: Learner | None = None) -> dict[str, float]:
        """Score a model on the data set's test split."""
        return self.tools.evaluate(arrays, part, learner)
