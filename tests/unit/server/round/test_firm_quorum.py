"""A quorum that declines do not lower, and exchanges in which a round does not start again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from tests.unit.server.round.test_declined import decline
from tests.unit.server.round.test_machine import Driver, asked, kinds

from fedquilt_common.algorithm_api import Round, ServerContext, State, Task
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_server.round.events import Finish, Ticked
from fedquilt_server.round.policy import TOO_FEW, Policy

FIRM = Policy(rounds=3, clients=5, quorum=3, deadline=60.0, firm=True)


def start(policy: Policy, per_round: int | None = None, algorithm: FedAvg | None = None) -> Driver:
    driver = Driver(policy, algorithm, per_round)
    driver.join(0, *range(policy.clients))
    return driver


def test_fewer_replies_than_the_quorum_never_close_an_exchange() -> None:
    driver = start(FIRM)
    for client in (0, 1):
        driver.reply(1, client)
    for client in (2, 3):
        decline(driver, 2, client)
    assert driver.machine.round == 1
    assert driver.do(Ticked(61)) == []
    assert asked(driver) == [0, 1, 2, 3, 4]
    assert "Checkpoint" in kinds(driver.reply(62, 4))
    assert asked(driver) == [0, 1, 4]


def test_the_run_ends_when_too_few_clients_are_left_for_any_round() -> None:
    driver = start(FIRM)
    for client in range(5):
        driver.reply(1, client)
    for client in (0, 1):
        assert decline(driver, 2, client) == []
    assert decline(driver, 3, 2) == [Finish(TOO_FEW)]
    assert driver.machine.done == 1


def test_others_are_asked_when_too_few_of_the_asked_are_left() -> None:
    driver = start(replace(FIRM, clients=6), per_round=4)
    driver.reply(1, asked(driver)[0])
    first = asked(driver)
    assert decline(driver, 2, first[1]) == []
    assert kinds(decline(driver, 3, first[2])) == ["Send"]
    assert len(asked(driver)) == 4
    assert not {first[1], first[2]} & set(asked(driver))


@dataclass(frozen=True)
class Twice(FedAvg):
    """Its second exchange must not start again."""

    lasting: bool = True

    def round(self, state: State, ctx: ServerContext) -> Round:
        replies = yield dict.fromkeys(ctx.select(), Task("train", state.arrays))
        yield dict.fromkeys(replies, Task("train", state.arrays, {"second": True}, lasting=self.lasting))
        return state


@pytest.mark.parametrize("lasting", [True, False])
def test_a_lasting_exchange_waits_where_others_start_the_round_again(lasting: bool) -> None:
    policy = Policy(rounds=2, clients=6, quorum=3, deadline=60.0, shortfall="replace")
    driver = start(policy, per_round=3, algorithm=Twice(lasting))
    for client in asked(driver):
        driver.reply(1, client)
    before = asked(driver)
    assert kinds(driver.do(Ticked(61.5))) == ([] if lasting else ["Send"])
    assert (asked(driver) == before) == lasting
