"""What a report is made of: run folders, sweeps, and folders that hold either."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedquilt_common.errors import RunFolderError
from fedquilt_server.library.recorded_run import RecordedRun, find_runs, is_run_folder, name_runs, read_run
from fedquilt_server.status.settings import show_value
from fedquilt_server.sweep.manifest import SEED, PublishedTable, SweepManifest, SweptRun, holds_sweep, read_manifest


@dataclass(frozen=True)
class RunSources:
    """The runs of a report.

    Attributes:
        title: the name of the sweep, or of the folders.
        runs: the runs, each with a label of its own; including those without a folder.
        axes: the settings that a sweep varies, except for the seed.
        published: figures of papers that a sweep names.
        notes: for a sweep with such figures, the settings in which its runs differ from the sweep's file.
    """

    title: str
    runs: tuple[RecordedRun, ...]
    axes: tuple[str, ...] = ()
    published: tuple[PublishedTable, ...] = field(default=())
    notes: tuple[str, ...] = ()


def gather_runs(places: Sequence[Path]) -> RunSources:
    """Read the runs of the named folders: run folders, sweeps, or folders that hold runs.

    Raises:
        RunFolderError: a folder is missing or holds no run, or the list of a sweep is damaged.
    """
    manifests = {place: read_manifest(place) for place in places if holds_sweep(place)}
    runs = [run for place in places for run in _runs_of(place, manifests.get(place))]
    axes = dict.fromkeys(axis for manifest in manifests.values() for axis in manifest.vary if axis != SEED)
    published = [table for manifest in manifests.values() for table in manifest.published]
    names = [manifests[place].name if place in manifests else place.resolve().name for place in places]
    title = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    notes = [note for place, manifest in manifests.items() for note in _describe_changes(place, manifest)]
    return RunSources(title, tuple(name_runs(runs)), tuple(axes), tuple(published), tuple(notes))


def _describe_changes(place: Path, manifest: SweepManifest) -> Iterator[str]:
    """Yield what the command line changed, if the sweep has figures of a paper: they belong to the file's settings."""
    if manifest.published and manifest.changed:
        changed = ", ".join(f"{key} = {show_value(value)}" for key, value in manifest.changed.items())
        yield f"{place}: the published figures belong to the settings of the sweep's file; these runs have {changed}"


def _runs_of(place: Path, manifest: SweepManifest | None) -> Iterator[RecordedRun]:
    if manifest is not None:
        for swept in manifest.runs:
            yield _read_swept(place / swept.folder, swept)
    elif is_run_folder(place):
        yield read_run(place)
    else:
        folders = find_runs(place)
        if not folders:
            raise RunFolderError(
                f"{place}: holds no run; name a run folder, the folder of a sweep, or one that holds them"
            )
        yield from map(read_run, folders)


def _read_swept(folder: Path, swept: SweptRun) -> RecordedRun:
    """Read a run of a sweep; one that has left no result is as the sweep recorded it."""
    case = dict(swept.case)
    if is_run_folder(folder):
        run = read_run(folder)
        reason = run.reason if run.result or not swept.reason else swept.reason
        return replace(run, case=case, reason=reason)
    status = "interrupted" if swept.status == "running" else "damaged" if swept.status == "finished" else swept.status
    reasons = {"pending": "the sweep has not started it", "finished": "its folder is missing or holds no result"}
    return RecordedRun(folder, folder.name, status, swept.reason or reasons.get(swept.status, ""), case=case)
