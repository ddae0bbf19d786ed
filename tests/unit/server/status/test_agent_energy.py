"""The energy of the boards, from counters that begin again with each start of an agent."""

from __future__ import annotations

import pytest

from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_server.status.agent_list import AgentList


def connect(agents: AgentList, at: float, name: str = "pi") -> None:
    agents.update_presence(AgentPresence(agent=name, online=True, boot=1), at)


def report(
    agents: AgentList,
    at: float,
    joules: float | None,
    *,
    boot: int = 1,
    watts: float | None = 5.0,
    name: str = "pi",
    waited: float = 0.0,
) -> None:
    source = "estimate" if name == "pi" else "sensor"
    message = Telemetry(agent=name, boot=boot, joules=joules, power=watts, power_source=source, interval=2.0)
    agents.update_telemetry(message, at, waited)


def joules_of(agents: AgentList, name: str = "pi") -> float | None:
    board = agents.find(name)
    assert board is not None
    return board.joules


@pytest.fixture
def agents() -> AgentList:
    made = AgentList()
    connect(made, 0.0)
    return made


def test_energy_goes_on_after_a_restart_of_the_agent(agents: AgentList) -> None:
    report(agents, 0.0, 100.0)
    report(agents, 3.0, 110.0)
    report(agents, 5.0, 4.0, boot=2)
    assert agents.settle_energy(5.0) == joules_of(agents) == 14.0


def test_counters_of_two_agents_with_one_id_are_each_counted_once(agents: AgentList) -> None:
    for second in range(1, 61):
        report(agents, float(second), 5.0 * second, watts=0.0)
        report(agents, second + 0.5, 3.0 * second, boot=2, watts=0.0)
    assert joules_of(agents) == 5.0 * 59 + 3.0 * 60


def test_a_second_agent_that_has_run_for_long_does_not_bring_all_its_joules(agents: AgentList) -> None:
    report(agents, 0.0, 1000.0, boot=7, watts=0.0)
    report(agents, 1.0, 1e9, boot=3, watts=5.0)
    report(agents, 2.0, 1e9 + 5, boot=3, watts=0.0)
    assert joules_of(agents) == 10.0


def test_a_board_that_names_a_new_start_in_each_report_takes_no_memory(agents: AgentList) -> None:
    for start in range(1000):
        report(agents, float(start), 0.0, boot=start, watts=0.0)
    assert len(agents._energy["pi"]._starts) == 8


def test_before_its_first_report_a_board_takes_the_power_of_that_report(agents: AgentList) -> None:
    assert agents.settle_energy(1.0) is None
    report(agents, 2.0, 100.0)
    assert agents.settle_energy(2.0) == 10.0
    report(agents, 4.0, 106.0)
    assert agents.settle_energy(4.0) == 16.0


def test_a_report_that_comes_long_after_the_connection_counts_no_longer_than_it_was_due(agents: AgentList) -> None:
    report(agents, 5.0, None, watts=None)
    report(agents, 500.0, 0.0)
    assert agents.settle_energy(500.0) == 10.0


def test_a_board_takes_its_last_power_until_its_next_report_is_due(agents: AgentList) -> None:
    report(agents, 0.0, 100.0)
    assert [agents.settle_energy(at) for at in (0.0, 1.0, 2.0, 60.0)] == [0.0, 5.0, 10.0, 10.0]
    agents.update_online("pi", online=False)
    report(agents, 61.0, 112.0)
    assert agents.settle_energy(62.0) == 12.0


def test_energy_never_decreases(agents: AgentList) -> None:
    report(agents, 0.0, 100.0)
    assert agents.settle_energy(2.0) == 10.0
    report(agents, 2.0, 103.0, watts=1.0)  # it took less than was assumed
    assert joules_of(agents) == 10.0
    report(agents, 10.0, 102.0, watts=0.0)  # a counter that goes back counts nothing twice
    report(agents, 12.0, 104.0, watts=0.0)
    assert joules_of(agents) == 10.0
    report(agents, 20.0, 115.0, watts=0.0)
    assert joules_of(agents) == 15.0


def test_a_counter_without_a_power_is_not_0_joules(agents: AgentList) -> None:
    report(agents, 0.0, 0.0, watts=None)
    assert agents.settle_energy(1.0) is None
    assert joules_of(agents) is None
    report(agents, 2.0, 7.0)
    assert agents.settle_energy(2.0) == 7.0


def test_a_resumed_coordinator_goes_on_from_what_was_recorded() -> None:
    agents = AgentList()
    agents.restore_energy({"pi": 40.0, "gone": 2.0})
    connect(agents, 100.0)
    assert joules_of(agents) == 40.0
    assert agents.settle_energy(101.0) == 42.0  # a recovery may end a round before any board has reported
    assert agents.energy_sources == set()
    report(agents, 101.0, 900.0)
    assert joules_of(agents) == 45.0
    assert agents.settle_energy(101.0) == 47.0


@pytest.mark.parametrize("boot", [1, 2])
def test_what_a_board_used_while_the_coordinator_was_down_does_not_count(boot: int) -> None:
    """The broker kept its reports, which arrive together; the agent may have restarted meanwhile."""
    agents = AgentList()
    agents.restore_energy({"pi": 40.0})
    connect(agents, 100.0)
    for seconds in (20.0, 10.0, 1.0):
        report(agents, 100.0, 900.0 - 5.0 * seconds, waited=seconds)
        assert joules_of(agents) == 40.0
    report(agents, 101.0, 905.0 if boot == 1 else 10.0, boot=boot)  # 10 J in 2 s, one of them before the connection
    assert joules_of(agents) == 45.0
    report(agents, 103.0, 915.0 if boot == 1 else 20.0, boot=boot)
    assert joules_of(agents) == 55.0


def test_the_sources_are_those_of_boards_that_report_energy(agents: AgentList) -> None:
    connect(agents, 0.0, "jetson")
    report(agents, 1.0, None, name="jetson")
    assert agents.energy_sources == set()
    report(agents, 1.0, 10.0)
    assert agents.energy_sources == {"estimate"}
    report(agents, 2.0, 10.0, name="jetson")
    assert agents.energy_sources == {"estimate", "sensor"}
