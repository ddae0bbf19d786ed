"""The table of states: what it allows, what it draws, and what the machine's invariants find."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.server.round.test_machine import Driver

from fedquilt_server.round import events
from fedquilt_server.round.events import Checkpoint, Joined, Left, Replied, Ticked
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy
from fedquilt_server.round.states import (
    PROCEED,
    TRANSITIONS,
    IllegalTransitionError,
    RunState,
    Transition,
    check_transition,
)

DOCS = Path(__file__).parents[4] / "docs" / "machine.md"


def mermaid() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {RunState.WAITING.value}"]
    lines += [f"    {t.source.value} --> {t.target.value}: {_label(t)}" for t in TRANSITIONS]
    return "\n".join([*lines, f"    {RunState.FINISHED.value} --> [*]"])


def _label(transition: Transition) -> str:
    causes = " or ".join(transition.causes)
    condition = f", {transition.condition}" if transition.condition else ""
    commands = f" / {', '.join(transition.commands)}" if transition.commands else ""
    return f"{causes}{condition}{commands}"


def test_the_docs_draw_the_table() -> None:
    drawn = DOCS.read_text().split("<!-- states:begin -->")[1].split("<!-- states:end -->")[0]
    assert drawn.strip() == f"```mermaid\n{mermaid()}\n```", f"put this between the markers:\n{mermaid()}"


def test_every_name_in_the_table_is_an_event_or_a_command() -> None:
    for transition in TRANSITIONS:
        for name in (*transition.causes, *transition.commands):
            assert name == PROCEED or hasattr(events, name), name


def test_every_state_is_reached_and_left() -> None:
    assert {t.target for t in TRANSITIONS} == set(RunState)
    assert {t.source for t in TRANSITIONS} == set(RunState) - {RunState.FINISHED}


@pytest.mark.parametrize(
    ("source", "cause", "target"),
    [
        (RunState.WAITING, "Left", RunState.CLOSED),
        (RunState.WAITING, "Left", RunState.OPEN),
        (RunState.OPEN, "Replied", RunState.FINISHED),
        (RunState.FINISHED, "Joined", RunState.OPEN),
        (RunState.CLOSED, "Joined", RunState.CLOSED),
    ],
)
def test_what_the_table_does_not_have_is_named(source: RunState, cause: str, target: RunState) -> None:
    with pytest.raises(IllegalTransitionError, match=rf"{cause} led from {source.value} to {target.value}"):
        check_transition(source, cause, target)


def test_no_event_is_handled_before_the_checkpoint_is_durable() -> None:
    machine = machine_with_open_exchange()
    (checkpoint,) = [c for c in reply(machine) if isinstance(c, Checkpoint)]
    assert state_of(machine) is RunState.CLOSED
    with pytest.raises(IllegalTransitionError, match="Ticked in state Closed: call proceed first"):
        machine.handle(Ticked(4.0))
    machine.proceed(checkpoint.state, checkpoint.at)
    assert state_of(machine) is RunState.OPEN
    machine.handle(Left(5.0, "pi", 1))


def state_of(machine: Machine) -> RunState:
    return machine.run_state


def machine_with_open_exchange() -> Machine:
    machine = Driver(Policy(2, 1, 1)).machine
    assert state_of(machine) is RunState.WAITING
    machine.handle(Joined(1.0, "pi", 1, (0,)))
    assert state_of(machine) is RunState.OPEN
    return machine


def reply(machine: Machine) -> list[events.Command]:
    return machine.handle(Replied(2.0, "pi", 0, 1, 0, "1", 1.0))


def test_a_broken_invariant_is_named() -> None:
    machine = machine_with_open_exchange()
    machine.host_of[0] = "nobody"
    with pytest.raises(AssertionError, match="the host of each client is connected; found \\(0, 'nobody'\\)"):
        machine.validate()
    machine = machine_with_open_exchange()
    assert machine.exchange is not None
    machine.exchange.replies[0] = Replied(2.0, "pi", 0, 1, 0, "1", 1.0)
    with pytest.raises(AssertionError, match="each reply of this exchange is accepted once"):
        machine.validate()
