"""A partition that a file lists."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedquilt_common.datasets.shares import shares
from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment_file import load_experiment, make_experiment
from fedquilt_common.types import Dataset, Examples

ONE = Examples(np.zeros((6, 1), np.float32), np.arange(6) % 2)
DATA = Dataset("made", ONE, ONE, 2)
GOOD = "client,index\n0,5\n0,1\n1,0\n1,2\n"


def raw(file: str = "cut.csv", **data: Any) -> dict[str, Any]:
    partition = {"scheme": "manual", "file": file, **data.pop("partition", {})}
    return {"name": "x", "data": {"set": "digits", "clients": 2, "partition": partition, **data},
            "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDQUILT_DATA", str(tmp_path))
    return tmp_path


def cut(text: str, folder: Path, file: str = "cut.csv", **data: Any) -> list[list[int]]:
    (folder / file).write_text(text, encoding="utf-8")
    return [share.train.tolist() for share in shares(Experiment.model_validate(raw(file, **data)), DATA)]


def test_each_client_has_its_samples(folder: Path) -> None:
    assert cut(GOOD, folder) == [[1, 5], [0, 2]]
    assert cut(GOOD.replace("\n", "\r\n\r\n"), folder) == [[1, 5], [0, 2]]
    assert cut("\ufeff" + GOOD, folder) == [[1, 5], [0, 2]]
    assert cut(json.dumps({"1": [2, 0], "0": [5, 1]}), folder, "cut.json") == [[1, 5], [0, 2]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(6)), st.integers(1, 5))
def test_every_listed_sample_once(folder: Path, order: list[int], first: int) -> None:
    text = "client,index\n" + "".join(f"{int(place >= first)},{index}\n" for place, index in enumerate(order))
    assert cut(text, folder) == [sorted(order[:first]), sorted(order[first:])]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"cut\.csv:1: the first line must be client,index"),
        ("index,client\n0,0\n", r"cut\.csv:1: "),
        ("client,index\n0,1\n0,one\n", r"cut\.csv:3: '0,one' is not client,index"),
        ("client,index\n0,1,2\n", r"cut\.csv:2: "),
        ("client,index\n2,1\n", r"cut\.csv:2: there is no client 2, only 0 to 1"),
        ("client,index\n0,6\n", r"cut\.csv:2: index 6 is not a sample"),
        (f'client,index\n0,1\n"{",1" * 70_000}\n', r"cut\.csv: is not a CSV file .*stray quotation mark"),
        ("client,index\n0,1\n1,1\n", r"cut\.csv:3: sample 1 has client 0 already"),
    ],
)
def test_lines_that_are_wrong(folder: Path, text: str, words: str) -> None:
    with pytest.raises(DataUnavailableError, match=words):
        cut(text, folder)


@pytest.mark.parametrize("text", ["", "[]", '{"a": [1]}', '{"0": 1}', '{"0": [true]}', '{"0": [1, 1]}', "[" * 9999])
def test_objects_that_are_wrong(folder: Path, text: str) -> None:
    with pytest.raises(DataUnavailableError, match=r"cut\.json"):
        cut(text, folder, "cut.json")


def test_a_client_that_is_listed_twice(folder: Path) -> None:
    with pytest.raises(DataUnavailableError, match=r"cut\.json: lists client 0 twice; join both lists"):
        cut('{"0": [1, 2], "1": [3], "0": [4]}', folder, "cut.json")


def test_clients_with_too_few_samples(folder: Path) -> None:
    with pytest.raises(ExperimentError, match="lists no samples of client 1"):
        cut("client,index\n0,1\n", folder)
    with pytest.raises(ExperimentError, match="min_samples = 3: client 0 would have 2 samples"):
        cut(GOOD, folder, partition={"min_samples": 3})


def test_public_samples_have_no_client(folder: Path) -> None:
    everything = "client,index\n" + "".join(f"{index % 2},{index}\n" for index in range(6))
    with pytest.raises(DataUnavailableError, match="is not a sample that a client may have; there are 5 of them"):
        cut(everything, folder, public={"samples": 1})


def test_files_that_cannot_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataUnavailableError, match=r"cut\.csv: cannot be read"):
        shares(Experiment.model_validate(raw()), DATA)
    (folder / "cut.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataUnavailableError, match="is not UTF-8"):
        shares(Experiment.model_validate(raw()), DATA)
    with pytest.raises(ExperimentError, match="must lie below the folder"):
        shares(Experiment.model_validate(raw("../cut.csv")), DATA)
    monkeypatch.delenv("FEDQUILT_DATA")
    with pytest.raises(DataUnavailableError, match="set FEDQUILT_DATA"):
        shares(Experiment.model_validate(raw()), DATA)


def test_a_file_that_is_too_large_is_not_read(folder: Path) -> None:
    with (folder / "cut.csv").open("wb") as file:
        file.truncate(1 << 27)
    with pytest.raises(DataUnavailableError, match="has more than 67108864 bytes, so it is not a file for"):
        shares(Experiment.model_validate(raw()), DATA)


def test_a_board_with_another_file_refuses_the_run(folder: Path) -> None:
    """The coordinator adds the digest when it reads the experiment; the board receives it with the run."""
    (folder / "cut.csv").write_text(GOOD, encoding="utf-8")
    read = make_experiment(raw(), "x.yaml")
    assert read.data.partition.sha256 == hashlib.sha256(GOOD.encode()).hexdigest()
    received = Experiment.model_validate_json(read.model_dump_json())
    assert len(shares(received, DATA)) == 2
    (folder / "cut.csv").write_text(GOOD.replace("0,5", "0,4"), encoding="utf-8")
    with pytest.raises(DataUnavailableError, match=r"SHA-256 is .* copy the coordinator's file here"):
        shares(received, DATA)


def test_an_experiment_can_be_read_where_its_file_is_not(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps(raw()), encoding="utf-8")
    assert load_experiment(path).data.partition.sha256 is None
