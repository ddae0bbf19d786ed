"""A model that predicts the last word alone learns nothing where sequences end with padding."""

from __future__ import annotations

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_server.lab.workbench import Workbench


def bench(**model: object) -> Workbench:
    raw = {
        "name": "x",
        "data": {"set": "tests.support.toy_sets:words", "clients": 4},
        "model": {"name": "transformer", "embed": 8, "hidden": 8, "heads": 1, "head_dim": 4, "layers": 1, **model},
        "algorithm": {"name": "fedavg"},
    }
    return Workbench(Experiment.model_validate(raw))


def test_the_last_word_alone_is_refused_before_the_run_if_it_may_be_padding() -> None:
    with pytest.raises(ExperimentError, match=r"model\.name = transformer: .*padding.* outputs: each"):
        bench().check()


def test_words_at_each_place_are_accepted() -> None:
    bench(outputs="each").check()
