"""A sweep that may start: every run's experiment is valid, and its folder fits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment, dump_experiment
from fedquilt_common.experiment_file import Override, changed_keys, explain_override_path, make_experiment
from fedquilt_server.runs import final_result
from fedquilt_server.runs.other_experiment import name_other_experiment
from fedquilt_server.runs.run_folder import inspect_folder
from fedquilt_server.sweep.axes import SweepAxis, Variation, combine
from fedquilt_server.sweep.manifest import (
    SEED,
    AxisValue,
    PublishedTable,
    SweepManifest,
    SweptRun,
    SweptStatus,
    holds_sweep,
    read_manifest,
)
from fedquilt_server.sweep.sweep_file import SweepSource

_OTHER_FOLDER: Final = "choose another --out"


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: its variation, its folder and its experiment."""

    variation: Variation
    folder: Path
    experiment: Experiment


@dataclass(frozen=True)
class SweepPlan:
    """A sweep whose experiments are valid.

    Args:
        name: name of the sweep.
        folder: the folder of its runs.
        axes: what varies.
        published: figures of a paper.
        changed: as in ``SweepManifest``.
        runs: the runs, in the order in which they start.
    """

    name: str
    folder: Path
    axes: tuple[SweepAxis, ...]
    published: tuple[PublishedTable, ...]
    changed: Mapping[str, Any]
    runs: tuple[PlannedRun, ...]

    def manifest(self, runs: Sequence[SweptRun]) -> SweepManifest:
        """Return the content of ``sweep.json`` with these runs."""
        vary = {axis.name: axis.values for axis in self.axes}
        return SweepManifest(
            name=self.name, vary=vary, published=list(self.published), changed=dict(self.changed), runs=list(runs)
        )


def plan_sweep(source: SweepSource, overrides: Sequence[Override] = (), out: Path | None = None) -> SweepPlan:
    """Make the experiment of every run.

    Args:
        source: the sweep.
        overrides: changes to every experiment, after what varies.
        out: the folder of the sweep; None: ``runs/NAME``.

    Raises:
        ExperimentError: nothing varies, no run is left, an experiment is not valid, or two runs are the same; lists
            every problem.
    """
    if not source.axes:
        make_experiment(source.base, source.base_place)  # an empty file has other errors than that nothing varies
        raise ExperimentError(
            f"{source.base_place}: nothing varies; add --vary KEY=VALUE,VALUE, such as --vary seed=1,2,3"
        )
    variations = combine(source.axes, source.exclude)
    if not variations:
        raise ExperimentError(f"{source.name}: exclude leaves out every run; remove some of its rules")
    folder = Path("runs") / source.name if out is None else out
    experiments = _make_experiments(source, variations, overrides)
    runs = [PlannedRun(each, folder / each.folder, made) for each, made in zip(variations, experiments, strict=True)]
    _check_distinct(runs)
    changed = {**_changed_by_axes(source), **changed_keys(source.base, overrides)}
    return SweepPlan(source.name, folder, source.axes, source.published, changed, tuple(runs))


def _changed_by_axes(source: SweepSource) -> dict[str, list[AxisValue]]:
    """Return the axes that the file does not have, with their values; not the seed, which changes chance only."""
    return {
        axis.name: axis.values
        for axis in source.axes
        if axis.name in source.added and axis.name != SEED
        and any(changed_keys(source.base, [override]) for override in axis.overrides)
    }  # fmt: skip


def first_states(plan: SweepPlan) -> list[SweptRun]:
    """Return each run with the status that its folder shows.

    Raises:
        RunFolderError: a folder holds a run of another experiment, or the sweep's folder holds another run or sweep;
            lists every problem.
    """
    before = _read_before(plan)
    problems = [problem for run in plan.runs if (problem := _folder_problem(run))]
    if problems:
        raise RunFolderError("\n".join(problems))
    return [_first_state(run, before.get(run.variation.folder)) for run in plan.runs]


def _make_experiments(
    source: SweepSource, variations: Sequence[Variation], overrides: Sequence[Override]
) -> list[Experiment]:
    mistaken = _find_mistaken_keys(source, overrides)
    made = list[Experiment]()
    problems: dict[str, list[str]] = {}
    for variation in variations:
        valid = [override for override in variation.overrides if override.path not in mistaken]
        try:
            made.append(make_experiment(source.base, source.base_place, [*valid, *overrides]))
        except ExperimentError as error:
            for line in str(error).splitlines():
                problems.setdefault(line, []).append(variation.label)
    if mistaken or problems:
        lines = [*mistaken.values(), *_problem_lines(problems, len(variations)), *_advice(source, problems)]
        raise ExperimentError("\n".join(lines))
    return made


def _find_mistaken_keys(source: SweepSource, overrides: Sequence[Override]) -> dict[str, str]:
    """Return an error for each varied key that no experiment has, whatever its value. Keys are dotted paths."""
    varied = {override.path: axis for axis in source.axes for override in axis.overrides}
    has_other_algorithm = {"algorithm", "algorithm.name"} & {*varied, *(override.path for override in overrides)}
    base = {} if has_other_algorithm else source.base
    found = {path: explain_override_path(path, base) for path in varied}
    return {path: _key_error(varied[path], path, why) for path, why in found.items() if why}


def _key_error(axis: SweepAxis, path: str, why: str) -> str:
    return f"{axis.place}: {path}: {why}" if axis.labelled else f"{axis.place}: {why}"


def _problem_lines(problems: Mapping[str, Sequence[str]], runs: int) -> Iterator[str]:
    """Yield each problem once, then the runs that have it, unless all do."""
    for problem, labels in problems.items():
        yield problem
        if len(labels) < runs:
            yield from (f"    in the run {label}" for label in labels)


def _advice(source: SweepSource, problems: Iterable[str]) -> Iterator[str]:
    """Explain how to vary algorithms that need fields of their own."""
    names = any(axis.name == "algorithm.name" for axis in source.axes)
    if names and any(": algorithm." in problem and ": algorithm.name" not in problem for problem in problems):
        example = "algorithm={name: fedavg},{name: fedprox, mu: 0.1}"
        yield f"To give each algorithm its own fields, vary the whole section, such as --vary '{example}'"


def _check_distinct(runs: Sequence[PlannedRun]) -> None:
    """Check that no two runs have one folder, even where capitals do not matter, or one experiment."""
    folders: dict[str, PlannedRun] = {}
    experiments: dict[str, PlannedRun] = {}
    for run in runs:
        other = folders.setdefault(run.folder.name.casefold(), run)
        if other is not run:
            raise ExperimentError(
                f"the runs {other.variation.label} and {run.variation.label} would share one folder on systems that "
                "ignore capitals; rename one of the values"
            )
        other = experiments.setdefault(json.dumps(run.experiment.model_dump(mode="json")), run)
        if other is not run:
            raise ExperimentError(
                f"the runs {other.variation.label} and {run.variation.label} are the same experiment. --set, or a "
                "later axis, sets the key again that varies: leave that one out"
            )


def _read_before(plan: SweepPlan) -> dict[str, SweptRun]:
    """Return the runs of the sweep that the folder holds, by folder."""
    if inspect_folder(plan.folder).experiment is not None:
        raise RunFolderError(f"{plan.folder} holds a run, not a sweep: {_OTHER_FOLDER}")
    if not holds_sweep(plan.folder):
        return {}
    before = {run.folder: run for run in read_manifest(plan.folder).runs if run.status != "pending"}
    lost = [run.label for name, run in before.items() if name not in {run.folder.name for run in plan.runs}]
    if lost:
        raise RunFolderError(
            f"{plan.folder} holds runs that this sweep does not have: {'; '.join(lost)}. Vary these values too, since "
            f"what is finished is skipped, or {_OTHER_FOLDER}"
        )
    return before


def _folder_problem(run: PlannedRun) -> str:
    """Return why a run cannot go on in its folder; empty if it can."""
    try:
        before = inspect_folder(run.folder).experiment
    except RunFolderError:
        return ""  # this run alone fails, and names the damage
    other = name_other_experiment(run.folder, before, dump_experiment(run.experiment))
    return f"{other}: {_OTHER_FOLDER}, or delete that folder" if other else ""


def _first_state(run: PlannedRun, before: SweptRun | None) -> SweptRun:
    fresh = SweptRun(folder=run.variation.folder, settings=dict(run.variation.settings), label=run.variation.label)
    if is_finished(run.folder):
        return fresh.model_copy(update={"status": "finished", "exit_code": 0})
    if before is None or before.status == "finished":
        return fresh
    status: SweptStatus = "stopped" if before.status == "running" else before.status
    return fresh.model_copy(update={"status": status, "reason": before.reason, "exit_code": before.exit_code})


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished run and its result; a damaged one does not."""
    try:
        return final_result.is_finished(folder)
    except RunFolderError:
        return False
