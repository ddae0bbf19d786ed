"""Shadow models: the audited model, trained again in one place on random halves of the candidates.

Shokri et al., "Membership Inference Attacks against Machine Learning Models", IEEE S&P 2017, section V-C.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import replies_per_round
from fedquilt_common.experiment.sections import Variant
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.seeds import derive_seed
from fedquilt_common.types import Arrays, Examples
from fedquilt_server.central.plan import CENTRAL
from fedquilt_server.privacy_audit.finished_run import AuditBench
from fedquilt_server.privacy_audit.scores import Floats, draw_halves, sample_confidences

if TYPE_CHECKING:
    from fedquilt_common.experiment.privacy_section import Privacy
    from fedquilt_common.privacy.meter import PrivacyMeter

_ANY_EPSILON = 1e9
"""Budget of shadow models: their noise is that of the audited run, and nobody else's samples are spent."""


class AuditStoppedError(Exception):
    """A signal has stopped the audit."""


@dataclass(frozen=True)
class ShadowPlan:
    """How shadow models are trained.

    Attributes:
        bench: builds learners.
        variant: the audited model, its training and its privacy.
        samples: all candidates.
        models: number of shadow models, even, 4 or more.
        seed: of the halves and of the trainings.
        should_stop: asked between two steps of the training.
    """

    bench: AuditBench
    variant: Variant
    samples: Examples
    models: int
    seed: int
    should_stop: Callable[[], bool]
    _noises: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def halves(self) -> NDArray[np.bool_]:
        """The samples of each model, bool of shape (models, n)."""
        return draw_halves(self.models, len(self.samples), derive_seed(self.seed, "halves"))

    def measure(self, number: int) -> Floats:
        """Train a shadow model, and return its confidence on each candidate, float64 of shape (n,).

        Args:
            number: of the model, from 0.

        Raises:
            AuditStoppedError: ``should_stop`` has returned True.
            TrainingDivergedError: the loss or a trained number is not finite.
        """
        half = self.samples.take(np.flatnonzero(self.halves[number]))
        arrays = self._train(half, derive_seed(self.seed, "shadow", number))
        learner = self.bench.make_learner(self.variant.model, self.variant.training)
        return sample_confidences(learner.predict(arrays, self.samples)[-1], self.samples.y)

    def _train(self, data: Examples, seed: int) -> Arrays:
        batch = min(self.variant.training.batch, len(data))
        meter = self._make_meter(len(data), batch, seed)
        arrays: Arrays | None = None
        for part, (training, epochs) in enumerate(self.schedule):
            settings = training.model_copy(update={"batch": batch})
            learner = self.bench.make_learner(self.variant.model, settings, on_progress=self._check_stop, meter=meter)
            start = learner.init(derive_seed(seed, "model")) if arrays is None else arrays
            arrays = learner.train(start, data, seed=derive_seed(seed, part), epochs=epochs).arrays
        return arrays or {}

    @cached_property
    def schedule(self) -> Sequence[tuple[Training, int]]:
        """The trainings one after the other, and the passes of each: as many as a client makes on average.

        It is one training if the learning rate stays the same, otherwise one for each round.
        """
        experiment, training = self.bench.experiment, self.variant.training
        rounds = max(1, round(experiment.rounds * self._part))
        if training.lr_decay == 1 and training.schedule is None:
            return [(training.at_round(1), self._warm_up + rounds * training.epochs)]
        at = [experiment.rounds * number // rounds + 1 for number in range(rounds)]
        passes = [training.epochs + (0 if number else self._warm_up) for number in range(rounds)]
        return [(training.at_round(round), epochs) for round, epochs in zip(at, passes, strict=True)]

    @property
    def _is_central(self) -> bool:
        return self.bench.experiment.algorithm.name == CENTRAL

    @property
    def _part(self) -> float:
        """Part of the rounds in which a client trains, on average; a central training has all samples in each round."""
        if self._is_central:
            return 1.0
        replies = replies_per_round(self.bench.algorithm(), self.bench.experiment.participation.per_round)
        return min(1.0, replies / self.bench.experiment.data.clients)

    @property
    def _warm_up(self) -> int:
        """Passes over its samples with which a client of FedMD and its relatives begins."""
        return 0 if self._is_central else int(getattr(self.bench.algorithm(), "warm_up_epochs", 0))

    def _check_stop(self, _: float) -> None:
        if self.should_stop():
            raise AuditStoppedError

    def _make_meter(self, samples: int, batch: int, seed: int) -> PrivacyMeter | None:
        """Return the privacy of one shadow training: the noise with which the run's budget lasts for all passes."""
        if self.variant.privacy is None:
            return None
        from fedquilt_common.privacy.meter import PrivacyMeter
        from fedquilt_common.privacy.secret_noise import open_secret

        budget = self.variant.privacy.model_copy(update={"epsilon": _ANY_EPSILON, "delta": 0.5 / samples})
        key = "".join(f"{derive_seed(seed, 'noise', part):016x}" for part in range(4))
        noise = self._find_noise(self.variant.privacy, math.ceil(samples / batch))
        return PrivacyMeter(budget, 1, {}, noise, functools.partial(open_secret, key))

    def _find_noise(self, privacy: Privacy, steps: int) -> float:
        """Return the noise that spends the client's budget in all passes, each of ``steps`` steps."""
        if steps not in self._noises:
            from fedquilt_common.privacy.accountant import solve_noise

            total = steps * sum(epochs for _, epochs in self.schedule)
            rate, (epsilon, delta) = 1 / steps, (privacy.epsilon, privacy.delta)
            self._noises[steps] = solve_noise([], epsilon, delta, rate, total, privacy.accountant)
        return self._noises[steps]
