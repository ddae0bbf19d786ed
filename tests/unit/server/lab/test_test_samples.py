"""The samples on which the coordinator and the clients test, and experiments that cannot be tested."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.toy_sets import boxes

from fedquilt_common.datasets import load_dataset
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.types import Dataset
from fedquilt_server.lab.workbench import Workbench

UNTESTED = f"{__name__}:untested"
UNLABELLED = f"{__name__}:unlabelled"
TINY = f"{__name__}:tiny"
FORM: dict[str, Any] = {"set": "own", "delivery": "own", "form": {"shape": [4], "classes": 2}}


def untested(folder: Path | None) -> Dataset:
    digits = load_dataset("digits")
    return replace(digits, name="untested", test=digits.test.take(np.zeros(0, np.int64)))


def unlabelled(folder: Path | None) -> Dataset:
    """Its test images have no boxes, as those of a benchmark that keeps its labels for itself."""
    found = boxes()
    return replace(found, test=replace(found.test, y=np.full_like(found.test.y, -1.0)))


def tiny(folder: Path | None) -> Dataset:
    digits = load_dataset("digits")
    return replace(digits, name="tiny", train=digits.train.take(np.arange(4)))


def bench(algorithm: str = "fedavg", **data: Any) -> Workbench:
    raw = {
        "name": "x", "data": {"set": "digits", "clients": 4, **data},
        "model": {"name": "mlp"}, "algorithm": {"name": algorithm},
    }  # fmt: skip
    return Workbench(Experiment.model_validate(raw))


def test_the_spare_samples_are_those_of_the_shares_without_a_client() -> None:
    few = bench(partition={"shares": 20}, holdout=0.25, mixed=True)
    all_of_them = bench(clients=20, holdout=0.25, mixed=True)
    expected = np.sort(np.concatenate([share.test for share in all_of_them.shares[4:]]))
    assert len(few.shares) == 4
    assert len(few.spare_test) == len(expected) > 300
    assert few.samples_digest() == Workbench(few.experiment).samples_digest()


@pytest.mark.parametrize("data", [{"holdout": 0.25}, {"partition": {"shares": 20}}, {}])
def test_there_are_none_with_a_client_for_each_share_or_without_a_holdout(data: dict[str, Any]) -> None:
    assert len(bench(**data).spare_test) == 0


def test_clients_of_sub_models_evaluate_with_a_holdout_or_own_labels() -> None:
    assert bench("heterofl", holdout=0.25).clients_evaluate
    assert bench("heterofl", local_test="own-labels").clients_evaluate
    assert not bench("heterofl").clients_evaluate


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (
            bench("heterofl", **FORM, holdout=0.25),
            "data.form has no test samples, on which the coordinator tests; give data.set .* as fedavg",
        ),
        (bench("fedavg", **FORM), "data.form has no test samples, .* or set data.holdout, such as"),
        (bench("fedmd", **FORM), "data.form has no test samples, and clients test on them; .* or set data.holdout"),
        (bench(**FORM, local_test="own-labels"), "data.form has no test samples, and clients.* remove data.local_test"),
        (bench(set="own", delivery="own", form={"shape": [4], "classes": 0}, local_test="own-labels"), "has no class"),
        (bench(set=UNTESTED), r"data\.set = .*untested: it has no test samples, .* data\.holdout, such as"),
        (bench(set=UNLABELLED), r"it has no test samples with labels, .* data\.holdout, such as"),
        (bench("fedmd", set=UNTESTED, public={"samples": 9}), "no test samples, .* clients test on them.*data.holdout"),
        (bench("heterofl", set=UNTESTED, holdout=0.25), "no test samples, on which the coordinator tests.*as fedavg"),
        (bench("feddf", set=UNTESTED, public={"samples": 9}), "no test samples, on which the coordinator.*as fedavg"),
        (bench(set=UNTESTED, local_test="own-labels"), "no test samples, and clients test on them.*local_test"),
        (bench("heterofl", holdout=0.25, mixed=True), "which this setting shares out; set it to false"),
        (bench(set=TINY, holdout=0.25), r"data\.holdout = 0\.25: no client keeps a sample for testing"),
        (bench("fedper", set=TINY), r"data\.holdout = 0\.25: no client keeps a sample for testing"),
    ],
)
def test_an_experiment_that_nobody_can_test_is_refused(made: Workbench, reason: str) -> None:
    with pytest.raises(ExperimentError, match=reason):
        made.check()


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper"])
def test_a_data_set_without_test_samples_is_enough_for_clients_that_keep_some(algorithm: str) -> None:
    bench(algorithm, set=UNTESTED, holdout=0.25).check()
