"""Training in one place: what it trains on, and that other commands read its folder like any other run's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from fedquilt_common.errors import ExperimentError, RunFailedError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.models.static_norm import StaticBatchNorm
from fedquilt_common.wire.codec import FileArrays
from fedquilt_server.central.central_run import CentralRun, CentralStoppedError
from fedquilt_server.central.plan import plan_central
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.library.recorded_run import read_run
from fedquilt_server.library.run_snapshot import read_snapshot
from fedquilt_server.report.contents import make_contents
from fedquilt_server.report.sources import gather_runs

SMALL: dict[str, Any] = {
    "name": "small", "seed": 3, "rounds": 4, "data": {"set": "digits", "clients": 4},
    "model": {"name": "mlp", "hidden": [16]}, "algorithm": {"name": "fedavg"},
    "training": {"epochs": 2, "batch": 128, "lr": 0.1, "momentum": 0.9},
}  # fmt: skip


def experiment(changes: Mapping[str, Any] | None = None) -> Experiment:
    return Experiment.model_validate({**SMALL, **(changes or {})})


def never() -> bool:
    return False


def after(steps: int) -> Callable[[], bool]:
    """Return a function that is True from its ``steps``-th call on."""
    left = iter(range(steps))
    return lambda: next(left, None) is None


def train(
    folder: Path,
    changes: Mapping[str, Any] | None = None,
    *,
    stop: Callable[[], bool] = never,
    epochs: int | None = None,
) -> dict[str, bytes]:
    """Train in a folder; returns the model's bits."""
    run = CentralRun(plan_central(experiment(changes), 0.0, epochs), folder)
    try:
        run.execute(stop, lambda row: None)
    finally:
        run.release()
    return read_model(folder)


def read_model(folder: Path) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in FileArrays(folder / "global.safetensors").items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished training."""
    folder = tmp_path_factory.mktemp("central") / "run"
    train(folder)
    return folder


@pytest.mark.parametrize(
    ("epochs", "passes"), [(None, (2, 2, 2, 2)), (8, (2, 2, 2, 2)), (5, (2, 2, 1)), (1, (1,)), (9, (2, 2, 2, 2, 1))]
)
def test_the_passes_are_divided_into_rounds(epochs: int | None, passes: tuple[int, ...]) -> None:
    plan = plan_central(experiment(), 0.25, epochs)
    rounds = range(1, plan.recorded.rounds + 1)
    assert tuple(plan.count_passes(number) for number in rounds) == passes
    assert plan.recorded.algorithm.name == "central"
    assert plan.recorded.algorithm.fields == {"epochs": sum(passes)}
    assert plan.recorded.data.holdout == 0.25
    assert plan.source == experiment()


def test_a_data_set_without_test_samples_is_refused_unless_the_clients_keep_some(tmp_path: Path) -> None:
    data = {**SMALL["data"], "set": "tests.unit.server.lab.test_test_samples:untested"}
    with pytest.raises(ExperimentError, match=r"untested: it has no test samples.*data\.holdout.*data\.mixed"):
        train(tmp_path / "run", {"data": data})
    with pytest.raises(ExperimentError, match=r"unlabelled: it has no test samples with labels, .*data\.holdout"):
        train(tmp_path / "run", {"data": {**data, "set": "tests.unit.server.lab.test_test_samples:unlabelled"}})
    assert not (tmp_path / "run").exists()
    train(tmp_path / "run", {"data": {**data, "holdout": 0.25, "mixed": True}}, epochs=1)


def test_it_trains_without_the_experiments_privacy_and_records_none(tmp_path: Path) -> None:
    budget, variant = {"epsilon": 3, "clip": 0.5}, {"model": SMALL["model"]}
    lines = [{"clients": 2, "privacy": budget}, {"clients": 2, "variants": [{**variant, "privacy": budget}]}]
    private = {"privacy": {**budget, "epsilon": 8}, "fleet": lines}
    without = {"fleet": [{"clients": 2}, {"clients": 2, "variants": [variant]}]}
    for changes in (private, {"privacy": {**budget, "mode": "central"}, "fleet": without["fleet"]}):
        plan = plan_central(experiment(changes), 0.0, None)
        assert plan.drops_privacy
        assert (plan.source, plan.recorded) == (experiment(without), plan_central(experiment(without), 0.0, 8).recorded)
    train(tmp_path / "run", private, epochs=1)
    result = read_run(tmp_path / "run").result
    assert result is not None
    assert result.note == "trained without the experiment's privacy"


def test_a_plan_takes_no_memory_for_its_rounds() -> None:
    plan = plan_central(experiment(), 0.0, 2 * 10**6 - 1)
    assert (plan.recorded.rounds, plan.count_passes(10**6)) == (10**6, 1)


@pytest.mark.parametrize("training", [{"momentum": 0.9}, {"optimiser": "adam", "lr": 0.01}, {"precision": "amp"}])
def test_an_interrupted_training_resumes_with_the_same_bits(training: dict[str, Any], tmp_path: Path) -> None:
    settings = {"training": {"epochs": 2, "batch": 128, "lr": 0.1, **training}}
    whole = train(tmp_path / "whole", settings)
    for steps in (1, 40):  # in the first round, and in a later one
        with pytest.raises(CentralStoppedError):
            train(tmp_path / "parts", settings, stop=after(steps))
    assert train(tmp_path / "parts", settings) == whole
    again = read_run(tmp_path / "parts")
    assert [row.accuracy for row in again.rounds] == [row.accuracy for row in read_run(tmp_path / "whole").rounds]


def test_the_optimiser_lives_for_the_whole_run(trained: Path) -> None:
    stored = [FileArrays(path) for path in (trained / "blobs").iterdir() if path.is_file()]
    steps = 8 * 12  # 1,433 samples in batches of 128
    assert [int(one["0.0/steps"]) for one in stored if "0.0/steps" in one] == [steps]


def test_noise_and_schedule_are_the_experiments(trained: Path, tmp_path: Path) -> None:
    clean = read_model(trained)
    noisy = {"data": {**SMALL["data"], "label_noise": {"ratio": 0.3}}}
    assert train(tmp_path / "noisy", noisy) != clean
    found = read_run(tmp_path / "noisy").result
    assert found is not None
    assert "symmetric label noise changed" in found.note
    falling = {"training": {**SMALL["training"], "schedule": {"kind": "multi-step", "milestones": [2]}}}
    assert train(tmp_path / "falling", falling) != clean


def test_samples_of_all_clients_train_the_model(trained: Path) -> None:
    rows = (trained / "replies.csv").read_text().splitlines()
    samples = rows[0].split(",").index("samples")
    assert [float(row.split(",")[samples]) for row in rows[1:]] == [1433.0] * 4


def test_evaluation_is_due_as_in_the_experiment(tmp_path: Path) -> None:
    train(tmp_path / "run", {"evaluate_every": 3})
    assert [row.accuracy is not None for row in read_run(tmp_path / "run").rounds] == [False, False, True, True]


def normed(input_shape: tuple[int, ...], classes: int) -> Any:
    """A model with a static norm."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), StaticBatchNorm(16), nn.ReLU(), nn.Linear(16, classes))


def test_static_norms_are_measured_on_the_training_samples_after_each_round(tmp_path: Path) -> None:
    """So the scores, of a batch of test samples or of many, are those of the published model."""
    changes = {"model": {"name": f"{__name__}:normed"}, "evaluate_every": 2}
    bench = Workbench(experiment(changes))
    run = CentralRun(plan_central(experiment(changes), 0.0, 3), tmp_path / "run")
    states: list[dict[str, Any]] = []
    run.execute(never, lambda _: states.append({k: np.array(v) for k, v in run._checkpoints.read().arrays.items()}))
    run.release()
    assert len(states) == 2  # and the first round is not evaluated
    for arrays in states:
        inputs = bench.dataset.train.x.reshape(-1, 64) @ arrays["1.weight"].T + arrays["1.bias"]
        np.testing.assert_allclose(arrays["2.running_mean"], inputs.mean(0), rtol=1e-4, atol=1e-5)
        assert int(arrays["2.num_batches_tracked"]) == 1
    scores = bench.learner.evaluate(FileArrays(tmp_path / "run" / "global.safetensors"), bench.dataset.test)
    assert read_run(tmp_path / "run").rounds[-1].accuracy == scores["accuracy"]


def test_with_mixed_data_the_kept_samples_are_the_test_set(tmp_path: Path) -> None:
    data = {**SMALL["data"], "mixed": True, "holdout": 0.25}
    run = CentralRun(plan_central(experiment({"data": data}), 0.25, 1), tmp_path / "run")
    run.execute(never, lambda row: None)
    run.release()
    assert read_run(tmp_path / "run").rounds[-1].accuracy is not None


def test_a_diverged_training_stops_if_asked_to(tmp_path: Path) -> None:
    wild = {"training": {"lr": 30.0}, "on_divergence": "stop", "rounds": 20}
    with pytest.raises(RunFailedError, match="on_divergence: stop"):
        train(tmp_path / "run", wild)
    assert '"kind":"diverged"' in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_training_that_diverged_in_its_last_round_has_not_finished_when_it_is_resumed(tmp_path: Path) -> None:
    wild = {"training": {"epochs": 2, "batch": 128, "lr": 30.0, "momentum": 0.9}, "on_divergence": "stop"}
    with pytest.raises(RunFailedError):
        train(tmp_path / "long", {**wild, "rounds": 20})
    last = len(read_run(tmp_path / "long").rounds)
    for _ in range(2):
        with pytest.raises(RunFailedError, match="on_divergence: stop"):
            train(tmp_path / "run", {**wild, "rounds": last})
    assert not (tmp_path / "run" / "global.safetensors").exists()
    assert len(read_run(tmp_path / "run").rounds) == last


def test_another_experiment_does_not_continue_the_run(tmp_path: Path) -> None:
    train(tmp_path / "run", epochs=1)
    with pytest.raises(RunFolderError, match="another experiment"):
        train(tmp_path / "run", epochs=2)


def test_its_folder_is_read_like_any_other(tmp_path: Path) -> None:
    for seed in (1, 2):
        train(tmp_path / f"central-{seed}", {"seed": seed})
    run = read_run(tmp_path / "central-1")
    assert (run.status, run.reason, run.counts, run.notes) == ("finished", "", True, ())
    assert run.started is not None
    assert run.result is not None
    assert (run.result.algorithm, run.result.exit_code, len(run.rounds)) == ("central", 0, 4)
    assert [(row.client, row.precision, row.trainings) for row in run.result.memory] == [(0, "fp32", 4)]
    snapshot = read_snapshot(tmp_path / "central-1")
    assert (snapshot.phase, snapshot.notes, [board.agent for board in snapshot.boards]) == (
        "finished", [], ["central"],
    )  # fmt: skip
    contents = make_contents(gather_runs([tmp_path]))
    assert [group.seeds for group in contents.groups] == [[1, 2]]
    assert {"scores", "costs", "memory", "boards", "runs"} <= contents.tables.keys()
