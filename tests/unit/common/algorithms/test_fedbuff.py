"""FedBuff's step by hand, and which clients it asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedquilt_common.algorithm_api import Ask, Reply, State, Task, TrainingResult, participation_problem
from fedquilt_common.algorithms.fedbuff import FedBuff
from fedquilt_common.types import ExchangeId, Profile

START = State({"w": np.array([1.0, 2.0], np.float32), "steps": np.array([10])})


def context(round: int, clients: int = 8, working: Mapping[int, ExchangeId] | None = None, per_round: int = 4) -> Any:
    return SimpleNamespace(
        round=round,
        per_round=per_round,
        fleet=dict.fromkeys(range(clients), Profile()),
        working=working or {},
        rng=np.random.default_rng(round),
        parameters=frozenset({"w"}),
    )


def update(change: float, asked: int, steps: int = 14) -> Reply:
    arrays = {"w": np.array([change, 0.0], np.float32), "steps": np.array([steps])}
    return Reply(arrays, weight=999.0, asked=(asked, 0))


def test_a_step_adds_the_updates_that_come_older_ones_less() -> None:
    replies = {3: update(0.4, asked=5), 6: update(0.8, asked=2)}
    after = FedBuff(server_lr=0.5).merge(START, replies, context(5))
    assert after.arrays["w"] == pytest.approx([1.0 + 0.5 / 2 * (0.4 + (1 + 3) ** -0.5 * 0.8), 2.0])
    assert after.arrays["steps"].tolist() == [14]  # the mean of the clients' values: no learning rate, no K


def test_norms_take_values_so_that_no_variance_becomes_negative() -> None:
    """Two clients lower the same variance from 1 to 0.25; the second update comes a step later."""
    algorithm, start = FedBuff(), {"w": np.zeros(1, np.float32), "var": np.ones(1, np.float32)}
    trained = TrainingResult({"w": np.full(1, 0.5, np.float32), "var": np.full(1, 0.25, np.float32)}, 0.1, 0.0, 1)
    learner = SimpleNamespace(parameters=frozenset({"w"}), train=lambda *_, **__: trained)
    client: Any = SimpleNamespace(learner=learner, data=[0], seed=1)
    reply = replace(algorithm.train(Task("train", start), client), asked=(1, 0))
    state = algorithm.merge(State(start), {0: reply}, context(1))
    state = algorithm.merge(state, {1: reply}, context(2))
    assert state.arrays["var"].tolist() == [0.25]
    assert state.arrays["w"] == pytest.approx([0.5 + 0.5 * 2**-0.5])


def test_staleness_0_counts_all_updates_alike() -> None:
    replies = {0: update(0.4, asked=5), 1: update(0.8, asked=1)}
    after = FedBuff(staleness=0).merge(START, replies, context(5))
    assert after.arrays["w"] == pytest.approx([1.6, 2.0])


def asked(algorithm: FedBuff, ctx: Any) -> Ask:
    tasks = next(algorithm.round(START, ctx))
    assert isinstance(tasks, Ask)
    return tasks


def test_it_keeps_per_round_clients_busy_and_asks_no_busy_one() -> None:
    assert len(asked(FedBuff(), context(1))) == 4
    ask = asked(FedBuff(buffer=3), context(2, working={1: (1, 0), 4: (1, 0), 99: (1, 0)}))  # 99 is not connected
    assert len(ask) == 2
    assert not ask.keys() & {1, 4, 99}
    assert ask.until == 3
    assert asked(FedBuff(), context(2, working=dict.fromkeys(range(4), (1, 0)))) == {}


def test_by_default_half_of_the_clients_make_a_step() -> None:
    assert asked(FedBuff(), context(1, per_round=5)).until == 3


def test_more_updates_than_clients_train_at_once_never_come() -> None:
    problem = participation_problem(FedBuff(buffer=5), 4)
    assert problem.startswith("algorithm.buffer = 5: only 4 clients train at once (participation.per_round)")
    assert [participation_problem(FedBuff(buffer=buffer), 4) for buffer in (4, 1, None)] == ["", "", ""]


def test_a_round_without_replies_changes_nothing() -> None:
    assert FedBuff().merge(START, {}, context(1)) is START
