"""A coordinator that waits for nobody crashes at every point where it matters: the run goes on from there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.faults.test_recovery import go_on, until_it_dies

from fedquilt_common.aggregation.averages import mean
from fedquilt_common.algorithm_api import Ask, Round, ServerContext, State
from fedquilt_common.algorithms import DIAGNOSTICS
from fedquilt_common.algorithms.echo import Echo
from fedquilt_common.algorithms.fedbuff import choose_free
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.types import ClientId, ExchangeId
from fedquilt_common.wire.codec import write_arrays
from fedquilt_common.wire.messages import REPLY_KEY, ReplyHeader
from fedquilt_common.wire.round_messages import RoundMessage, TaskMessage

if TYPE_CHECKING:
    from tests.faults.conftest import Player, Stage

ROUNDS = 4


@dataclass(frozen=True)
class EchoSteps(Echo):
    """A round takes the first reply, to whichever task."""

    def round(self, state: State, ctx: ServerContext) -> Round:
        replies = yield Ask(dict.fromkeys(choose_free(ctx), self.make_task(state, ctx)), until=1)
        return State(mean(replies, like=state.arrays))


class Steps:
    """A stage whose algorithm makes a step with each reply, and agents that do each task once."""

    def __init__(self, stage: Stage) -> None:
        raw = stage.experiment.model_dump(mode="json")
        raw |= {"rounds": ROUNDS, "algorithm": {"name": "steps"}}
        stage.experiment = Experiment.model_validate(raw)
        stage.turn = self.turn  # type: ignore[method-assign, assignment]
        self._stage = stage
        self._done: set[tuple[ClientId, ExchangeId]] = set()
        self._layout: dict[str, np.ndarray[Any, Any]] = {}

    def turn(self) -> bool:
        for player in self._stage.players.values():
            player.listen()
            if not self._layout and (model := player.model()) is not None:
                self._layout = {name: np.ones_like(x) for name, x in model.items()}
        for player in self._stage.players.values():
            if player.round is not None and self._layout:
                for message in (player.round, *player.round.earlier):
                    for task in message.tasks:
                        self._answer(player, message, task)
        return False

    def _answer(self, player: Player, message: RoundMessage, task: TaskMessage) -> None:
        from tests.faults.conftest import FLEET, Parcel

        for client in sorted({*task.clients} & {*FLEET[player.name]}):
            if (client, message.id) not in self._done:
                self._done.add((client, message.id))
                head = ReplyHeader(
                    run=message.run, round=message.round, exchange=message.exchange, client=client,
                    task=message.fingerprint(task, client), weight=1.0,
                )  # fmt: skip
                path = player.folder / f"{client}-{message.round}-{message.exchange}"
                blob = write_arrays(path, self._layout, "fp32", {REPLY_KEY: head.model_dump_json()})
                player.send(Parcel(player.name, client, *message.id, blob))


def test_a_crash_anywhere_loses_no_step(
    storage: str,
    tmp_path_factory: pytest.TempPathFactory,
    make_stage: Callable[..., Stage],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replies that are journaled together make several steps; the crash may come between two of them."""
    monkeypatch.setitem(DIAGNOSTICS, "steps", EchoSteps)

    def begin() -> Stage:
        stage = make_stage(tmp_path_factory.mktemp("run"))
        Steps(stage)
        stage.arrive()
        return stage

    points = until_it_dies(begin(), 0).points
    assert points.count("before save") == ROUNDS
    for at, name in enumerate(points, 1):
        stage = begin()
        until_it_dies(stage, at)
        go_on(stage)
        assert [row.replies for row in stage.rows] == [1] * ROUNDS, f"point {at}: {name}"
        assert sum(row.rejected for row in stage.rows) == 0, f"point {at}: {name}"
