"""The jobs that a training process does, and how it is started; an agent and a replay start such processes.

A job is one JSON line on the standard input of the process. ``worker_lines.py`` has the other lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from fedquilt_common.files.digests import has_digest
from fedquilt_common.files.file_stamp import FileStamp
from fedquilt_common.types import ExchangeId, Scalar
from fedquilt_common.wire.round_messages import SliceMessage

_WORKER: Final = "fedquilt_client.worker"
AGENT_MODULES: Final = ("fedquilt_client.cli",)
"""What every agent imports."""
WORKER_MODULES: Final = ("torch", "fedquilt_common.training.learner", "fedquilt_client.context", _WORKER)
"""What every training process imports."""
PRIVATE_MODULE: Final = "fedquilt_common.training.private_gradients"
"""What those import that train with differential privacy; it needs Opacus."""


_known_path = lru_cache(64)(Path)
KnownPath = Annotated[Path, PlainValidator(lambda given: given if isinstance(given, Path) else _known_path(given))]
"""A path that many jobs share, so it is parsed once."""


@dataclass(frozen=True)
class CheckedFile:
    """A file and the digest that its content must have.

    Attributes:
        digest: in hex; None if it is unknown.
        intact: the stamp of the file when the agent found it intact, a moment ago; None without.
    """

    path: KnownPath
    digest: str | None
    intact: FileStamp | None = None

    def is_intact(self) -> bool:
        """Return whether the file exists and has its digest.

        Raises:
            OSError: the file is there but cannot be read; it may be intact.
        """
        try:
            return self.path.exists() if self.digest is None else has_digest(self.path, self.digest)
        except FileNotFoundError:
            return False


class JobData(BaseModel):
    """The samples of a client whose board does not have the data set.

    Attributes:
        shard: the client's samples; None if the board has samples of its own.
        public: the public samples; None if the experiment has none.
        test: the official test samples; None unless clients test on them.
        own: a file with the client's own samples, or ``package:factory``; None if the samples are in ``shard``.
    """

    model_config = ConfigDict(frozen=True)

    shard: CheckedFile | None = None
    public: CheckedFile | None = None
    test: CheckedFile | None = None
    own: str | None = None

    @property
    def files(self) -> list[CheckedFile]:
        """The files that have digests."""
        return [file for file in (self.shard, self.public, self.test) if file is not None]


class Spending(BaseModel):
    """What a task has spent of its client's privacy.

    Attributes:
        ledger: name of the ledger of the client's samples.
        entries: the ledger's entries, as ``LedgerEntry.encode`` returns them.
        seen: bytes of each related ledger that the task has counted, by name.
        stale: whether another task has spent on the same samples while this one trained.
    """

    model_config = ConfigDict(frozen=True)

    ledger: str
    entries: list[dict[str, Any]]
    seen: dict[str, int]
    stale: bool


class Job(BaseModel):
    """One task of one client, with the paths of its inputs and outputs; or the same task of several clients.

    Attributes:
        number: unique among the jobs of one agent or replay.
        run_file: the run's message, as JSON.
        fingerprint: of the task; part of the reply's header.
        since: the client's last reply that counts.
        labels: whether the reply carries soft labels.
        patches: the received patches, in the order of the manifest.
        slices: the sub-models of the exchange; ``slice`` is the position of this task's own.
        memory: the client's private memory; None if it has none.
        reply: path to which the worker writes the reply.
        memory_out: path to which the worker writes new private memory.
        spare: a file that may be there, and that the worker may write over to make the reply; None: no such file.
        allowed: packages from which the experiment may import.
        budget: bytes that training may take; None allows all free memory.
        limit_file: holds the bytes that training must stay below after it ran out of memory.
        sharing: training processes that share the free memory.
        fitting: shapes of the only sub-model that counts as fitting; None: the free memory decides.
        data: the client's samples; None: the board has the data set.
        ledgers: folder of the board's privacy ledgers; None in a replay.
        max_epsilon: the most that the board's owner allows for any samples; None: no limit.
        max_delta: the largest delta at which ``max_epsilon`` may count; None: the experiments choose it.
        members: client and fingerprint of each task of a joint job, whose ``client`` is the first of them: it writes
            the sum of their replies. Empty: the job is for one client.
        measured: whether the reply carries what the training took.
        metered: whether its energy may be known. The process asks for that of a long job with a ``TrainedLine``.
        watts: the job's share of the board's power when it began, from which the energy of a short one follows; None:
            unknown.
    """

    model_config = ConfigDict(frozen=True)

    number: int
    run_file: KnownPath
    client: int
    round: int
    exchange: int
    kind: str
    scalars: dict[str, Scalar]
    fingerprint: str
    since: ExchangeId | None = None
    labels: bool = False
    patches: list[CheckedFile]
    slices: list[SliceMessage] = Field(default_factory=list)
    slice: int | None = None
    memory: CheckedFile | None
    reply: Path
    memory_out: Path
    spare: KnownPath | None = None
    allowed: list[str]
    budget: int | None = None
    limit_file: KnownPath | None = None
    sharing: int = 1
    fitting: dict[str, tuple[int, ...]] | None = None
    measured: bool = False
    metered: bool = False
    watts: float | None = None
    data: JobData | None = None
    ledgers: KnownPath | None = None
    max_epsilon: float | None = None
    max_delta: float | None = None
    members: list[tuple[int, str]] = Field(default_factory=list)

    @property
    def task_ids(self) -> list[tuple[int, str]]:
        """The client and the fingerprint of each task."""
        return self.members or [(self.client, self.fingerprint)]


def worker_command(threads: int) -> list[str]:
    """Return the command that starts a training process."""
    return [sys.executable, "-m", _WORKER, str(threads)]


def worker_environment(threads: int, environment: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the environment of a training process, with the number of threads of each library.

    Args:
        threads: threads of one operation. Sums are split over them, so another number gives other bits.
        environment: the variables besides; None: those of this process.
    """
    count = str(threads)
    usual = os.environ if environment is None else environment
    return {**usual, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}
