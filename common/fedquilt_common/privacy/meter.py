"""The privacy budget of one task: what its training may still spend, and with how much noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from fedquilt_common.errors import ExperimentError, PrivacyBudgetError
from fedquilt_common.privacy.accountant import TOLERANCE, Charge, epsilon_of, solve_noise
from fedquilt_common.privacy.private_trainings import size_problem

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


@dataclass(frozen=True)
class SpendingLimit:
    """What all trainings on the same samples may spend.

    Attributes:
        epsilon: the most that they may spend.
        delta: the delta of that epsilon.
        advice: what to do if it is reached.
    """

    epsilon: float
    delta: float
    advice: str = "choose a larger privacy.epsilon"


@dataclass
class PrivacyMeter:
    """Charges the training of one task, and refuses what the budget does not allow.

    Attributes:
        budget: the client's privacy section.
        passes: passes over its samples that the client may still make in the run, with those of this task.
        spent: what trainings have spent on the same samples, in any run.
        noise: that of the run's earlier tasks; None: the first training solves it.
        open_secret: returns the digest and the secret generator of a training, from JSON values that distinguish it
            from any training with a different result.
        charges: what this task has spent, by the digest of the training.
        owner: a limit of the board's owner besides the budget; None: the budget is stricter, or there is none.
    """

    budget: Privacy
    passes: int
    spent: Mapping[str, Charge]
    noise: float | None
    open_secret: Callable[[Sequence[Any]], tuple[str, np.random.Generator]]
    charges: dict[str, Charge] = field(default_factory=dict)
    owner: SpendingLimit | None = None

    @property
    def epsilon(self) -> float:
        """What all trainings have spent on these samples, with those of this task."""
        return self._epsilon(self.budget.delta)

    @property
    def _limits(self) -> list[SpendingLimit]:
        budget = SpendingLimit(self.budget.epsilon, self.budget.delta)
        return [budget] if self.owner is None else [budget, self.owner]

    def charge(self, samples: int, batch: int, epochs: int, facts: Sequence[Any] = ()) -> PrivateSteps:
        """Charge a training, and return how it is made private.

        Args:
            samples: number of samples that it trains on.
            batch: samples that a step draws on average.
            epochs: passes over the samples; each has ceil(samples / batch) steps, as Opacus counts them.
            facts: JSON values on which the result depends, such as digests of samples and initial numbers.

        Raises:
            ExperimentError: the samples are fewer than a batch, or too few for delta.
            PrivacyBudgetError: it would spend more than a limit.
            PackageMissingError: Opacus is not installed.
        """
        if problem := size_problem(samples, batch, self.budget.delta):
            raise ExperimentError(problem)
        steps = math.ceil(samples / batch)
        rate = 1 / steps
        noise = self._choose_noise(rate, steps)
        planned = Charge(noise, rate, steps * epochs)
        digest, generator = self.open_secret([noise, self.budget.clip, rate, len(self.charges), *facts])
        for limit in self._limits:
            after = self._epsilon(limit.delta, {digest: planned})
            if after > limit.epsilon:
                raise self._used_up(limit, f", and this training would make it {after:.5g}")
        self.charges[digest] = planned
        return PrivateSteps(noise, self.budget.clip, rate, steps, samples // steps, generator)

    def _used_up(self, limit: SpendingLimit, more: str = "") -> PrivacyBudgetError:
        return PrivacyBudgetError(
            f"the privacy budget is used up: {self._epsilon(limit.delta):.5g} of epsilon {limit.epsilon:g} is spent on "
            f"these samples{more}; {limit.advice}"
        )

    def _choose_noise(self, rate: float, steps: int) -> float:
        if self.noise is None:
            self.noise = max(self._solve_noise(limit, rate, steps * self.passes) for limit in self._limits)
        return self.noise

    def _solve_noise(self, limit: SpendingLimit, rate: float, steps: int) -> float:
        done = self._epsilon(limit.delta)
        if done and limit.epsilon - done <= TOLERANCE:  # solving the noise leaves such a rest
            raise self._used_up(limit)
        spent = list(self.spent.values())
        return solve_noise(spent, limit.epsilon, limit.delta, rate, steps, self.budget.accountant)

    def _epsilon(self, delta: float, more: Mapping[str, Charge] = MappingProxyType({})) -> float:
        """Return what all trainings and ``more`` spend at a delta."""
        charges = {**self.spent, **self.charges, **more}
        return epsilon_of(list(charges.values()), delta, self.budget.accountant)
