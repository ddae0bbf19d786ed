"""The section ``training`` of an experiment file.

Importing this module is cheap (no numpy, no torch), because an idle agent imports it.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedquilt_common.experiment.section import Count, Section, validation_error
from fedquilt_common.rejections import Problem
from fedquilt_common.types import OptimiserName

_SCHEDULE_FIELDS: Mapping[str, frozenset[str]] = {
    "multi-step": frozenset({"milestones", "gamma"}),
    "cosine": frozenset({"period", "multiplier", "minimum"}),
}
_REQUIRED: Mapping[str, str] = {"milestones": "try [100, 150]", "period": "try 10"}


class Schedule(Section):
    """How the learning rate changes from round to round, with the values of torch's schedulers.

    Args:
        kind: `multi-step`: the rate falls at milestones (MultiStepLR); `cosine`: it falls along a cosine and starts
            again (CosineAnnealingWarmRestarts).
        milestones: numbers of finished rounds after which the rate is multiplied by `gamma`, ascending. Required for
            `multi-step`, forbidden otherwise.
        gamma: factor at each milestone; null: 0.1. `multi-step` only.
        period: rounds until the first restart (T_0). Required for `cosine`, forbidden otherwise.
        multiplier: each period is as many times as long as the one before it (T_mult); null: 1. `cosine` only.
        minimum: rate towards which each period falls (eta_min), below `training.lr`; null: 0. `cosine` only.
    """

    kind: Literal["multi-step", "cosine"]
    milestones: Annotated[tuple[Count, ...], Field(strict=False, min_length=1)] | None = None
    gamma: Annotated[float, Field(gt=0, le=1)] | None = None
    period: Count | None = None
    multiplier: Count | None = None
    minimum: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Schedule:
        problems = [*self._find_misplaced()]
        if any(first >= second for first, second in itertools.pairwise(self.milestones or ())):
            why = "each milestone must be above the one before it; sort them, and name each once"
            problems.append(Problem("milestones", list(self.milestones or ()), why))
        if problems:
            raise validation_error(problems)
        return self

    def _find_misplaced(self) -> Iterator[Problem]:
        """List the fields that the kind does not use, and those that it lacks."""
        allowed = _SCHEDULE_FIELDS[self.kind]
        for name in sorted(frozenset[str]().union(*_SCHEDULE_FIELDS.values())):
            value = getattr(self, name)
            if value is not None and name not in allowed:
                shown = list(value) if isinstance(value, tuple) else value
                yield Problem(name, shown, f"the kind '{self.kind}' does not use it; remove it")
            if value is None and name in allowed and name in _REQUIRED:
                yield Problem(name, None, f"the kind '{self.kind}' needs it; {_REQUIRED[name]}")

    def rate(self, first: float, done: int) -> float:
        """Return the learning rate after ``done`` rounds if that of the first round is ``first``."""
        if self.period is not None:
            minimum, (passed, length) = self.minimum or 0.0, self._place_in_period(done)
            return minimum + (first - minimum) * (1 + math.cos(math.pi * passed / length)) / 2
        for _ in range(bisect.bisect_right(self.milestones or (), done)):
            first *= 0.1 if self.gamma is None else self.gamma  # one factor at a time, as torch multiplies
        return first

    def _place_in_period(self, done: int) -> tuple[int, int]:
        """Return how many rounds of the current period have passed after ``done`` rounds, and its length."""
        length, multiplier = self.period or 1, self.multiplier or 1
        if multiplier == 1:
            return done % length, length
        while done >= length:
            done -= length
            length *= multiplier
        return done, length


class BatchAugment(Section):
    """Random changes of the images that a client trains on, drawn again for each batch. Evaluation has none.

    Args:
        crop: greatest shift in pixels: each side of an image is padded with this many black pixels, then it is cropped.
        flip: mirror each image left to right with probability 0.5.
    """

    crop: Annotated[int, Field(ge=0, le=1000)] = 0
    flip: bool = False

    @model_validator(mode="after")
    def _check_fields(self) -> BatchAugment:
        if not self.crop and not self.flip:
            raise validation_error([Problem("crop", None, "nothing would change; set crop, such as 4, or flip: true")])
        return self


class Training(Section):
    """A client's training in a task: gradient descent in batches.

    Args:
        epochs: passes over the client's samples in a task.
        batch: samples in a step.
        optimiser: torch's optimiser with its defaults. `rmsprop-keras` and `adam-keras` have Keras's defaults: rho 0.9
            instead of 0.99 for RMSprop, and an epsilon of 1e-7 for both.
        keep_optimiser: a client's optimisers last from task to task in its private memory, and momentum with them. By
            default each task starts with a new optimiser.
        lr: learning rate of the first round.
        lr_decay: factor for the learning rate after each round.
        schedule: other changes of the learning rate from round to round; null: `lr_decay` alone. Give one of the two.
        sampling: samples of an epoch. `shuffled`: each sample once. `balanced`: as many draws with replacement, where
            each class that the client has is equally likely; needs a data set with classes.
        augment: random crops and flips of the images of a batch, as for CIFAR-10: `{crop: 4, flip: true}`; null: none.
        mosaic: probability that an image of a batch becomes a mosaic of four of the client's images; for detection.
        momentum: momentum of `sgd`; the other optimisers do not have it.
        weight_decay: weight decay, as torch's optimiser applies it.
        drop_last: leave out an epoch's last batch if it is not full and not the only one.
        precision: number format in training.
        device: `auto` uses a CUDA device if there is one. Results are bit-identical only on the same kind of device.
            Models are evaluated there too; a coordinator without a CUDA device evaluates on the processor.
    """

    epochs: Count = 1
    batch: Count = 32
    optimiser: OptimiserName = "sgd"
    keep_optimiser: bool = False
    lr: Annotated[float, Field(gt=0)] = 0.05
    lr_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    schedule: Schedule | None = None
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    augment: BatchAugment | None = None
    mosaic: Annotated[float, Field(ge=0, le=1)] = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    drop_last: bool = False
    precision: Literal["fp32", "amp", "fp16", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "cpu"

    @model_validator(mode="after")
    def _check_contradictions(self) -> Training:
        problems = [*self._find_contradictions()]
        if problems:
            raise validation_error(problems)
        return self

    def _find_contradictions(self) -> Iterator[Problem]:
        if self.momentum and self.optimiser != "sgd":
            yield Problem("momentum", self.momentum, f"the optimiser '{self.optimiser}' has no momentum; remove it")
        if self.schedule is not None and self.lr_decay != 1:
            yield Problem("lr_decay", self.lr_decay, "training.schedule is given, too; remove one of the two")
        minimum = self.schedule.minimum if self.schedule is not None else None
        if minimum is not None and minimum >= self.lr:
            why = f"the learning rate falls from {self.lr} (training.lr); choose a smaller minimum"
            yield Problem("schedule.minimum", minimum, why)

    def at_round(self, round: int) -> Training:
        """Return the training of ``round`` (from 1), with its learning rate."""
        done = round - 1
        lr = self.lr * self.lr_decay**done if self.schedule is None else self.schedule.rate(self.lr, done)
        return self.model_copy(update={"lr": lr, "lr_decay": 1.0, "schedule": None})
