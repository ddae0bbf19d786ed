"""Replies to tasks with sub-models: what is asked for, what is nested in it, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from fedquilt_common.algorithm_api import Task
from fedquilt_common.errors import PayloadError
from fedquilt_common.submodels.adaptivefl_pool import make_pool
from fedquilt_common.submodels.selection import window
from fedquilt_common.submodels.slices import Anatomy, ArrayAnatomy, Group, Segment
from fedquilt_common.types import Shapes
from fedquilt_common.wire.chunks import Blob
from fedquilt_common.wire.codec import FileArrays, write_arrays
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader
from fedquilt_common.wire.round_messages import RoundMessage, SliceMessage, TaskMessage
from fedquilt_server.coordinator.expected_replies import check_reply, expected_replies, task_layouts

NET = Anatomy(
    (Group("a", 10, 0), Group("b", 10, 1)),
    {
        "a": ArrayAnatomy((10, 4), "float32", ((Segment(0, 1),), (Segment(None, 4),))),
        "b": ArrayAnatomy((10, 10), "float32", ((Segment(1, 1),), (Segment(0, 1),))),
        "steps": ArrayAnatomy((), "int64", ()),
    },
)
POOL = make_pool(NET, {"M": 0.6, "S": 0.4}, (1,))
SENT = POOL[1].part
WHOLE = {name: np.zeros(array.shape, array.dtype) for name, array in NET.arrays.items()}


def message(task: Task) -> RoundMessage:
    assert task.slice is not None
    kept = [one.encode() for one in task.slice.kept]
    return RoundMessage(
        run="run", round=1, exchange=0, slices=[SliceMessage(kept=kept)],
        tasks=[TaskMessage(clients=[0], kind="train", patches=[], slice=0)],
    )  # fmt: skip


def reply(folder: Path, said: RoundMessage, arrays: dict[str, Any], precision: Any, metrics: Any) -> Blob:
    header = ReplyHeader(
        run="run",
        round=1,
        exchange=0,
        client=0,
        task=said.fingerprint(said.tasks[0], 0),
        weight=1.0,
        metrics=dict(metrics),
    )
    return write_arrays(folder / "reply", arrays, precision, {REPLY_KEY: header.model_dump_json()})


def zeros(shapes: Shapes) -> dict[str, Any]:
    return {name: np.zeros(shape, NET.arrays[name].dtype) for name, shape in shapes.items()}


def verify(
    folder: Path, task: Task, arrays: dict[str, Any], precision: Any = "fp32", metrics: Any = MappingProxyType({})
) -> Path:
    folder.mkdir(exist_ok=True)
    manifest = message(task)
    blob = reply(folder, manifest, arrays, precision, metrics)
    check_reply(
        "run", 0, expected_replies(manifest, {0: task}, task_layouts({0: task}, "fp32"))[0], FileArrays(blob.path)
    )
    return blob.path


def pruning(expect: Any = None) -> Task:
    return Task("train", WHOLE, slice=SENT, expect=expect or (SENT.shapes, POOL[0].part.shapes, {}))


@pytest.mark.parametrize("shapes", [SENT.shapes, POOL[0].part.shapes, {}], ids=["itself", "nested", "nothing"])
def test_what_is_nested_in_what_was_sent_is_taken(shapes: Shapes, tmp_path: Path) -> None:
    assert verify(tmp_path, pruning(), zeros(shapes)).exists()


@pytest.mark.parametrize(
    "shapes",
    [POOL[2].part.shapes, {**SENT.shapes, "a": (5, 4)}, {"a": SENT.shapes["a"]}, {**SENT.shapes, "steps": (1,)}],
    ids=["larger", "odd", "less arrays", "other shape"],
)
def test_what_is_not_nested_is_rejected_with_the_reason(shapes: Shapes, tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match="none of the 3 allowed layouts, such as one nested in the sub-model that"):
        verify(tmp_path, pruning(), zeros(shapes))


def test_a_task_with_one_answer_names_the_array(tmp_path: Path) -> None:
    part = window(NET, 0.5, "floor", lambda group: 8)
    task = Task("train", WHOLE, slice=part)
    assert verify(tmp_path / "right", task, zeros(part.shapes)).exists()
    with pytest.raises(PayloadError, match=r"array 'a' has shape \(10, 4\) instead of \(5, 4\); give its"):
        verify(tmp_path / "wrong", task, zeros(POOL[0].part.shapes))


def test_other_number_formats_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(PayloadError, match=r"array 'a' has dtype float16 instead of float32$"):
        verify(tmp_path, pruning(), zeros(SENT.shapes), "fp16")


def test_whole_numbers_stay_whole(tmp_path: Path) -> None:
    arrays = {**zeros(SENT.shapes), "steps": np.zeros((), np.float32)}
    with pytest.raises(PayloadError, match="array 'steps' has dtype float32 instead of int64"):
        verify(tmp_path, pruning(), arrays)


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({}, "the reply lacks the metric 'right'"),
        ({"right": 1.0}, "the reply lacks the metric 'samples'"),
        ({"right": -1.0, "samples": 5.0}, "metric 'right' is -1; it must be between 0 and 100"),
        ({"right": 101.0, "samples": 5.0}, "metric 'right' is 101"),
        ({"right": 5.0, "samples": 0.5}, "metric 'samples' is 0.5; it must be between 1 and 100"),
    ],
)
def test_metrics_that_were_asked_for_must_be_there_and_within_bounds(
    metrics: dict[str, float], reason: str, tmp_path: Path
) -> None:
    task = replace(pruning(), metrics={"right": (0.0, 100.0), "samples": (1.0, 100.0)})
    with pytest.raises(PayloadError, match=reason):
        verify(tmp_path / "bad", task, zeros(SENT.shapes), metrics=metrics)
    assert verify(tmp_path / "good", task, zeros(SENT.shapes), metrics={"right": 100.0, "samples": 1.0, "x": -9.0})


def test_a_part_of_whole_arrays_keeps_their_kinds_of_number(tmp_path: Path) -> None:
    task = Task("train", WHOLE, expect={name: tuple(WHOLE[name].shape) for name in ("a", "steps")})
    said = RoundMessage(run="run", round=1, exchange=0,
                        tasks=[TaskMessage(clients=[0], kind="train", patches=[])])  # fmt: skip
    asked = expected_replies(said, {0: task}, task_layouts({0: task}, "fp16"))[0].layouts[0]
    assert (asked["a"][0], asked["steps"][0]) == ("F16", "I64")


def test_the_limit_is_that_of_the_largest_answer() -> None:
    task = pruning()
    asked = expected_replies(message(task), {0: task}, task_layouts({0: task}, "fp32"))[0]
    assert asked.limit == 4 * (SENT.entries - 1) + 8 + 8192 + 256 * 3
