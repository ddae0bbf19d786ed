"""A run's folder as an object, and what is wrong with a folder that is none."""

from __future__ import annotations

import hashlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedquilt as fq
from fedquilt_common.datasets import load_dataset
from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.training.module_arrays import to_arrays
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import write_arrays
from fedquilt_server.runs.tables import rounds_csv
from fedquilt_server.status.results import Result, RoundResult

DIGITS = {"name": "a", "data": {"set": "digits", "clients": 2}, "model": {"name": "mlp", "hidden": [8]},
          "algorithm": {"name": "fedavg"}}  # fmt: skip


def row(number: int) -> RoundResult:
    zeros = {name: 0 for name, told in RoundResult.model_fields.items() if told.is_required()}
    return RoundResult.model_validate({**zeros, "round": number, "accuracy": number / 10})


def arrays_of(model: str, **params: Any) -> Arrays:
    from fedquilt_common.models import build_model

    return to_arrays(build_model(model, params, (64,), 10)())


def run_folder(folder: Path, arrays: Arrays | None, **keys: Any) -> Path:
    """The files that a run of two rounds leaves; without ``arrays`` it is not finished."""
    experiment = fq.load_experiment(DIGITS, **keys)
    folder.mkdir()
    (folder / "experiment.yaml").write_text(dump_experiment(experiment))
    result = Result(name="a", run="a-1", algorithm=experiment.algorithm.name, dataset="digits", seed=0,
                    rounds=[row(1), row(2)], final={"rounds": 2})  # fmt: skip
    (folder / "result.json").write_text(result.model_dump_json())
    if arrays is not None:
        write_arrays(folder / "global.safetensors", arrays)
    return folder


@pytest.fixture
def finished(tmp_path: Path) -> fq.Run:
    return fq.load_run(str(run_folder(tmp_path / "run", arrays_of("mlp", hidden=[8]))))


def test_it_has_the_experiment_and_the_rounds(finished: fq.Run) -> None:
    assert finished.experiment == fq.load_experiment(DIGITS)
    assert [row.accuracy for row in finished.rounds] == [0.1, 0.2]
    assert finished.result.final == {"rounds": 2}
    assert repr(finished) == f"Run(folder={finished.folder!r})"


def test_its_model_has_the_final_weights_and_predicts(finished: fq.Run) -> None:
    from fedquilt_common.wire.codec import FileArrays

    model = finished.model()
    assert not model.training
    kept = FileArrays(finished.folder / "global.safetensors")
    assert {name: x.tobytes() for name, x in to_arrays(model).items()} == {name: kept[name].tobytes() for name in kept}
    with torch.inference_mode():
        assert model(torch.from_numpy(load_dataset("digits").test.x[:5].copy())).shape == (5, 10)
    assert finished.model() is not model


def test_a_model_of_a_kind_of_clients_is_found(tmp_path: Path) -> None:
    """FedDF keeps the model of its first kind of clients."""
    keys: dict[str, Any] = {
        "algorithm": {"name": "feddf"},
        "data": {"set": "digits", "clients": 2, "public": {"samples": 50}},
        "fleet": [{"clients": 2, "variants": [{"model": {"name": "mlp", "hidden": [5]}}, {}]}],
    }
    run = fq.load_run(run_folder(tmp_path / "run", arrays_of("mlp", hidden=[5]), **keys))
    assert to_arrays(run.model()).keys() == arrays_of("mlp", hidden=[5]).keys()


def test_an_algorithm_without_a_model_for_all_says_so(tmp_path: Path) -> None:
    keys: dict[str, Any] = {
        "algorithm": {"name": "fedmd"},
        "data": {"set": "digits", "clients": 2, "public": {"samples": 50}},
    }
    run = fq.load_run(run_folder(tmp_path / "run", {}, **keys))
    with pytest.raises(fq.NoGlobalModelError, match="'fedmd' has no global model: read the scores"):
        run.model()


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    run = fq.load_run(run_folder(tmp_path / "run", {"other": np.zeros(3, np.float32)}))
    with pytest.raises(fq.RunFolderError, match="does not fit the model 'mlp'"):
        run.model()


def test_a_damaged_model_is_named(finished: fq.Run) -> None:
    (finished.folder / "global.safetensors").write_bytes(b"nonsense")
    with pytest.raises(fq.RunFolderError, match=r"global\.safetensors: is damaged"):
        finished.model()


def test_a_model_with_a_flipped_bit_is_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", arrays_of("mlp", hidden=[8]))
    model = folder / "global.safetensors"
    content = bytearray(model.read_bytes())
    result = json.loads((folder / "result.json").read_text())
    result["final"]["global_sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "result.json").write_text(json.dumps(result))
    fq.load_run(folder).model()
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(
        fq.RunFolderError, match=r"global\.safetensors: is damaged: its SHA-256 is not the global_sha256"
    ):
        fq.load_run(folder).model()


def test_a_run_that_goes_on_has_rounds_and_no_model(tmp_path: Path) -> None:
    run = fq.load_run(run_folder(tmp_path / "run", None))
    assert len(run.rounds) == 2
    with pytest.raises(fq.RunFolderError, match=r"holds no global\.safetensors, so the run is not finished"):
        run.model()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "holds no result.json, so no round is finished there"),
        ("{", "result.json: is damaged"),
        ('{"name": 3}', "result.json: is damaged"),
    ],
)
def test_a_folder_without_a_sound_result_is_refused(content: str | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(fq.RunFolderError, match=words):
        fq.load_run(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fq.RunFolderError, match="absent: there is no such folder; check the path"):
        fq.load_run(tmp_path / "absent")


def test_without_pandas_the_frame_says_how_to_install_it(finished: fq.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fq.PackageMissingError, match="pip install pandas"):
        finished.frame()


def test_the_frame_has_the_columns_of_rounds_csv(finished: fq.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = types.ModuleType("pandas")
    vars(stand_in)["DataFrame"] = lambda records: records
    monkeypatch.setitem(sys.modules, "pandas", stand_in)
    rows = finished.frame()
    assert ",".join(rows[0]) == rounds_csv(finished.rounds).splitlines()[0]
    assert [cells["accuracy"] for cells in rows] == [0.1, 0.2]
