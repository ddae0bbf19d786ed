"""The training process and sub-models: the coordinator's slices must be those of this board's model."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedquilt_client.context import TaskContext
from fedquilt_client.worker import Worker
from fedquilt_common.models import build_model
from fedquilt_common.submodels.patch_layout import patch_layout, write_patch
from fedquilt_common.submodels.selection import prefix, window
from fedquilt_common.submodels.slices import Slice
from fedquilt_common.tracing.trace import blueprint_for
from fedquilt_common.training.module_arrays import to_arrays
from fedquilt_common.training_jobs import Job
from fedquilt_common.wire.codec import FileArrays
from fedquilt_common.wire.round_messages import SliceMessage

if TYPE_CHECKING:
    from tests.unit.client.conftest import Kit

MODEL = {"name": "mlp", "hidden": [32, 16]}
BUILD = build_model("mlp", {"hidden": [32, 16]}, (1, 8, 8), 10)
ANATOMY = blueprint_for(BUILD, np.zeros((1, 1, 8, 8), np.float32)).anatomy
PARTS = [prefix(ANATOMY, 0.5, "ceil"), window(ANATOMY, 0.5, "floor", lambda group: group.size - 4)]


def said(part: Slice) -> SliceMessage:
    return SliceMessage(kept=[kept.encode() for kept in part.kept])


def job(kit: Kit, slices: list[SliceMessage], mine: int, patches: list[Path]) -> Job:
    run = kit.run(algorithm={"name": "fedrolex"}, model=MODEL)
    made: Job = kit.job(run, patches=patches, slices=slices, slice=mine)
    return made


def published(folder: Path, mine: int) -> list[Path]:
    arrays = to_arrays(BUILD())
    patches = patch_layout(PARTS)
    files = [write_patch(folder / f"patch-{n}", arrays, patch, "fp32").path for n, patch in enumerate(patches)]
    return [file for file, patch in zip(files, patches, strict=True) if mine in patch.needed_by]


def outcome(job: Job) -> dict[str, Any]:
    out = io.StringIO()
    Worker(out).do(job)
    last: dict[str, Any] = json.loads(out.getvalue().splitlines()[-1])
    return last


@pytest.mark.parametrize("mine", [0, 1])
def test_a_sub_model_is_put_together_trained_and_sent_back_in_its_own_shapes(kit: Kit, mine: int) -> None:
    given = job(kit, [said(part) for part in PARTS], mine, published(kit.folder, mine))
    assert outcome(given)["event"] == "done"
    reply = FileArrays(given.reply)
    assert {name: reply.shape(name) for name in PARTS[mine].shapes} == PARTS[mine].shapes


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        ([SliceMessage(kept=[[0, 4]])], "the coordinator cuts 1 channel groups, this board's model has 2"),
        ([SliceMessage(kept=[[0, 33], [0, 8]])], "channels 0 to 32 are out of range: there are 32"),
        ([SliceMessage(kept=[[0, 4, 2, 6], [0, 8]])], "channel 2 appears twice"),
        ([SliceMessage(kept=[[], [0, 8]])], "keeps none of 32 channels"),
        ([SliceMessage(kept=[[0], [0, 8]])], "an index set has 1 run bounds: one start is without an end"),
        ([SliceMessage(kept=["AA==", [0, 8]])], "1 bytes; 32 channels take 4"),
        ([said(PARTS[0]), said(PARTS[0])], "has 1 patches, but there are 2 files"),
    ],
    ids=["other groups", "out of range", "twice", "nothing", "half a run", "short bitmap", "the same twice"],
)
def test_slices_that_cannot_be_fail_the_task_with_a_reason(kit: Kit, slices: list[SliceMessage], reason: str) -> None:
    said = outcome(job(kit, slices, 0, published(kit.folder, 0)))
    assert said["event"] == "failed"
    assert reason in said["reason"]
    assert "Traceback" not in said["reason"]


def test_a_patch_of_another_size_is_refused(kit: Kit) -> None:
    patches = published(kit.folder, 1)
    with patches[0].open("ab") as file:
        file.write(b"1234")
    refused = outcome(job(kit, [said(part) for part in PARTS], 1, patches))
    assert refused["event"] == "failed"
    assert "coordinator and board build different models" in refused["reason"]


def test_a_missing_patch_is_refused(kit: Kit) -> None:
    refused = outcome(job(kit, [said(part) for part in PARTS], 1, published(kit.folder, 1)[:1]))
    assert refused["event"] == "failed"
    assert "patches, but there are 1 files" in refused["reason"]


@pytest.mark.parametrize("cancelled", [True, False])
def test_patches_that_are_gone_are_a_failure_only_if_the_job_is_still_wanted(kit: Kit, cancelled: bool) -> None:
    patches = published(kit.folder, 1)
    given = job(kit, [said(part) for part in PARTS], 1, patches)
    out = io.StringIO()
    worker = Worker(out)
    worker.cancelled = {given.number} if cancelled else set()
    for patch in patches:
        patch.unlink()
    worker.do(given)
    event = json.loads(out.getvalue().splitlines()[-1])["event"]
    assert event == ("cancelled" if cancelled else "damaged")


def test_a_replay_repeats_what_the_board_found_to_fit(kit: Kit) -> None:
    """The sub-model that the board trained counts as fitting, whatever memory is free, and no other one does."""
    given = job(kit, [said(part) for part in PARTS], 0, published(kit.folder, 0))
    shapes = dict(PARTS[0].shapes)
    board = Worker(io.StringIO())._board_for(given)
    ctx = TaskContext(board, 0, 1, 1, None, lambda: 0, lambda _: None, lambda _: None, shapes)
    assert [ctx.fits(part) for part in (PARTS[0], prefix(ANATOMY, 0.25, "ceil"))] == [True, False]
