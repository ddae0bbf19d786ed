"""Algorithms that read only the mean of their replies: with exact sums, the grouping of replies changes no bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.cases import CASES
from tests.contract.federation import FEW, Driver, Fleet, bits, make

from fedquilt_common.algorithm_api import Reply, State, Task, pooling_problem
from fedquilt_common.algorithms import ALGORITHMS
from fedquilt_common.partial_sums.exact_rounds import ExactRounds, is_averaged
from fedquilt_common.partial_sums.members import SumMember
from fedquilt_common.partial_sums.partial_sum import PartialSum, write_partial_sum
from fedquilt_common.types import Arrays
from fedquilt_common.wire.codec import open_arrays
from fedquilt_common.wire.messages import SumHeader
from fedquilt_server.round.events import Joined, Replied
from fedquilt_server.round.exchange import Exchange

POOLED = sorted(name for name in ALGORITHMS if not pooling_problem(make(name, CASES[name].fields)))
Grouping = Callable[[Sequence[int]], list[list[int]]]


def some_alone(clients: Sequence[int]) -> list[list[int]]:
    return [list(clients[:-2]), *([client] for client in clients[-2:])]


def all_together(clients: Sequence[int]) -> list[list[int]]:
    return [list(clients)]


def one_by_one(clients: Sequence[int]) -> list[list[int]]:
    return [[client] for client in clients]


class GroupingDriver(Driver):
    """A coordinator whose replies arrive in groups, each as a partial sum."""

    folder: Path
    group: Grouping

    def run_grouped(self, group: Grouping, folder: Path) -> State:
        """Run to the end, with the replies of each exchange in groups."""
        self.group, self.folder = group, folder
        for client in range(self.fleet.clients):
            self.happen(Joined(0.0, f"board-{client}", 1, (client,)))
        while not self.finished:
            exchange = self.machine.exchange
            assert exchange is not None
            for clients in self.group(exchange.missing):
                self.answer(exchange, clients)
        return self.machine.state

    def answer(self, exchange: Exchange, clients: Sequence[int]) -> None:
        """Let clients answer: with one sum if their replies are averaged, otherwise one by one."""
        send = self._sent[exchange.id]
        made = [self.fleet.do(client, send.tasks[client], send) for client in clients]
        if len(clients) > 1 and send.tasks[clients[0]].summed:
            made = self.sum_up(made, send.tasks[clients[0]].arrays)
        for event, arrays in made:
            self.replies[event.digest] = arrays
            self.happen(event)

    def sum_up(self, made: list[tuple[Replied, Arrays]], base: Arrays) -> list[tuple[Replied, Arrays]]:
        """Return the events of a partial sum, as they travel."""
        first = made[0][0]
        members = [SumMember(event.client, "0" * 16, event.weight, event.metrics) for event, _ in made]
        header = SumHeader(run="run", round=first.round, exchange=first.exchange)
        path = write_partial_sum(self.folder / "sum", header, members, [arrays for _, arrays in made], base).path
        one = PartialSum(open_arrays(path))
        digest, last = f"sum {first.client} {first.round} {first.exchange}", len(made) - 1
        return [
            (replace(event, digest=digest, carrier=first.client, more=last - number), one)
            for number, (event, _) in enumerate(made)
        ]


def make_fleet(name: str) -> Fleet:
    case = CASES[name]
    return Fleet(ExactRounds(make(name, case.fields), "fp32"), **settings_of(name))


def settings_of(name: str) -> dict[str, Any]:
    case = CASES[name]
    public = FEW if case.public else None
    return {"model": case.model, "measures": True, "most": FEW, "epochs": 1, "public_samples": public}


def test_the_usual_algorithms_can_be_grouped() -> None:
    assert {"fedavg", "fedprox", "scaffold", "fedopt", "feddyn", "ditto", "fedper"} <= set(POOLED)


@pytest.mark.long
@pytest.mark.parametrize("name", POOLED)
def test_grouping_changes_no_bit(name: str, tmp_path: Path) -> None:
    fleets = [make_fleet(name) for _ in range(3)]
    found = [
        bits(GroupingDriver(fleet, 2).run_grouped(group, tmp_path))
        for fleet, group in zip(fleets, (one_by_one, some_alone, all_together), strict=True)
    ]
    assert found[1:] == found[:1] * 2
    assert fleets[0].tasks_done == fleets[-1].tasks_done


def test_grouping_changes_no_bit_of_arrays_that_the_wire_makes_shorter(tmp_path: Path) -> None:
    """The clients receive fp64 arrays as fp32, and their sum has these subtracted."""
    sent = {"w": np.random.default_rng(1).normal(size=50)}
    received = {"w": sent["w"].astype(np.float32)}
    replies = [{"w": received["w"] + np.float32(step)} for step in (0.1, 0.3)]
    members = [SumMember(client, "0" * 16, 1.0, {}) for client in range(2)]
    header = SumHeader(run="run", round=1, exchange=0)
    one = PartialSum(open_arrays(write_partial_sum(tmp_path / "sum", header, members, replies, received).path))
    exact = ExactRounds(make("fedavg", CASES["fedavg"].fields), "fp32")
    task = Task("train", sent)
    found = [
        exact._average({0: task, 1: task}, {client: Reply(arrays) for client, arrays in enumerate(given)})
        for given in (replies, [one, one])
    ]
    assert found[0][0].arrays["w"].tobytes() == found[1][0].arrays["w"].tobytes()


@pytest.mark.parametrize("name", POOLED)
def test_the_exact_mean_is_the_usual_mean_but_for_rounding(name: str) -> None:
    usual = Driver(Fleet(make(name, CASES[name].fields), **settings_of(name)), 1).run()
    exact = Driver(make_fleet(name), 1).run()
    for part, other in ((usual.arrays, exact.arrays), (usual.extra, exact.extra)):
        assert sorted(part) == sorted(other)
        assert all(np.allclose(part[key], other[key], rtol=1e-4, atol=1e-6) for key in part)


def test_evaluations_and_soft_labels_are_never_grouped() -> None:
    fleet = make_fleet("fedavg")
    driver = Driver(fleet, 1)
    driver.run()
    kinds = {send.tasks[0].kind: send.tasks[0].summed for send in driver._sent.values()}
    assert kinds == {"train": True, "evaluate": False}
    task = driver._sent[1, 0].tasks[0]
    assert is_averaged(task)
    assert not is_averaged(replace(task, labels=True))
