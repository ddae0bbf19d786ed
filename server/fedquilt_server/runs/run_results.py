"""The content of ``result.json``, from a run folder and what the process has measured."""

from __future__ import annotations

from collections.abc import Sequence

from fedquilt_common import __version__
from fedquilt_server.history.history import History
from fedquilt_server.history.privacy_book import privacy_rows
from fedquilt_server.runs.journal import StoredCheckpoint
from fedquilt_server.runs.model_cut import read_model_cut
from fedquilt_server.runs.result_files import final_row
from fedquilt_server.runs.run_folder import RunFolder
from fedquilt_server.status.results import FORMAT, Ending, OwnMemory, Result
from fedquilt_server.status.training_memory import TrainingMemory, highest_peaks


def make_result(
    folder: RunFolder,
    last: StoredCheckpoint,
    history: History,
    ending: Ending,
    warnings: Sequence[str] = (),
    own_memory: OwnMemory | None = None,
) -> Result:
    """Return the result of a run after its finished rounds.

    Args:
        folder: the run's folder.
        last: its newest checkpoint.
        history: the replies of the run.
        ending: how the run ended, or that it still runs.
        warnings: what is wrong with the training.
        own_memory: memory of this process; None: not measured.
    """
    experiment, rounds = folder.experiment, folder.journal.results()
    size = rounds[-1].model_bytes if rounds else folder.blobs.blob(last.arrays).size
    memory = _training_memory(folder, history)
    return Result(
        format=FORMAT,
        version=__version__,
        name=experiment.name,
        run=folder.run,
        algorithm=experiment.algorithm.name,
        dataset=experiment.data.set,
        note=folder.journal.meta("note") or "",
        warnings=list(warnings),
        **ending.model_dump(),
        seed=experiment.seed,
        rounds=rounds,
        coordinator_memory=own_memory or OwnMemory(),
        memory=memory,
        model_cut=read_model_cut(folder.journal),
        privacy=privacy_rows(experiment, history.privacy),
        final={**final_row(rounds, size), **_model_digest(folder, last, ending), **highest_peaks(memory)},
    )


def _model_digest(folder: RunFolder, last: StoredCheckpoint, ending: Ending) -> dict[str, str]:
    """Return the SHA-256 of the global model; nothing while the run goes on, so that no round waits for it."""
    return {} if ending.status == "running" else {"global_sha256": folder.blobs.sha256(last.arrays)}


def _training_memory(folder: RunFolder, history: History) -> list[TrainingMemory]:
    """Return a row for each client that has trained, in client order."""
    variant = folder.experiment.variant
    return [tally.row(client, variant(client).training.precision) for client, tally in sorted(history.memory.items())]
