"""A recorded run: its experiment, events, checkpoints and kept replies, read without changing its folder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_file import parse_experiment
from fedquilt_common.files.digests import digest_file
from fedquilt_common.files.yaml_text import load_yaml
from fedquilt_common.types import ClientId
from fedquilt_server.central.plan import CENTRAL
from fedquilt_server.round.events import Event, Replied, skip_dropped
from fedquilt_server.runs.blob_store import BLOBS, REPLIES
from fedquilt_server.runs.journal import Journal, StoredCheckpoint, copy_journal, peek_meta
from fedquilt_server.runs.reply_files import ReplyFiles, ReplyPlace, reply_name
from fedquilt_server.runs.result_files import OTHER_VERSION
from fedquilt_server.status.run_file_names import EXPERIMENT, JOURNAL, MODEL


@dataclass(frozen=True)
class RecordedRound:
    """The events of one round.

    Attributes:
        round: its number, from 1.
        events: with their sequence numbers, in the order in which the coordinator handled them; without those that a
            recovery skips.
        checkpoint: the checkpoint that closes the round; None if the journal ends within the round.
    """

    round: int
    events: Sequence[tuple[int, Event]]
    checkpoint: StoredCheckpoint | None


@dataclass(frozen=True)
class Recording:
    """What a run folder has recorded.

    Attributes:
        folder: the run folder; nothing in it is changed.
        run: identifier of the run.
        experiment: the resolved experiment.
        start: the checkpoint before round 1.
        rounds: the rounds with events or a checkpoint, oldest first.
        finished: whether the run wrote its final results.
    """

    folder: Path
    run: str
    experiment: Experiment
    start: StoredCheckpoint
    rounds: Sequence[RecordedRound]
    finished: bool

    @property
    def closed_rounds(self) -> int:
        """Number of rounds whose state the journal has."""
        return sum(part.checkpoint is not None for part in self.rounds)

    def read_model_digest(self) -> str | None:
        """Return the SHA-256 of the run's ``global.safetensors``; None if the run has not written it."""
        path = self.folder / MODEL
        return digest_file(path, "sha256") if path.is_file() else None

    @cached_property
    def replies(self) -> Sequence[Replied]:
        """All recorded replies, even those that did not count."""
        return [event for part in self.rounds for _, event in part.events if isinstance(event, Replied)]

    @cached_property
    def kept_clients(self) -> frozenset[ClientId]:
        """The clients whose recorded replies are all still in the run folder."""
        lost = {
            event.client
            for event in self.replies
            if event.carrier is not None or not self.reply_place(event).path.exists()
        }
        return frozenset(event.client for event in self.replies) - lost

    @cached_property
    def _kept(self) -> ReplyFiles:
        return ReplyFiles(self.folder / BLOBS / REPLIES)

    def reply_place(self, event: Replied) -> ReplyPlace:
        """Return where the run folder keeps a reply, whether the file exists or not."""
        return self._kept.find(reply_name(event.client, event.round, event.exchange, event.digest))


def read_run_id(folder: Path) -> str:
    """Return the identifier of the run in a folder.

    Raises:
        RunFolderError: the folder holds no run that has started.
    """
    source = folder / JOURNAL
    run = peek_meta(source, "run")
    if run is None:
        why = "holds no run that has started" if source.exists() else "is missing, and a replay needs it"
        raise RunFolderError(f"{source} {why}: name a run folder, such as one below runs/")
    return run


def read_recording(folder: Path, journal: Path) -> Recording:
    """Read a recorded run.

    Args:
        folder: the run folder; its coordinator may still be running.
        journal: path to which the journal is copied before it is read.

    Raises:
        RunFolderError: the folder holds no run that has started, or its journal is damaged.
    """
    copy_journal(folder / JOURNAL, journal)
    opened = Journal(journal, folder / JOURNAL)
    try:
        return _read(folder, opened)
    finally:
        opened.close()


def _read(folder: Path, journal: Journal) -> Recording:
    text, run, checkpoints = journal.meta("experiment"), journal.meta("run"), journal.checkpoints()
    if text is None or run is None or not checkpoints:
        raise RunFolderError(f"{folder}: its journal holds no run that has started; name the folder of another run")
    if _algorithm_of(text) == CENTRAL:
        raise RunFolderError(
            f"{folder}: `fedquilt central` has trained in one place, so no board has sent a reply that could be "
            "replayed; name the folder of another run"
        )
    experiment = _parse(text, folder)
    rounds = _split(list(journal.events_after(0)), checkpoints)
    return Recording(folder, run, experiment, checkpoints[0], rounds, journal.meta("finished") is not None)


def _parse(text: str, folder: Path) -> Experiment:
    try:
        return parse_experiment(text, EXPERIMENT)
    except ExperimentError as error:
        raise RunFolderError(f"{folder / JOURNAL}: {OTHER_VERSION.format(error)}") from None


def _algorithm_of(text: str) -> object:
    """Return the name of the algorithm in an experiment's YAML; None if it has none."""
    raw = load_yaml(text, "journal")
    section = raw.get("algorithm") if isinstance(raw, dict) else None
    return section.get("name") if isinstance(section, dict) else None


def _split(events: Sequence[tuple[int, Event]], checkpoints: Sequence[StoredCheckpoint]) -> list[RecordedRound]:
    """Return the events of each round; those after the last checkpoint belong to a round that is not closed."""
    rounds = []
    for before, closing in itertools.pairwise(checkpoints):
        rounds.append(RecordedRound(closing.round, _between(events, before.seq, closing.seq), closing))
    last = checkpoints[-1]
    rest = skip_dropped([(seq, event) for seq, event in events if seq > last.seq])
    return [*rounds, RecordedRound(last.round + 1, rest, None)] if rest else rounds


def _between(events: Sequence[tuple[int, Event]], after: int, until: int) -> list[tuple[int, Event]]:
    return skip_dropped([(seq, event) for seq, event in events if after < seq <= until])
