"""What a run reports about how its model is cut."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.support.runs import EXPERIMENTS

from fedquilt_common.errors import UncuttableModelError
from fedquilt_common.experiment_file import load_experiment
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.results import Result


def result(folder: Path, name: str, *changes: str, resume: bool = False) -> Result:
    run = ActiveRun(load_experiment(EXPERIMENTS / f"{name}.yaml", changes), folder, resume=resume)
    try:
        return run.result()
    finally:
        run.folder.release()


def test_a_run_reports_what_stays_whole_and_keeps_it(tmp_path: Path) -> None:
    found = result(tmp_path, "digits-heterofl")
    assert found.model_cut is not None
    assert found.model_cut.groups > 0
    assert found.model_cut.whole_share < 0.01
    assert found.model_cut.kept_whole == {}
    assert (
        "channel groups are cut, 0.002 % of the model's numbers belong to no channel group" in found.model_cut.summary
    )
    assert found.warnings == []
    assert result(tmp_path, "digits-heterofl", resume=True).model_cut == found.model_cut


def test_whole_models_need_no_report(tmp_path: Path) -> None:
    assert result(tmp_path, "digits-fedavg").model_cut is None


BATCH = "model={name: resnet18, width: 0.1, norm: batch}"


@pytest.mark.parametrize(
    ("name", "norm", "advice"),
    [
        ("heterofl", "batch", "static"),
        ("heterofl", "static", ""),
        ("decoupled", "batch", ""),
        ("adaptivefl", "batch", "group"),
        ("adaptivefl", "static", "group"),
        ("adaptivefl", "group", ""),
    ],
)
def test_a_norm_that_does_not_suit_the_algorithm_is_warned_of_and_one_that_does_is_named(
    name: str, norm: str, advice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = result(tmp_path, f"digits-{name}", BATCH.replace("batch", norm))
    assert bool(found.warnings) == bool(advice)
    assert any(f"norm: {advice}}}" in text for text in caplog.messages) == bool(advice)


@pytest.mark.parametrize("name", ["heterofl", "fedrolex", "federated-dropout", "adaptivefl", "decoupled"])
def test_a_model_that_is_not_cut_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UncuttableModelError, match=r"no channels that can be cut.*add a hidden layer.*fedavg"):
        result(tmp_path, f"digits-{name}", "model={name: mlp, hidden: []}")
