"""The latest state and health of each board, from its presence and telemetry. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from fedquilt_common.doctor.pi_firmware import describe_throttling
from fedquilt_common.wire.messages import AgentPresence, Telemetry
from fedquilt_common.wire.parsing import parse, parse_telemetry
from fedquilt_common.wire.topics import Topics
from fedquilt_server.provisioning.board_rows import identity_state
from fedquilt_server.provisioning.record import FederationRecord
from fedquilt_server.provisioning.site_files import RELAY

DEFAULT_INTERVAL: Final = 30.0
"""Seconds between two messages of an agent of an earlier version."""
BoardState = Literal["not joined", "joined", "left"]


@dataclass(frozen=True)
class BoardHealth:
    """One board.

    Attributes:
        board: its name.
        kind: its kind.
        site: the site through whose broker it connects; empty without one.
        identity: state of its identity; empty for a board without one in this federation's folder.
        state: whether it has joined, and is connected.
        version: its version of fedquilt.
        clients: the clients that it hosts.
        memory_total: bytes of memory; 0 if it does not report it.
        memory_used: bytes in use.
        temperature: of the hottest sensor, in degrees Celsius.
        power: in watts.
        throttled: bits of a Raspberry Pi's ``get_throttled``; None on other boards.
        training: progress of each client in training, in [0, 1].
        reported: whether telemetry has arrived.
        last_seen: Unix time of its last message; None before the first one.
        power_source: origin of ``power`` and ``joules``: sensor, meter or estimate; empty without a figure.
        joules: energy since the agent's start.
        memory_own: bytes that the agent and its training processes hold.
        load: processes that run or wait for a processor, as an average over one minute.
        interval: seconds until its next message at the latest.
        is_cut_off: whether its site is cut off.
        is_relay: whether it is the relay of its site.
    """

    board: str
    kind: str = ""
    identity: str = ""
    state: BoardState = "not joined"
    version: str = ""
    clients: list[int] = field(default_factory=list)
    memory_total: int = 0
    memory_used: int | None = None
    temperature: float | None = None
    power: float | None = None
    throttled: int | None = None
    training: dict[str, float] = field(default_factory=dict)
    reported: bool = False
    last_seen: float | None = None
    power_source: str = ""
    joules: float | None = None
    memory_own: int | None = None
    load: float | None = None
    interval: float = DEFAULT_INTERVAL
    site: str = ""
    is_cut_off: bool = False
    is_relay: bool = False

    @property
    def problems(self) -> list[str]:
        """What is wrong with its site, and what the board's firmware reports about its voltage and temperature."""
        cut_off = [f"its site {self.site} is cut off"] if self.is_cut_off else []
        if self.is_relay and self.state != "joined":
            cut_off.append(f"the relay of site {self.site} is offline: the replies of its boards wait there")
        return [*cut_off, *describe_throttling(self.throttled or 0)]

    def as_row(self) -> dict[str, Any]:
        """Return the board as plain data, with ``problems`` in words."""
        return {**asdict(self), "problems": self.problems}


def known_boards(record: FederationRecord) -> dict[str, BoardHealth]:
    """Return the boards of a federation, and the relays of its sites, before the first message."""
    boards = {
        name: BoardHealth(name, board.kind, identity_state(board), site=board.site)
        for name, board in sorted(record.boards.items())
    }
    return boards | {name: BoardHealth(name, RELAY, site=site, is_relay=True) for name, site in record.relays.items()}


def update_board(
    boards: Mapping[str, BoardHealth], topics: Topics, topic: str, payload: bytes, *, retained: bool, now: float
) -> BoardHealth | None:
    """Return the board that a message changes, as it is after the message; None if it changes no board.

    Args:
        boards: the boards before the message.
        topics: the federation's topics.
        topic: where the message arrived.
        payload: its content; empty if a retained presence was cleared.
        retained: whether the broker had stored it: then its time is unknown.
        now: Unix time.

    Raises:
        ProtocolError: the message is not valid.
    """
    address = topics.parse(topic)
    before = boards.get(address.agent, BoardHealth(address.agent))
    seen = before if retained else replace(before, last_seen=now)
    if address.kind == "presence":
        message = parse(AgentPresence, payload, topic) if payload else None
        if message is None or not message.online:  # the broker may have published it: the last will
            return replace(before, state="left", training={})
        return _with_presence(seen, message)
    if address.kind == "telemetry":
        report = parse_telemetry(payload, topic)
        return _with_telemetry(seen, report) if isinstance(report, Telemetry) else seen
    return None


def mark_site(boards: Mapping[str, BoardHealth], site: str, is_cut_off: bool) -> dict[str, BoardHealth]:
    """Return all boards, those behind a site with whether it is cut off."""
    return {
        name: replace(board, is_cut_off=is_cut_off) if board.site == site else board for name, board in boards.items()
    }


def _with_presence(board: BoardHealth, message: AgentPresence) -> BoardHealth:
    return replace(
        board,
        state="joined",
        kind=message.profile.kind,
        site=message.site or "",
        is_relay=message.site_relay,
        version=message.version,
        clients=list(message.clients),
        memory_total=message.profile.memory,
    )


def _with_telemetry(board: BoardHealth, message: Telemetry) -> BoardHealth:
    return replace(
        board,
        memory_used=message.memory_used,
        memory_own=message.memory_own,
        load=message.load,
        temperature=message.temperature,
        power=message.power,
        joules=message.joules,
        power_source=message.power_source,
        throttled=message.throttled,
        training=dict(message.training),
        interval=message.interval or DEFAULT_INTERVAL,
        reported=True,
    )


def silent_boards(boards: Iterable[BoardHealth]) -> list[str]:
    """Return the boards that are connected and have not reported their health, without those whose site is cut off."""
    waited = (board for board in boards if board.state == "joined" and not board.is_cut_off)
    return sorted(board.board for board in waited if not board.reported)
