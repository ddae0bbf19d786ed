"""What a central training does, derived from an experiment. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fedquilt_common.experiment.experiment import Experiment

CENTRAL: Final = "central"
"""Stands for an algorithm in ``experiment.yaml`` and ``result.json`` of a central training."""


@dataclass(frozen=True)
class CentralPlan:
    """A central training.

    Attributes:
        source: the experiment without its privacy; its algorithm decides which samples the clients keep for testing.
        recorded: the same with the algorithm ``central``, as the run folder records it.
        epochs: passes over the samples in all rounds.
        drops_privacy: the experiment has a privacy, which one training on all samples does not keep.
    """

    source: Experiment
    recorded: Experiment
    epochs: int
    drops_privacy: bool = False

    def count_passes(self, round: int) -> int:
        """Return the passes over the samples in a round: ``training.epochs``, in the last one what is left."""
        a_round = self.source.training.epochs
        return min(a_round, self.epochs - (round - 1) * a_round)


def plan_central(experiment: Experiment, holdout: float, epochs: int | None) -> CentralPlan:
    """Divide the passes of a central training into rounds, after which it may evaluate and can resume.

    Args:
        experiment: the federated experiment.
        holdout: share of its samples that each client keeps for testing.
        epochs: passes over all samples; None: as many as a client makes in all rounds, ``rounds`` x
            ``training.epochs``.

    Returns:
        Each round has ``training.epochs`` passes; the last one has what is left.
    """
    a_round = experiment.training.epochs
    total = experiment.rounds * a_round if epochs is None else epochs
    source = _without_privacy(experiment)
    raw = source.model_dump(mode="json")
    raw |= {"algorithm": {"name": CENTRAL, "epochs": total}, "rounds": -(-total // a_round)}
    raw["data"] |= {"holdout": holdout}
    raw["budget"] = {}  # it limits a federation
    return CentralPlan(source, Experiment.model_validate(raw), total, source != experiment)


def _without_privacy(experiment: Experiment) -> Experiment:
    fleet = []
    for line in experiment.fleet:
        variants = tuple(variant.model_copy(update={"privacy": None}) for variant in line.variants)
        fleet.append(line.model_copy(update={"privacy": None, "variants": variants}))
    return experiment.model_copy(update={"privacy": None, "fleet": tuple(fleet)})
