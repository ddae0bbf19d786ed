"""FedDF: after FedAvg of each kind of model, each learns from the mean of all clients' logits on public samples.

Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020, algorithms 1 and 3.
Kullback and Leibler's divergence without temperature, Adam with a cosine, and an early stop as in the code published
with it; there the stop looks at labelled samples, here at the divergence on a fifth of the public ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedquilt_common.algorithms.prototypes import (
    Prototypes,
    averaged,
    first_models,
    opinions,
    packed,
    scores_of,
    unpacked,
)
from fedquilt_common.losses import divergence
from fedquilt_common.seeds import derive_seed
from fedquilt_common.soft_labels import Logits, check_distils, voices
from fedquilt_common.types import Arrays, ClientId, Examples, Lab, Reply, Round, State

WATCHED = 5
"""One public sample in so many is not learned from, but decides when to stop."""


@dataclass(frozen=True)
class FedDF(Prototypes):
    """``kd_epochs`` 0 leaves the means as they are. ``patience``: epochs without a better divergence after which a
    student stops. ``weighting`` of the teachers: all alike, or by the accuracy that each client has on the samples that
    it keeps for testing, or else trains on.

    The state's arrays are the models of the first kind of clients; those of other kinds are kept beside them.
    """

    patience: int = 3
    weighting: Literal["uniform", "accuracy"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience < 1:
            raise ValueError("patience must be 1 or more")
        if self.weighting not in ("uniform", "accuracy"):
            raise ValueError(f"weighting = {self.weighting!r}: must be uniform or accuracy")

    @property
    def by_accuracy(self) -> bool:
        return self.weighting == "accuracy"

    def init(self, model: Arrays, lab: Lab) -> State:
        check_distils(lab, self)
        return _state(first_models(model, lab))

    def round(self, state: State, lab: Lab) -> Round:
        models = _models(state, lab)
        replies = yield self.ask(models, lab)
        means = averaged(models, replies, lab)
        return _state(self.students(means, self.ensemble(replies, lab), lab) if self.kd_epochs else means)

    def students(self, means: Sequence[Arrays], labels: Logits, lab: Lab) -> list[Arrays]:
        """Each kind's mean after it has learned the labels, shape (n, classes), of the public samples."""
        order = np.random.Generator(np.random.PCG64(derive_seed(lab.seed, "watched"))).permutation(len(labels))
        data, watched = Examples(lab.public, labels), len(labels) // WATCHED
        seen, rest = np.sort(order[watched:]), np.sort(order[:watched])
        how = {"anneal": True, "watch": data.take(rest) if watched else None, "patience": self.patience}
        return [
            self.student(learner, arrays, data.take(seen), divergence, lab, number, **how)
            for number, (learner, arrays) in enumerate(zip(lab.prototypes, means, strict=True))
        ]

    def ensemble(self, replies: Mapping[ClientId, Reply], lab: Lab) -> Logits:
        """The mean of the clients' logits, shape (n, classes)."""
        weights = voices(replies, self.by_accuracy)
        labels: Logits = np.average(opinions(replies, lab), axis=0, weights=weights).astype(np.float32)
        return labels

    def evaluate(self, state: State, lab: Lab) -> dict[str, float]:
        return scores_of(_models(state, lab), lab)


def _state(models: list[Arrays]) -> State:
    return State(models[0], packed(models[1:]))


def _models(state: State, lab: Lab) -> list[Arrays]:
    return [state.arrays, *unpacked(state.extra, len(lab.prototypes) - 1)]
