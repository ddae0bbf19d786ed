"""The public set: whose samples they are, that nobody else has them, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedquilt_common.datasets import FOLDER_VARIABLE, load_dataset
from fedquilt_common.datasets.public import digest_public_set, own_public, public_set
from fedquilt_common.datasets.shares import shares
from fedquilt_common.errors import DataUnavailableError, ExperimentError, FedquiltError
from fedquilt_common.experiment.experiment import Experiment

DIGITS = load_dataset("digits")


def experiment(public: dict[str, Any] | None, **data: Any) -> Experiment:
    return Experiment.model_validate(
        {
            "name": "x", "seed": 4, "data": {"set": "digits", "clients": 3, "public": public, **data},
            "model": {"name": "mlp"}, "algorithm": {"name": "fedmd"},
        }
    )  # fmt: skip


def test_public_samples_are_training_samples_that_no_client_has() -> None:
    made = experiment({"samples": 100})
    public = own_public(made, DIGITS)
    assert len(set(public)) == 100
    clients = np.concatenate([share.train for share in shares(made, DIGITS)])
    assert sorted([*clients, *public]) == list(range(len(DIGITS.train)))
    x = public_set(made, DIGITS)
    assert x.tobytes() == DIGITS.train.x[public].tobytes()
    assert not x.flags.writeable


def test_without_a_public_set_the_shares_are_as_ever() -> None:
    assert len(own_public(experiment(None), DIGITS)) == 0
    assert sum(len(share.train) for share in shares(experiment(None), DIGITS)) == len(DIGITS.train)


def test_another_seed_draws_others_and_has_another_digest() -> None:
    one, same, other = (
        public_set(experiment({"samples": 50}).model_copy(update={"seed": seed}), DIGITS) for seed in (1, 1, 2)
    )
    assert digest_public_set(one) == digest_public_set(same) != digest_public_set(other)
    assert digest_public_set(one) != digest_public_set(one.reshape(50, 64))


@pytest.mark.parametrize(("samples", "count"), [(None, 30), (12, 12)])
def test_a_file_of_samples(samples: int | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    x = np.random.default_rng(0).random((30, 1, 8, 8))
    np.save(tmp_path / "public.npy", x)
    made = experiment({"file": "public.npy", "samples": samples})
    found = public_set(made, DIGITS)
    assert (found.shape, str(found.dtype)) == ((count, 1, 8, 8), "float32")
    assert sum(len(share.train) for share in shares(made, DIGITS)) == len(DIGITS.train)  # nobody has to do without


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (np.zeros((5, 8, 8), np.float32), ExperimentError, "have shape"),
        (np.zeros((5, 1, 8, 8), np.complex64), ExperimentError, "complex64"),
        (np.full((5, 1, 8, 8), np.nan, np.float32), DataUnavailableError, "not finite"),
        (np.array([{}], dtype=object), DataUnavailableError, "that numpy can read"),
        (b"PK\x03\x04 no", DataUnavailableError, "that numpy can read"),
        (b"", DataUnavailableError, "that numpy can read"),
    ],
)
def test_a_file_that_is_no_public_set(
    content: Any, kind: type[FedquiltError], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    if isinstance(content, bytes):
        (tmp_path / "p.npy").write_bytes(content)
    else:
        np.save(tmp_path / "p.npy", content, allow_pickle=True)
    with pytest.raises(kind, match=words):
        public_set(experiment({"file": "p.npy"}), DIGITS)


def test_a_file_that_is_not_there_or_not_below_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    with pytest.raises(DataUnavailableError, match=FOLDER_VARIABLE):
        public_set(experiment({"file": "p.npy"}), DIGITS)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(DataUnavailableError, match="no such file"):
        public_set(experiment({"file": "p.npy"}), DIGITS)
    with pytest.raises(ExperimentError, match="must lie below"):
        public_set(experiment({"file": "../p.npy"}), DIGITS)


@pytest.mark.parametrize(
    ("public", "words"),
    [(None, "is missing"), ({"samples": 5000}, "only 14"), ({"set": "digits", "samples": 5000}, "only 14")],
)
def test_more_than_there_is_or_nothing(public: dict[str, Any] | None, words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        public_set(experiment(public), DIGITS)


@pytest.mark.parametrize(
    ("public", "words"), [({}, "set how many"), ({"set": "digits", "file": "x.npy"}, "remove one of the two")]
)
def test_an_experiment_says_one_source(public: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        experiment(public)


def test_samples_of_another_data_set() -> None:
    found = public_set(experiment({"set": "digits", "samples": 20}), DIGITS)
    assert len(found) == 20


def test_a_file_whose_header_makes_no_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    np.save(tmp_path / "p.npy", np.zeros((4, 1, 8, 8), np.float32))
    whole = (tmp_path / "p.npy").read_bytes()
    for shape in (b"(-1, 1, 8, 8)", b"(99999999999999, 1, 8, 8)"):
        damaged = whole[:128].replace(b"(4, 1, 8, 8)", shape)[:128] + whole[128:]
        (tmp_path / "p.npy").write_bytes(damaged)
        with pytest.raises(DataUnavailableError, match=r"p\.npy"):
            public_set(experiment({"file": "p.npy"}), DIGITS)
    np.save(tmp_path / "p.npy", np.zeros((0, 1, 8, 8), np.float32))
    with pytest.raises(DataUnavailableError, match=r"data\.public: p\.npy has no samples"):
        public_set(experiment({"file": "p.npy"}), DIGITS)
