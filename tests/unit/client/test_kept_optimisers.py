"""``training.keep_optimiser``: a client's optimisers last in its private memory; the algorithm does not see them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedquilt_client.context import BoardRun, TaskContext
from fedquilt_common.algorithm_api import Task
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.codec import write_arrays
from fedquilt_common.wire.messages import RunMessage


def context(memory: Path | None, algorithm: str = "fedavg", kind: str = "train", **training: Any) -> TaskContext:
    raw = {"name": "x", "seed": 3, "data": {"set": "digits", "clients": 4}, "model": {"name": "mlp", "hidden": [8]},
           "algorithm": {"name": algorithm}, "training": {"momentum": 0.9, "batch": 64, **training}}  # fmt: skip
    board = BoardRun(RunMessage(run="x", experiment={}), Experiment.model_validate(raw), ())
    return TaskContext(board, 1, 1, 0, memory, lambda: 0, lambda part: None, lambda need: None, kind=kind)


def test_momentum_lasts_from_task_to_task(tmp_path: Path) -> None:
    kept = [context(None, keep_optimiser=True)]
    task = Task("train", kept[0].first_model())
    first = kept[0].do(task)
    assert not kept[0].memory
    assert kept[0].memory_changed
    write_arrays(tmp_path / "memory", kept[0].memory_to_store)
    kept.append(context(tmp_path / "memory", keep_optimiser=True))
    again = kept[1].do(task)
    assert not kept[1].memory
    fresh = context(None).do(task)
    weight = next(iter(fresh.arrays))
    assert np.array_equal(first.arrays[weight], fresh.arrays[weight])
    assert not np.array_equal(again.arrays[weight], fresh.arrays[weight])
    assert not context(None).memory_changed


def test_fedbabu_is_measured_alike_however_often(tmp_path: Path) -> None:
    """Each evaluation tunes the initial head, so it must not go on with the momentum of the one before."""
    contexts = [context(path, "fedbabu", "evaluate", keep_optimiser=True) for path in (None, tmp_path / "memory")]
    heads = []
    for ctx in contexts:
        ctx.do(Task("evaluate", ctx.first_model()))
        heads.append({name: array.tobytes() for name, array in ctx.memory.items()})
        write_arrays(tmp_path / "memory", ctx.memory_to_store)
    assert heads[0] == heads[1]
    assert heads[0]


def test_a_client_without_the_key_leaves_its_stored_memory_closed(tmp_path: Path) -> None:
    assert context(tmp_path / "nothing").learner.lasting is None  # type: ignore[attr-defined]


def test_a_board_refuses_training_that_does_not_suit_the_algorithm() -> None:
    ctx = context(None, optimiser="adam", momentum=0)
    raw = {**ctx.board.experiment.model_dump(mode="json"), "algorithm": {"name": "fednova"}}
    board = BoardRun(ctx.board.run, Experiment.model_validate(raw), ())
    with pytest.raises(ExperimentError, match=r"training.optimiser = adam: it divides"):
        _ = replace(ctx, board=board).learner


def test_a_client_knows_the_initial_global_model() -> None:
    from fedquilt_server.lab.workbench import Workbench

    ctx = context(None)
    coordinator = Workbench(ctx.board.experiment).first_model()
    assert {name: x.tobytes() for name, x in ctx.first_model().items()} == {
        name: np.asarray(x).tobytes() for name, x in coordinator.items()
    }
