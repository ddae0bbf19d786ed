"""Breadth-first search through every state that a machine can reach in a small world; checks each step."""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tests.exploration.world import START, Elapse, Move, ScriptedRound, World, fork, goes_on, key_of, moves

from fedquilt_common.algorithm_api import State
from fedquilt_server.round.events import (
    Checkpoint,
    Command,
    CutOff,
    Event,
    Joined,
    Left,
    Receipt,
    Rejected,
    Replied,
    Resumed,
    RoundRestarted,
    Send,
    decode_event,
    encode_event,
    skip_dropped,
)
from fedquilt_server.round.machine import Machine

Journal = tuple["Journal", Event] | None
"""The events since the checkpoint, newest first; journals share what they have in common."""
SAMPLE = 50
"""One in so many steps to a state that is known already is kept, to check that the way there does not matter."""


class PropertyError(AssertionError):
    """A property of the machine does not hold; the text has the shortest list of events that shows it."""


@dataclass(frozen=True)
class Saved:
    """The newest checkpoint."""

    done: int
    state: State
    snapshot: str
    at: float


@dataclass(frozen=True)
class Node:
    """A state of the world; ``boots`` has the newest boot of each agent."""

    machine: Machine
    now: float
    boots: dict[str, int]
    saved: Saved
    journal: Journal = None


@dataclass
class Explored:
    """The graph of a world's states, which are numbered in the order of their discovery, and what it amounts to.

    Attributes:
        parents: by state, the state and the move that led to it first.
        first: by state, the position of its first step in ``targets`` and ``alone``.
        targets: by step, the state after it.
        alone: by step, whether it happens without a join, a leave or a crash.
        able: by state, whether the connected clients alone must be able to finish the run.
        repeats: some of the ways to states that were known already.
    """

    world: World
    recoveries: int = 0
    depth: int = 0
    parents: list[tuple[int, Move | None]] = field(default_factory=list)
    first: array[int] = field(default_factory=lambda: array("l"))
    targets: array[int] = field(default_factory=lambda: array("l"))
    alone: bytearray = field(default_factory=bytearray)
    able: bytearray = field(default_factory=bytearray)
    finished: list[int] = field(default_factory=list)
    models: dict[tuple[object, ...], bytes] = field(default_factory=dict)
    repeats: list[tuple[int, Node]] = field(default_factory=list)

    @property
    def states(self) -> int:
        """Distinct states."""
        return len(self.parents)

    @property
    def transitions(self) -> int:
        """Steps that were taken and checked."""
        return len(self.targets)

    def path(self, state: int) -> list[str]:
        """Return the events that lead to a state; there is no shorter list."""
        labels = []
        while state:
            state, move = self.parents[state]
            labels.append(_label(move))
        return labels[::-1]

    def enter(self, node: Node, parent: tuple[int, Move | None]) -> int:
        """Add a state; returns its number."""
        number = self.states
        self.parents.append(parent)
        self.able.append(len(node.machine.host_of) >= self.world.needed)
        if node.machine.finished:
            self.finished.append(number)
        return number


def explore(world: World) -> Explored:
    """Visit every reachable state of a world, and check every step.

    Raises:
        PropertyError: a property does not hold.
    """
    found = Explored(world)
    start = Node(world.machine(), 0.0, dict.fromkeys(world.claims, 1), Saved(0, START, "", 0.0))
    numbers = {_digest(start): found.enter(start, (0, None))}
    waiting = deque([(0, start)])
    while waiting:
        found.depth, node = waiting.popleft()
        number = len(found.first)
        found.first.append(found.transitions)
        for move in moves(world, node.machine, node.now, node.boots):
            after = _checked(found, number, node, move)
            key = _digest(after)
            if key not in numbers:
                numbers[key] = found.enter(after, (number, move))
                after = _checked_recovery(found, numbers[key], after)
                waiting.append((found.depth + 1, after))
            elif numbers[key] != number and found.transitions % SAMPLE == 0:
                found.repeats.append((numbers[key], after))
            found.targets.append(numbers[key])
            found.alone.append(goes_on(node.machine, move))
    found.first.append(found.transitions)
    _check_repeats(found, numbers)
    check_liveness(found)
    return found


def _check_repeats(found: Explored, numbers: dict[bytes, int]) -> None:
    """Check that states with the same key do the same: what the key leaves out decides nothing."""
    for number, node in found.repeats:
        steps = moves(found.world, node.machine, node.now, node.boots)
        targets = [numbers.get(_digest(_checked(found, number, node, move))) for move in steps]
        known = list(found.targets[found.first[number] : found.first[number + 1]])
        if targets != known:
            error = AssertionError("not so: two ways to one state go on in the same way")
            raise PropertyError(_story(found, found.path(number), error))
    found.repeats.clear()


def _digest(node: Node) -> bytes:
    return hashlib.blake2b(repr(key_of(node.machine, node.now)).encode(), digest_size=12).digest()


def _checked(found: Explored, number: int, node: Node, move: Move) -> Node:
    try:
        return _step(found, node, move)
    except Exception as error:
        raise PropertyError(_story(found, [*found.path(number), _label(move)], error)) from error


def _checked_recovery(found: Explored, number: int, node: Node) -> Node:
    """Check what a crash in this state would do; returns the state with its last event as the journal has it."""
    found.recoveries += 1
    try:
        if node.journal is not None:
            node = replace(node, journal=(node.journal[0], decode_event(*encode_event(node.journal[1]))))
        again = recover(found.world, node)
        _require(key_of(again, node.now) == key_of(node.machine, node.now), "a recovered machine is in the same state")
    except Exception as error:
        raise PropertyError(_story(found, [*found.path(number), "crash"], error)) from error
    return node


def _story(found: Explored, path: list[str], error: Exception) -> str:
    steps = "\n".join(f"  {place}. {label}" for place, label in enumerate(path, 1))
    return f"{found.world}: {error or type(error).__name__}, after\n{steps}"


# --- one step, as the coordinator's driver takes it --------------------------------------------------------------


def _step(found: Explored, node: Node, move: Move) -> Node:
    if isinstance(move, Elapse):
        wake = node.machine.wake_at
        assert wake is not None
        return replace(node, now=wake)
    machine = fork(node.machine)
    commands = machine.handle(move)
    boots = node.boots | {move.agent: move.boot} if isinstance(move, Joined) else node.boots
    after = replace(node, machine=machine, boots=boots, journal=(node.journal, move))
    _check_replies(node.machine, move, commands, machine)
    _check_open_tasks(machine)
    for command in commands:
        if isinstance(command, Checkpoint):
            after = _checkpoint(found, after, command)
    return after


def _checkpoint(found: Explored, node: Node, command: Checkpoint) -> Node:
    """Close a round, and check what a coordinator that is killed before or after the checkpoint would do."""
    history, bits = command.state.report["counted"], command.state.arrays["w"].tobytes()
    _require(found.models.setdefault(history, bits) == bits, "the model depends only on the replies that counted")
    before = recover(found.world, node)
    node.machine.proceed(command.state, node.now)
    saved = Saved(command.round, command.state, command.snapshot, node.now)
    node = replace(node, saved=saved, journal=None)
    after = recover(found.world, node)
    here = key_of(node.machine, node.now)
    _require(key_of(before, node.now) == here, "a crash before the checkpoint is durable changes nothing")
    _require(key_of(after, node.now) == here, "a crash after the checkpoint is durable changes nothing")
    return node


def recover(world: World, node: Node) -> Machine:
    """Rebuild the machine from the checkpoint and the journal, as the coordinator does when it starts."""
    saved = node.saved
    machine = world.machine(saved.done, saved.state)
    if saved.snapshot:
        machine.restore(saved.snapshot, saved.at)
    for _, event in skip_dropped(list(enumerate(_events(node.journal), 1))):
        for command in machine.handle(event):
            if isinstance(command, Checkpoint):
                machine.proceed(command.state, node.now)
    return machine


def _events(journal: Journal) -> list[Event]:
    newest_first = []
    while journal is not None:
        journal, event = journal
        newest_first.append(event)
    return newest_first[::-1]


# --- properties of a step ------------------------------------------------------------------------------------------


def _check_replies(before: Machine, move: Event, commands: list[Command], after: Machine) -> None:
    """Each accepted reply counts exactly once; a reply that is not accepted changes nothing."""
    receipts = [command for command in commands if isinstance(command, Receipt)]
    _require(len(receipts) == isinstance(move, Replied), "a reply has one receipt, no other event has one")
    accepted = {(move.client, move.exchange) for r in receipts if isinstance(move, Replied) and r.outcome == "accepted"}
    held = replies_of(before)
    _require(not accepted & held, "a reply is accepted once")
    _require(all(client in before.awaited for client, _ in accepted), "only a reply to a task is accepted")
    closed = [command for command in commands if isinstance(command, Checkpoint)]
    counted = _number(closed[0].state.report["counted"][-1]) if closed else replies_of(after)
    if _restarts(before, move, commands):
        _require(counted <= held | accepted, "a round that starts again keeps only accepted replies")
    else:
        _require(counted == held | accepted, "exactly the accepted replies count")


def replies_of(machine: Machine) -> set[tuple[int, int]]:
    """Return client and exchange of all replies of the open round that count."""
    if machine.exchange is None or not isinstance(machine._round, ScriptedRound):
        return set()
    return _number((*machine._round.counted, tuple(machine.exchange.replies)))


def _number(counted: tuple[tuple[int, ...], ...]) -> set[tuple[int, int]]:
    return {(client, exchange) for exchange, clients in enumerate(counted) for client in clients}


def _restarts(before: Machine, move: Event, commands: list[Command]) -> bool:
    """Whether the open round starts again with other clients."""
    begins = any(isinstance(c, Send) and (c.round, c.exchange) == (before.round, 0) for c in commands)
    return begins and before.exchange is not None and not isinstance(move, Resumed | CutOff)


def _check_open_tasks(machine: Machine) -> None:
    """A client with a task can always reply: nothing makes its task unanswerable."""
    exchange = machine.exchange
    if exchange is None:
        return
    for client in machine.awaited:
        verdict, reason = machine.judge(client, machine.round, exchange.number)
        _require(verdict == "accepted", f"the reply of client {client} to its open task is accepted, not: {reason}")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(f"not so: {what}")


# --- properties of the graph -----------------------------------------------------------------------------------------


def check_liveness(found: Explored) -> None:
    """No state is a dead end, and a run with enough connected clients finishes without a join, a leave or a crash.

    Raises:
        PropertyError: a run cannot finish from some state.
    """
    _check_ends(found, _reaching(found, b"\1" * found.transitions), range(found.states), "the run can finish")
    able = [state for state in range(found.states) if found.able[state]]
    _check_ends(found, _reaching(found, found.alone), able, "the connected clients alone can finish the run")


def _reaching(found: Explored, allowed: Sequence[int]) -> bytearray:
    """Mark the states from which allowed steps lead to a finished one."""
    before: list[list[int]] = [[] for _ in range(found.states)]
    for state in range(found.states):
        for step in range(found.first[state], found.first[state + 1]):
            if allowed[step] and found.targets[step] != state:
                before[found.targets[step]].append(state)
    marks = bytearray(found.states)
    waiting = list(found.finished)
    while waiting:
        state = waiting.pop()
        if not marks[state]:
            marks[state] = 1
            waiting += before[state]
    return marks


def _check_ends(found: Explored, marks: bytearray, states: Iterable[int], what: str) -> None:
    stuck = next((state for state in states if not marks[state]), None)
    if stuck is not None:
        raise PropertyError(_story(found, found.path(stuck), AssertionError(f"not so: {what}")))


def _label(move: Move | None) -> str:
    match move:
        case Joined(agent=agent, clients=clients):
            return f"{agent} joins with clients {clients}"
        case Left(agent=agent, boot=boot):
            return f"{agent} leaves (boot {boot})"
        case Replied(client=client, round=number, exchange=exchange):
            return f"client {client} replies to {number}.{exchange}"
        case Rejected(agent=agent, client=rejected):
            return f"{agent} is refused for client {rejected}"
        case Resumed():
            return "crash and recovery"
        case CutOff():
            return "no message can arrive for a while"
        case RoundRestarted():
            return "a reply on disk is damaged"
        case Elapse():
            return "time passes until the wake-up"
    return type(move).__name__
