"""Secure aggregation and central privacy in the machine's rounds: silence, declines and new beginnings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.common.secure_aggregation.test_secure_sum import Board, fixed_mean, plain_reply
from tests.unit.server.lab.test_central_privacy import KEY, PRIVACY
from tests.unit.server.round.test_declined import decline
from tests.unit.server.round.test_machine import Driver, asked, labs

from fedquilt_common.algorithm_api import Algorithm, Reply, Round, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.secure_aggregation.server_half import SecureRounds
from fedquilt_common.secure_aggregation.tasks import KEYS, SHARES, UNMASK
from fedquilt_common.types import Arrays, ClientId
from fedquilt_server.lab.central_privacy import REPORT, CentralPrivacy
from fedquilt_server.round.events import Replied, Ticked
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy

CENTRAL = CentralPrivacy(FedAvg(), PRIVACY, KEY, "digest")


class Trainer(Board):
    """A client that answers masked and plain tasks."""

    def train(self, task: Task) -> Reply:
        return plain_reply(self.client)


class Federation(Driver):
    """A machine of six clients; four take part in a round and three are enough. The clients have memories."""

    def __init__(self, algorithm: Algorithm) -> None:
        policy = Policy(rounds=1, clients=6, quorum=3, deadline=60.0, shortfall="replace", firm=True)
        super().__init__(policy, algorithm, per_round=4)
        self.arrays: dict[str, Arrays] = {}
        self.boards = [Trainer(client) for client in range(6)]
        self.now = 0.0
        start = State({"weight": np.zeros((3, 5), np.float32), "steps": np.zeros((), np.int64)})
        self.machine = Machine(
            algorithm, policy, start, labs(4), lambda events: [self.arrays[e.digest] for e in events], validates=True
        )
        self.join(0, *range(6))

    def answer(self, kind: str, silent: Collection[ClientId] = ()) -> list[ClientId]:
        """Answer the open tasks, which are of this kind, but for those of silent clients; returns who was asked."""
        exchange = self.machine.exchange
        assert exchange is not None
        for client in sorted(set(exchange.tasks) - set(silent)):
            task = exchange.tasks[client]
            assert task.kind == kind
            reply = self.boards[client].answer(task) if exchange.tasks[client].scalars else plain_reply(client)
            digest = f"{len(self.arrays)}"
            self.arrays[digest] = reply.arrays
            self.now += 0.1
            self.do(Replied(self.now, "pi", client, 1, exchange.number, digest, reply.weight, reply.metrics))
        return sorted(exchange.tasks)

    def wait(self) -> None:
        """Let the deadline pass."""
        assert self.machine.wake_at is not None
        self.now = self.machine.wake_at + 0.5
        self.do(Ticked(self.now))

    def start_again(self) -> None:
        """Start the round again as after a crash that damaged a reply."""
        self.now += 1
        self.do(self.machine.restart_event(self.now, "a damaged file"))


def finish(federation: Federation, silent: Collection[ClientId] = ()) -> None:
    """Run the secure round to its end from its first step; some clients send nothing after their shares."""
    for kind in (KEYS, SHARES):
        federation.answer(kind)
    federation.answer("train", silent)
    if silent:
        federation.wait()
    federation.answer(UNMASK)


@pytest.mark.parametrize("reached", [(), (KEYS,), (KEYS, SHARES), (KEYS, SHARES, "train")])
def test_a_secure_round_that_starts_again_has_the_same_mean(reached: tuple[str, ...]) -> None:
    """Also where masks of the first beginning were sent: those of the second are others, and all of them go."""
    federation = Federation(SecureRounds(FedAvg(), 3))
    clients = asked(federation)
    for kind in reached:
        federation.answer(kind)
    federation.start_again()
    assert asked(federation) == clients
    finish(federation, silent=clients[:1])
    (checkpoint,) = federation.checkpoints
    assert (len(clients), checkpoint.state.report) == (4, {"summed": [3]})
    for name, array in fixed_mean(set(clients[1:])).items():
        np.testing.assert_array_equal(checkpoint.state.arrays[name], array)


def test_a_secure_round_goes_on_with_others_when_clients_decline() -> None:
    federation = Federation(SecureRounds(FedAvg(), 3))
    federation.answer(KEYS)
    first = asked(federation)
    for client in first[:2]:
        decline(federation, federation.now, client)
    second = asked(federation)
    assert len(second) == 4
    assert not set(first[:2]) & set(second)
    finish(federation)
    (checkpoint,) = federation.checkpoints
    for name, array in fixed_mean(set(second)).items():
        np.testing.assert_array_equal(checkpoint.state.arrays[name], array)


def test_a_private_round_that_starts_again_pays_once() -> None:
    """The mean of the first beginning was never seen, so the account has one round and the noise is the same."""
    states = []
    for again in (False, True):
        federation = Federation(CENTRAL)
        clients = asked(federation)
        if again:
            federation.answer("train", silent=clients[1:])
            federation.start_again()
        assert asked(federation) == clients
        federation.answer("train", silent=clients[:1])
        federation.wait()
        (checkpoint,) = federation.checkpoints
        states.append(checkpoint.state)
    plain, restarted = states
    np.testing.assert_array_equal(plain.arrays["weight"], restarted.arrays["weight"])
    assert plain.report[REPORT] == restarted.report[REPORT]
    assert len(restarted.extra["central_privacy/account"]) == 1


class Nobody(FedAvg):
    """Asks nobody, with an empty ``yield`` in even rounds."""

    def round(self, state: State, ctx: ServerContext) -> Round:
        assert ctx.round % 2 or (yield {}) == {}
        return State({name: state.arrays[name] + 1 for name in state.arrays}, state.extra)


@pytest.mark.parametrize(
    "algorithm", [SecureRounds(Nobody(), 3), replace(CENTRAL, inner=Nobody())], ids=["secure", "central"]
)
def test_a_wrapped_round_that_asks_nobody_is_over_at_once(algorithm: Algorithm) -> None:
    federation = Federation(algorithm)
    (checkpoint,) = federation.checkpoints
    assert (checkpoint.tally.asked, dict(checkpoint.state.report)) == (0, {})
    assert checkpoint.state.arrays["weight"].max() == 1


def test_a_round_that_asks_nobody_spends_no_central_privacy() -> None:
    federation = Federation(CENTRAL)
    federation.answer("train")
    spent = federation.machine.state
    context = labs(4)(2, {}, 0.0)
    with pytest.raises(StopIteration) as done:
        next(replace(CENTRAL, inner=Nobody()).round(spent, context))
    kept = done.value.value.extra
    assert len(kept) == 2
    assert all(kept[name] is x for name, x in spent.extra.items())
