"""The parts of making a reply again that need no training process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedquilt_common.algorithm_api import Task
from fedquilt_common.training_jobs import CheckedFile
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_server.replay.memories import Memories
from fedquilt_server.replay.replies import list_fittings

SMALL, LARGE = {"w": (10,)}, {"w": (1000,)}


@pytest.mark.parametrize(("payload", "first"), [(4100, LARGE), (300, SMALL)])
def test_the_sub_model_whose_size_is_nearest_is_tried_first(payload: int, first: dict[str, tuple[int, ...]]) -> None:
    task = Task("train", expect=(SMALL, LARGE, {}))
    assert list_fittings(task, payload)[0] == first
    assert len(list_fittings(task, payload)) == 2


@pytest.mark.parametrize("task", [Task("train", {"w": np.zeros(3)}), Task("train", expect=SMALL)])
def test_a_board_without_a_choice_trains_what_it_received(task: Task) -> None:
    assert list_fittings(task, 100) == (None,)


def test_memories_are_those_after_the_replies_that_count(tmp_path: Path) -> None:
    memories = Memories(tmp_path / "memories", {})
    drafts = [memories.draft(4, (1, exchange), "f") for exchange in range(2)]
    for draft in drafts:
        draft.write_bytes(b"memory")
    first, second = (CheckedFile(draft, None) for draft in drafts)

    def manifest(round: int, exchange: int, since: dict[str, tuple[int, int]]) -> RoundMessage:
        return RoundMessage(run="r", round=round, exchange=exchange, since=since)

    assert memories.before(manifest(1, 0, {}), 4) is None
    memories.commit(manifest(1, 0, {}), 4, first)
    memories.commit(manifest(1, 1, {"4": (1, 0)}), 4, second)
    memories.keep({4: (1, 1)})
    assert all(draft.exists() for draft in drafts)
    memories.clean()
    assert [path.name for path in memories.folder.iterdir()] == [drafts[1].name]
    later = manifest(2, 0, {"4": (1, 1)})
    assert memories.before(later, 4) == second
    memories.commit(later, 4, None)  # unchanged
    assert memories.before(manifest(3, 0, {"4": (2, 0)}), 4) == second
