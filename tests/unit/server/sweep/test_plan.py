"""A sweep starts only if every run is valid and fits its folder."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.experiment_file import parse_override
from fedquilt_server.runs.result_files import record_ending
from fedquilt_server.runs.run_folder import RunFolder
from fedquilt_server.status.results import FINISHED
from fedquilt_server.sweep.manifest import read_manifest, write_manifest
from fedquilt_server.sweep.plan import PlannedRun, SweepPlan, first_states, plan_sweep
from fedquilt_server.sweep.sweep_file import source_of, vary

DIGITS: dict[str, Any] = {
    "name": "digits", "rounds": 3, "data": {"set": "digits", "clients": 2}, "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg"},
}  # fmt: skip


def plan(folder: Path, axes: dict[str, Any], *changes: str, base: Any = DIGITS) -> SweepPlan:
    source = vary(source_of(base, "digits.yaml", "digits"), axes, "--vary ")
    return plan_sweep(source, [parse_override(text) for text in changes], folder)


def begin(run: PlannedRun, *, finish: bool = False) -> None:
    """Make the run's folder as a coordinator does."""
    folder = RunFolder(run.experiment, run.folder, resume=True)
    folder.claim()
    if finish:
        folder.finish()
        record_ending(run.folder, run.experiment, FINISHED)
    folder.release()


def test_every_run_has_its_experiment_and_its_folder(tmp_path: Path) -> None:
    made = plan(tmp_path, {"seed": [1, 2], "algorithm": [{"name": "fedprox", "mu": 0.5}]}, "rounds=9")
    assert [run.folder for run in made.runs] == [
        tmp_path / "seed=1,algorithm=fedprox-mu-0.5", tmp_path / "seed=2,algorithm=fedprox-mu-0.5",
    ]  # fmt: skip
    last = made.runs[1].experiment
    assert (last.seed, last.rounds, last.algorithm.name, last.algorithm.fields) == (2, 9, "fedprox", {"mu": 0.5})


def test_the_manifest_names_what_the_command_changes(tmp_path: Path) -> None:
    changes = ("rounds=9", "data.partition={scheme: uniform}", "model.name=mlp", "rounds=3")
    made = plan(tmp_path, {"training.lr": [0.1], "seed": [7], "data.clients": [3, 2], "data.set": ["digits"]}, *changes)
    write_manifest(tmp_path, made.manifest(first_states(made)))
    assert read_manifest(tmp_path).changed == {
        "training.lr": [0.1], "data.clients": [3, 2], "data.partition": {"scheme": "uniform"},
    }  # fmt: skip


def test_choosing_among_what_the_file_varies_is_no_change(tmp_path: Path) -> None:
    file = vary(source_of(DIGITS, "digits.yaml", "digits"), {"rounds": [3, 5]}, "file: ")
    source = vary(replace(file, added=()), {"rounds": [5], "training.lr": [0.1]}, "--vary ")
    assert plan_sweep(source, out=tmp_path).changed == {"training.lr": [0.1]}


def test_the_folder_follows_from_the_name() -> None:
    made = plan_sweep(vary(source_of(DIGITS, "digits.yaml", "x"), {"seed": [1]}, ""))
    assert made.folder == Path("runs/digits-sweep")


def test_every_invalid_run_is_named_at_once(tmp_path: Path) -> None:
    axes = {"seed": [1, -2], "algorithm.name": ["fedavg", "fedavgg"]}
    with pytest.raises(ExperimentError) as caught:
        plan(tmp_path, axes, "training.epochs=0")
    assert str(caught.value).splitlines() == [
        "--set training.epochs=0: training.epochs = 0: must be at least 1",
        "--vary algorithm.name=fedavgg: algorithm.name = 'fedavgg': unknown; did you mean 'fedavg'? "
        "(or package:factory for your own)",
        "    in the run seed=1, algorithm.name=fedavgg",
        "    in the run seed=-2, algorithm.name=fedavgg",
        "--vary seed=-2: seed = -2: must be at least 0",
        "    in the run seed=-2, algorithm.name=fedavg",
        "    in the run seed=-2, algorithm.name=fedavgg",
    ]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("training.lrr", "unknown key 'lrr'; did you mean 'lr'?"),
        ("trainin.lr", "unknown key 'trainin'; did you mean 'training'?"),
        ("rounds.first", "rounds has no keys; set rounds"),
        ("fleet.0.kin", "unknown key 'kin'; did you mean 'kind'?"),
        ("algorithm.muu", "unknown field; did you mean 'mu'?"),
        ("training..lr", "write it as dotted.path=value, such as training.lr=0.05"),
    ],
)
def test_a_mistaken_key_is_reported_once_whatever_its_values(tmp_path: Path, key: str, why: str) -> None:
    base = DIGITS | {"algorithm": {"name": "fedprox", "mu": 0.1}}
    with pytest.raises(ExperimentError) as caught:
        plan(tmp_path, {key: [1, 2, 3], "seed": [1, -2]}, base=base)
    assert str(caught.value).splitlines() == [
        f"--vary {key}: {why}",
        "--vary seed=-2: seed = -2: must be at least 0",
        *(f"    in the run {key}={value}, seed=-2" for value in (1, 2, 3)),
    ]


def test_a_mistaken_key_of_labels_is_reported_once(tmp_path: Path) -> None:
    labels = {"a": {"seed": 1, "training.lrr": 1}, "b": {"seed": 2, "training.lrr": 2}}
    with pytest.raises(ExperimentError) as caught:
        plan(tmp_path, {"way": labels})
    assert str(caught.value) == "--vary way: training.lrr: unknown key 'lrr'; did you mean 'lr'?"


@pytest.mark.parametrize("change", [{"algorithm.name": ["fedprox"]}, {"algorithm": [{"name": "fedprox", "mu": 0.5}]}])
def test_a_field_that_only_another_varied_algorithm_has_is_no_mistake(tmp_path: Path, change: dict[str, Any]) -> None:
    assert [run.experiment.algorithm.fields for run in plan(tmp_path, change | {"algorithm.mu": [1, 2]}).runs] == [
        {"mu": 1}, {"mu": 2},
    ]  # fmt: skip
    (one,) = plan(tmp_path, {"algorithm.mu": [1]}, "algorithm.name=fedprox").runs
    assert one.experiment.algorithm.fields == {"mu": 1}


@pytest.mark.parametrize("key", ["data.partition.classes.0", "model.hidden", "fleet.0.agents"])
def test_items_of_lists_and_parameters_of_models_can_vary(tmp_path: Path, key: str) -> None:
    data = DIGITS["data"] | {"partition": {"scheme": "per-class", "per_class": 20, "classes": [2, 5]}}
    made = plan(tmp_path, {key: [1, 2]}, base=DIGITS | {"data": data, "fleet": [{"kind": "a", "clients": 2}]})
    assert len(made.runs) == 2


def test_an_algorithm_without_its_field_gets_advice(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError) as caught:
        plan(tmp_path, {"algorithm.name": ["fedavg", "feddyn"]})
    assert str(caught.value).splitlines() == [
        "digits.yaml: algorithm.alpha: is missing; add it",
        "    in the run algorithm.name=feddyn",
        "To give each algorithm its own fields, vary the whole section, such as "
        "--vary 'algorithm={name: fedavg},{name: fedprox, mu: 0.1}'",
    ]


@pytest.mark.parametrize(
    ("axes", "changes", "words"),
    [
        ({}, [], "digits.yaml: nothing varies; add --vary"),
        ({"seed": [1, 2]}, ["seed=3"], "the runs seed=1 and seed=2 are the same experiment"),
        ({"training.lr": [1, 1.0]}, [], "the runs training.lr=1 and training.lr=1.0 are the same experiment"),
        ({"way": {"A": {"seed": 1}, "a": {"seed": 2}}}, [], "the runs way=A and way=a would share one folder"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(
    tmp_path: Path, axes: dict[str, Any], changes: list[str], words: str
) -> None:
    with pytest.raises(ExperimentError) as caught:
        plan(tmp_path, axes, *changes)
    assert words in str(caught.value)


def test_what_is_no_experiment_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"digits\.yaml: holds a list, not keys"):
        plan(tmp_path, {"seed": [1]}, base=[1])
    with pytest.raises(ExperimentError, match=r"digits\.yaml: holds a list, not keys"):
        plan(tmp_path, {}, base=[1])


def statuses(made: SweepPlan) -> list[str]:
    return [state.status for state in first_states(made)]


def test_the_folders_show_what_is_left(tmp_path: Path) -> None:
    made = plan(tmp_path, {"seed": [1, 2, 3, 4]})
    states = first_states(made)
    assert {state.status for state in states} == {"pending"}
    now = ["running", "failed", "running", "pending"]
    states = [state.model_copy(update={"status": status}) for state, status in zip(states, now, strict=True)]
    write_manifest(tmp_path, made.manifest(states))
    begin(made.runs[0], finish=True)
    begin(made.runs[1])
    assert statuses(made) == ["finished", "failed", "stopped", "pending"]
    result = made.runs[0].folder / "result.json"
    result.write_text(result.read_text().replace('"format": 2', '"format": 99'))  # of a newer version: not lost
    assert statuses(made) == ["finished", "failed", "stopped", "pending"]
    result.write_text("{")
    assert statuses(made) == ["stopped", "failed", "stopped", "pending"]
    result.unlink()
    assert statuses(made) == ["stopped", "failed", "stopped", "pending"]
    shutil.rmtree(made.runs[0].folder)
    assert statuses(made) == ["stopped", "failed", "stopped", "pending"]


def test_a_changed_experiment_is_an_error_that_names_the_change(tmp_path: Path) -> None:
    for run in plan(tmp_path, {"seed": [1, 2]}).runs:
        begin(run)
    with pytest.raises(RunFolderError) as caught:
        first_states(plan(tmp_path, {"seed": [1, 2, 3]}, "training.lr=0.5"))
    lines = str(caught.value).splitlines()
    assert len(lines) == 2, "the third has no folder yet"
    assert lines[0] == (
        f"{tmp_path}/seed=1 holds a run of another experiment (training.lr was 0.05 and is 0.5): choose another --out, "
        "or delete that folder"
    )


def test_a_sweep_may_grow_but_not_lose_its_runs(tmp_path: Path) -> None:
    small, large = plan(tmp_path, {"seed": [1, 2]}), plan(tmp_path, {"seed": [1, 2, 3]})
    states = [state.model_copy(update={"status": "finished"}) for state in first_states(small)]
    write_manifest(tmp_path, small.manifest(states))
    for run in small.runs:
        begin(run, finish=True)
    assert statuses(large) == ["finished", "finished", "pending"]
    with pytest.raises(
        RunFolderError, match=r"holds runs that this sweep does not have: seed=1\. Vary these values too"
    ):
        first_states(plan(tmp_path, {"seed": [2, 3]}))


def test_the_folder_of_a_run_is_no_place_for_a_sweep(tmp_path: Path) -> None:
    made = plan(tmp_path / "sweep", {"seed": [1]})
    begin(made.runs[0])
    with pytest.raises(RunFolderError, match="holds a run, not a sweep"):
        first_states(plan(made.runs[0].folder, {"seed": [1]}))


def test_a_damaged_run_does_not_stop_the_others(tmp_path: Path) -> None:
    made = plan(tmp_path, {"seed": [1, 2]})
    begin(made.runs[0])
    (made.runs[0].folder / "journal.sqlite").write_bytes(b"no journal" * 1000)
    assert statuses(made) == ["pending", "pending"]


def test_the_same_experiment_is_no_change(tmp_path: Path) -> None:
    made = plan(tmp_path, {"seed": [1]})
    begin(made.runs[0])
    again = plan(tmp_path, {"seed": [1]}, "rounds=3")
    assert dump_experiment(again.runs[0].experiment) == dump_experiment(made.runs[0].experiment)
    assert statuses(again) == ["pending"]
