"""The privacy budget of one task: what its training may still spend, and with how much noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedquilt_common.errors import ExperimentError, PrivacyBudgetError
from fedquilt_common.privacy.accountant import TOLERANCE, Charge, epsilon_of, solve_noise

if TYPE_CHECKING:
    from fedquilt_common.experiment.privacy_section import Privacy


@dataclass(frozen=True)
class PrivateSteps:
    """How one phase of training is made private.

    Attributes:
        noise: standard deviation of the noise on a step's sum of clipped gradients, in clipping norms.
        clip: largest L2 norm of the gradient of one sample.
        rate: probability, in (0, 1], with which a step draws each sample.
        steps: steps in an epoch.
        expected_batch: samples that a step draws on average, rounded down; the sum is divided by it.
        generator: draws samples and noise.
    """

    noise: float
    clip: float
    rate: float
    steps: int
    expected_batch: int
    generator: np.random.Generator


@dataclass
class PrivacyMeter:
    """Charges the training of one task, and refuses what the budget does not allow.

    Attributes:
        budget: the client's privacy section.
        passes: passes over its samples that the client may still make in the run, with those of this task.
        spent: what trainings have spent on the same samples, in any run.
        noise: that of the run's earlier tasks; None: the first training solves it.
        open_secret: returns the digest and the secret generator of a training, from JSON values that tell it from any
            with a different result.
        charges: what this task has spent, by the digest of the training.
    """

    budget: Privacy
    passes: int
    spent: Mapping[str, Charge]
    noise: float | None
    open_secret: Callable[[Sequence[Any]], tuple[str, np.random.Generator]]
    charges: dict[str, Charge] = field(default_factory=dict)

    @property
    def epsilon(self) -> float:
        """What all trainings have spent on these samples, with those of this task."""
        return self._epsilon({**self.spent, **self.charges})

    def charge(self, samples: int, batch: int, epochs: int, facts: Sequence[Any] = ()) -> PrivateSteps:
        """Charge a training, and return how it is made private.

        Args:
            samples: number of samples that it trains on.
            batch: samples that a step draws on average.
            epochs: passes over the samples; each has ceil(samples / batch) steps, as Opacus counts them.
            facts: JSON values on which the result depends, such as digests of samples and initial numbers.

        Raises:
            ExperimentError: the samples are fewer than a batch, or too few for delta.
            PrivacyBudgetError: it would spend more than the budget.
            PackageMissingError: Opacus is not installed.
        """
        self._check_samples(samples, batch)
        steps = math.ceil(samples / batch)
        rate = 1 / steps
        noise = self._choose_noise(rate, steps)
        planned = Charge(noise, rate, steps * epochs)
        digest, generator = self.open_secret([noise, self.budget.clip, rate, len(self.charges), *facts])
        after = self._epsilon({**self.spent, **self.charges, digest: planned})
        if after > self.budget.epsilon:
            raise self._used_up(f", and this training would make it {after:.5g}")
        self.charges[digest] = planned
        return PrivateSteps(noise, self.budget.clip, rate, steps, samples // steps, generator)

    def _used_up(self, more: str = "") -> PrivacyBudgetError:
        return PrivacyBudgetError(
            f"the privacy budget is used up: {self.epsilon:.5g} of epsilon {self.budget.epsilon:g} is spent on these "
            f"samples{more}; choose a larger privacy.epsilon"
        )

    def _choose_noise(self, rate: float, steps: int) -> float:
        if self.noise is None:
            budget = self.budget
            rest = budget.epsilon - self.epsilon
            if self.epsilon and rest <= TOLERANCE:  # solving the noise leaves such a rest
                raise self._used_up()
            spent = list(self.spent.values())
            passes = steps * self.passes
            self.noise = solve_noise(spent, budget.epsilon, budget.delta, rate, passes, budget.accountant)
        return self.noise

    def _epsilon(self, charges: Mapping[str, Charge]) -> float:
        return epsilon_of(list(charges.values()), self.budget.delta, self.budget.accountant)

    def _check_samples(self, samples: int, batch: int) -> None:
        if samples < batch:
            raise ExperimentError(
                f"the client has fewer samples than a batch of {batch}, so that each step would use all of them; "
                "choose a smaller training.batch, or give each client more (data.partition.min_samples)"
            )
        if self.budget.delta >= 1 / samples:
            raise ExperimentError(
                f"privacy.delta = {self.budget.delta:g} allows a sample to leak whole: it must be below 1/n for the n "
                "samples of each client"
            )
