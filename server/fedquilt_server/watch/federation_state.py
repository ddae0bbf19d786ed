"""What a federation's control messages reveal of a run. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fedquilt_common.wire.messages import (
    CoordinatorPresence,
    EndMessage,
    ReceiptMessage,
    RunMessage,
)
from fedquilt_common.wire.parsing import parse, parse_inbox
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import BRIDGE_DOWN, TopicKind, Topics
from fedquilt_server.fleet.health import BoardHealth, update_board
from fedquilt_server.status.health import BoardFacts, judge_health
from fedquilt_server.status.snapshot import BoardStatus, Snapshot

KINDS: Final[tuple[TopicKind, ...]] = (
    "coordinator", "run", "round", "end", "sites", "presence", "telemetry", "inbox",
)  # fmt: skip
"""The topics that the state is made from. Models and replies are not among them: they are large."""
_REPORTED: Final = (
    "memory_used", "memory_own", "temperature", "power", "power_source", "joules", "load", "throttled", "interval",
)  # fmt: skip
"""What both kinds of records call by the same name."""


@dataclass(frozen=True)
class FederationState:
    """The latest control messages of one federation.

    Attributes:
        topics: the federation's topics.
        coordinator: the coordinator's presence; None before it arrives.
        run: the run; it stays after the coordinator has cleared it.
        round: the open exchange; None between two exchanges.
        opened_at: Unix time at which the exchange opened; None if it was open before.
        end: the end of the run.
        boards: the state of each board.
        cut_off: the sites whose bridge is not connected to the central broker.
        replied: clients whose reply to the open exchange was accepted.
        counts: receipts by outcome since the program began to watch.
        changes: number of the messages that changed the state.
    """

    topics: Topics
    coordinator: CoordinatorPresence | None = None
    run: RunMessage | None = None
    round: RoundMessage | None = None
    opened_at: float | None = None
    end: EndMessage | None = None
    boards: Mapping[str, BoardHealth] = field(default_factory=dict)
    cut_off: frozenset[str] = frozenset()
    replied: frozenset[int] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)
    changes: int = 0

    def take(self, topic: str, payload: bytes, *, retained: bool, now: float) -> FederationState:
        """Return the state after a message.

        Args:
            topic: where it arrived.
            payload: its content; empty if a retained message was cleared.
            retained: whether the broker had stored it.
            now: Unix time.

        Raises:
            ProtocolError: the message is not valid.
        """
        address = self.topics.parse(topic)
        kind = address.kind
        changes: dict[str, Any] = {}
        if kind == "inbox":
            changes = self._receipt(payload, topic)
        elif kind in ("presence", "telemetry"):
            board = update_board(self.boards, self.topics, topic, payload, retained=retained, now=now)
            changes = {} if board is None else {"boards": {**self.boards, board.board: board}}
        elif kind == "sites":
            changes = {"cut_off": self.cut_off - {address.site} | ({address.site} if payload == BRIDGE_DOWN else set())}
        elif kind == "coordinator":
            changes = {"coordinator": parse(CoordinatorPresence, payload, topic) if payload else None}
        elif kind == "run" and payload:
            changes = {"run": parse(RunMessage, payload, topic)}
        elif kind == "end":
            changes = {"end": parse(EndMessage, payload, topic) if payload else None}
        elif kind == "round":
            changes = self._exchange(payload, topic, None if retained else now)
        return replace(self, **changes, changes=self.changes + bool(changes))

    def _exchange(self, payload: bytes, topic: str, now: float | None) -> dict[str, Any]:
        message = parse(RoundMessage, payload, topic) if payload else None
        same = message is not None and self.round is not None and _exchange_id(message) == _exchange_id(self.round)
        replied = self.replied if same else frozenset()
        return {"round": message, "replied": replied, "opened_at": self.opened_at if same else now}

    def _receipt(self, payload: bytes, topic: str) -> dict[str, Any]:
        message = parse_inbox(payload, topic)
        if not isinstance(message, ReceiptMessage):
            return {}
        receipts = message.divide()
        counts = {**self.counts, message.outcome: self.counts.get(message.outcome, 0) + len(receipts)}
        known = message.outcome in ("accepted", "duplicate") and self.round is not None
        if known and _exchange_id(message) == _exchange_id(self.round):
            return {"counts": counts, "replied": self.replied | {receipt.client for receipt in receipts}}
        return {"counts": counts}

    def snapshot(self, now: float) -> Snapshot:
        """Return the state as a snapshot; what the messages do not hold has its default.

        Args:
            now: Unix time.
        """
        experiment = self.run.experiment if self.run else {}
        ended = self.end is not None and (self.run is None or self.end.run == self.run.run)
        asked = {client for task in (self.round.tasks if self.round else ()) for client in task.clients}
        awaited = asked - self.replied if self.round else self._unhosted(experiment)
        rounds = _number(experiment, "rounds")
        return Snapshot(
            version=self.changes,
            name=_text(experiment, "name"),
            run=self.end.run if self.end and ended else self.run.run if self.run else "",
            algorithm=_text(experiment, "algorithm", "name"),
            dataset=_text(experiment, "data", "set"),
            phase="finished" if ended else "training" if self.round else "waiting",
            message=self.end.reason if self.end and ended else "",
            broker_connected=self.coordinator is not None and self.coordinator.online,
            round=rounds if ended else self.round.round if self.round else 0,
            rounds=rounds,
            exchange=self.round.exchange if self.round else 0,
            tasks=len(asked),
            replies=len(self.replied & asked),
            awaited=[] if ended else sorted(awaited),
            deadline=self.round.deadline if self.round else None,
            opened_at=self.opened_at,
            boards=[board_status(board, now, board.site in self.cut_off) for board in self.boards.values()],
            accepted=self.counts.get("accepted", 0),
            late=self.counts.get("late", 0),
            rejected=self.counts.get("rejected", 0),
            duplicates=self.counts.get("duplicate", 0),
        )

    def _unhosted(self, experiment: Mapping[str, Any]) -> set[int]:
        """Return the clients of the experiment that no connected board hosts."""
        hosted = {client for board in self.boards.values() if board.state == "joined" for client in board.clients}
        return set(range(_number(experiment, "data", "clients"))) - hosted


def _exchange_id(message: RoundMessage | ReceiptMessage | None) -> tuple[str, int, int] | None:
    return None if message is None else (message.run, message.round, message.exchange)


def _value(experiment: Mapping[str, Any], *keys: str) -> object:
    """Return a value of an experiment, which another version of the program may have written."""
    value: object = experiment
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(experiment: Mapping[str, Any], *keys: str) -> str:
    value = _value(experiment, *keys)
    return value if isinstance(value, str) else ""


def _number(experiment: Mapping[str, Any], *keys: str) -> int:
    value = _value(experiment, *keys)
    return value if isinstance(value, int) and 0 <= value < 1_000_000 else 0


def board_status(board: BoardHealth, now: float, is_cut_off: bool = False) -> BoardStatus:
    """Return a board as the snapshot lists it.

    Args:
        board: what it reported last.
        now: Unix time, for a board that has become silent.
        is_cut_off: whether the site through which it connects is cut off.
    """
    seen = BoardStatus(
        agent=board.board,
        kind=board.kind,
        site=board.site,
        is_relay=board.is_relay,
        online=board.state == "joined",
        clients=board.clients,
        memory_total=board.memory_total,
        training={int(client): part for client, part in board.training.items()},
        last_seen=board.last_seen or 0.0,
        **{name: getattr(board, name) for name in _REPORTED},
    )
    silence = max(now - board.last_seen, 0.0) if board.last_seen else 0.0
    health, reason = judge_health(seen, BoardFacts(silence=silence, is_cut_off=is_cut_off), now)
    return seen.model_copy(update={"health": health, "reason": reason})
