"""The privacy account of one task: what its client's samples have spent before, and what the task adds."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.algorithm_api import Reply
from fedquilt_common.algorithm_api.records import FITS
from fedquilt_common.errors import PrivacyBudgetError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.privacy.ledger import LedgerEntry, ledger_file, measure_ledgers, read_ledger
from fedquilt_common.privacy.meter import PrivacyMeter, SpendingLimit
from fedquilt_common.privacy.noise_key import board_key
from fedquilt_common.privacy.samples_spent import find_related, keep_samples
from fedquilt_common.privacy.secret_noise import open_secret
from fedquilt_common.private_memory import without_secrets
from fedquilt_common.secure_aggregation.tasks import EXCHANGE, without_own
from fedquilt_common.training_jobs import Job, Spending
from fedquilt_common.wire.codec import FileArrays

PUBLIC_METRICS: Final = frozenset({"train_seconds", "steps", "kd_loss", "accuracy", "samples", FITS})
"""Metrics of a private client that leave the board: of time, the board's memory, the experiment, or public samples."""


@dataclass(frozen=True)
class PrivacyAccount:
    """The account of one task.

    Attributes:
        job: the task.
        run: identifier of its run.
        folder: the board's ledgers.
        ids: which samples the client has, uint64 of shape (n,).
        own: whether they are the board's own.
        seen: bytes that each related ledger had when the task began, by name.
        meter: charges the training.
    """

    job: Job
    run: str
    folder: Path
    ids: NDArray[np.uint64]
    own: bool
    seen: Mapping[str, int]
    meter: PrivacyMeter

    def withhold(self, reply: Reply) -> Reply:
        """Return the reply without the number of samples and the loss, which reveal more than training does."""
        metrics = {name: value for name, value in reply.metrics.items() if name in PUBLIC_METRICS}
        if self.meter.charges:
            metrics["epsilon"] = self.meter.epsilon
        return replace(reply, weight=1.0, metrics=metrics)

    def spending(self) -> Spending | None:
        """Return what the ledger must record before the reply is committed; None if nothing is spent.

        Raises:
            RunFolderError: a ledger is damaged.
        """
        if not self.meter.charges:
            return None
        job, meter = self.job, self.meter
        task = self.run, job.client, job.round, job.exchange
        spent = meter.epsilon, meter.budget.delta
        entries = [LedgerEntry(*task, digest, charge, *spent).encode() for digest, charge in meter.charges.items()]
        now = measure_ledgers(self.folder, find_related(self.folder, self.ids, own=self.own))
        ledger = keep_samples(self.folder, self.ids, own=self.own)
        return Spending(ledger=ledger, entries=entries, seen=now, stale=now != self.seen)


def open_account(
    job: Job, run: str, experiment: Experiment, privacy: Privacy, passes: int, ids: NDArray[np.uint64]
) -> PrivacyAccount:
    """Return the account of a task.

    Args:
        job: the task.
        run: identifier of its run.
        experiment: of the run.
        privacy: the client's.
        passes: passes over its samples that the client may still make in the run, with those of this task.
        ids: which samples the client has, uint64 of shape (n,).

    Raises:
        PrivacyBudgetError: a replay cannot know the noise.
        RunFolderError: a ledger is damaged.
    """
    if job.ledgers is None:
        raise PrivacyBudgetError("a replay cannot train with `privacy`: the noise is known to the board alone")
    own = experiment.data.delivery == "own"
    keep_samples(job.ledgers, ids, own=own)  # before the training, so that others see that these samples are in use
    related = find_related(job.ledgers, ids, own=own)
    seen = measure_ledgers(job.ledgers, related)  # before they are read: one that grows meanwhile is noticed
    known = [entry for name in related for entry in read_ledger(ledger_file(job.ledgers, name))]
    spent = {entry.training: entry.charge for entry in known}
    mine = [entry for entry in known if (entry.run, entry.client) == (run, job.client)]
    noise = mine[-1].charge.noise if mine else None
    meter = PrivacyMeter(privacy, passes, spent, noise, functools.partial(open_task_secret, job, experiment, privacy))
    meter.owner = _owner_limit(job.max_epsilon, privacy, known)
    return PrivacyAccount(job, run, job.ledgers, ids, own, seen, meter)


def check_owner_limit(privacy: Privacy | None, most: float | None, delta: float | None) -> None:
    """Check that the board's owner allows the training of a client.

    Args:
        privacy: the client's local differential privacy; None without.
        most: the largest epsilon that the owner allows; None: no limit.
        delta: the largest delta that the owner allows; None: no limit.

    Raises:
        PrivacyBudgetError: the owner does not allow it.
    """
    if most is None:
        return
    if privacy is None:
        raise PrivacyBudgetError(
            f"the board's owner allows only training with local differential privacy, up to epsilon {most:g} "
            f"(--max-epsilon); add privacy: {{epsilon: {most:g}}}, or ask the owner"
        )
    if privacy.epsilon > most:
        raise PrivacyBudgetError(
            f"privacy.epsilon = {privacy.epsilon:g}: the board's owner allows at most epsilon {most:g} "
            "(--max-epsilon); choose a smaller privacy.epsilon, or ask the owner"
        )
    if delta is not None and privacy.delta > delta:
        raise PrivacyBudgetError(
            f"privacy.delta = {privacy.delta:g}: the board's owner allows at most delta {delta:g} "
            "(--max-delta); choose a smaller privacy.delta, or ask the owner"
        )


def _owner_limit(most: float | None, privacy: Privacy, known: Sequence[LedgerEntry]) -> SpendingLimit | None:
    """Return the owner's limit at the smallest delta of all trainings; None if the budget, within it, is stricter.

    The same training has a smaller epsilon at a larger delta: an experiment that names one spends no less.
    """
    delta = min((entry.delta for entry in known), default=privacy.delta)
    if most is None or delta >= privacy.delta:
        return None
    return SpendingLimit(most, delta, "ask the board's owner for a larger --max-epsilon")


def _memory_digest(job: Job, *, secure: bool) -> str | None:
    """Return the digest of what the algorithm remembers: the secrets of secure aggregation change no training."""
    if job.memory is None or not secure:
        return job.memory.digest if job.memory is not None else None
    whole = hashlib.sha256()
    for name, array in sorted(without_secrets(FileArrays(job.memory.path)).items()):
        whole.update(f"{name} {array.shape} {array.dtype}".encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()


def _without_relays(experiment: Experiment) -> Experiment:
    """Return the experiment as without relays, which change no bit of the model."""
    fleet = tuple(line.model_copy(update={"relay": False}) for line in experiment.fleet)
    return experiment.model_copy(update={"fleet": fleet})


def open_task_secret(
    job: Job, experiment: Experiment, privacy: Privacy, facts: Sequence[Any]
) -> tuple[str, np.random.Generator]:
    """Return the digest and the generator of a training: everything that its result depends on decides the noise."""
    assert job.ledgers is not None  # noqa: S101 - open_account has checked it
    inputs = [patch.digest for patch in job.patches], _memory_digest(job, secure=experiment.secure_aggregation)
    exchange = job.scalars.get(EXCHANGE, job.exchange)
    task = job.client, job.round, exchange, job.kind, sorted(without_own(job.scalars).items()), job.slice
    whole = hashlib.sha256(_without_relays(experiment).model_dump_json().encode()).hexdigest()
    return open_secret(board_key(job.ledgers), [*task, *inputs, whole, privacy.model_dump(), *facts])
