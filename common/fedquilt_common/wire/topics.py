"""Every topic string and who may write it, once (the table is in docs/protocol.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from fedquilt_common.errors import ProtocolError

ROOT: Final = "fedquilt/v1"
NAME_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
NAME: Final = re.compile(NAME_PATTERN)
COORDINATOR, WATCH = "coordinator", "watch"
RESERVED: Final = (COORDINATOR, WATCH)
"""Users of the broker's ACL that are no agents."""
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")

Kind = Literal[
    "coordinator", "run", "round", "end", "slices", "soft-labels", "presence", "replies", "telemetry", "inbox"
]


@dataclass(frozen=True)
class Rule:
    """One row of the topic table: the suffix below the federation, who writes it, whether it is retained."""

    suffix: str
    writer: Literal["coordinator", "agent"]
    retained: bool


RULES: Final[dict[Kind, Rule]] = {
    "coordinator": Rule("coordinator", "coordinator", True),
    "run": Rule("run", "coordinator", True),
    "round": Rule("round", "coordinator", True),
    "slices": Rule("slices/<slot>/<chunk>", "coordinator", True),
    "soft-labels": Rule("soft-labels/<slot>/<chunk>", "coordinator", True),
    "end": Rule("end", "coordinator", True),
    "presence": Rule("agents/<agent>/presence", "agent", True),
    "replies": Rule("agents/<agent>/replies/<client>/<round>.<exchange>/<chunk>", "agent", False),
    "telemetry": Rule("agents/<agent>/telemetry", "agent", False),
    "inbox": Rule("agents/<agent>/inbox", "coordinator", False),
}


def check_name(name: str, what: str) -> str:
    """``name`` itself when it can stand as one level of a topic.

    Raises:
        ProtocolError: when it holds anything but letters, digits, ``_``, ``.`` and ``-``, or is too long.
    """
    if not NAME.fullmatch(name):
        raise ProtocolError(
            f"{what} {name[:80]!r} cannot be used in a topic: use 1 to 64 letters, digits, '_', '.' or '-', "
            "starting with a letter or digit"
        )
    return name


@dataclass(frozen=True)
class Address:
    """A topic taken apart; numbers that the kind does not have are -1."""

    kind: Kind
    agent: str = ""
    client: int = -1
    round: int = -1
    exchange: int = -1
    slot: int = -1
    chunk: int = -1

    @property
    def place(self) -> str:
        """Kind and slot, as in the topic."""
        return f"{self.kind}/{self.slot}"


@dataclass(frozen=True)
class Topics:
    """The topics of one federation."""

    federation: str

    def __post_init__(self) -> None:
        check_name(self.federation, "federation")

    def _at(self, *levels: object) -> str:
        return "/".join((ROOT, self.federation, *map(str, levels)))

    @property
    def coordinator(self) -> str:
        return self._at("coordinator")

    @property
    def run(self) -> str:
        return self._at("run")

    @property
    def round(self) -> str:
        return self._at("round")

    @property
    def end(self) -> str:
        return self._at("end")

    def slot_chunk(self, place: str, chunk: int) -> str:
        """A chunk of what lies at ``place``, such as ``slices/0`` or ``soft-labels/0``."""
        return self._at(place, chunk)

    def slot_chunks(self, place: str) -> str:
        """Filter for every chunk of it."""
        return self._at(place, "+")

    def presence(self, agent: str) -> str:
        return self._at("agents", agent, "presence")

    def telemetry(self, agent: str) -> str:
        return self._at("agents", agent, "telemetry")

    def inbox(self, agent: str) -> str:
        return self._at("agents", agent, "inbox")

    def reply_chunk(self, agent: str, client: int, round: int, exchange: int, chunk: int) -> str:
        return self._at("agents", agent, "replies", client, f"{round}.{exchange}", chunk)

    def for_coordinator(self) -> list[str]:
        """What the coordinator subscribes to."""
        return [
            self._at("agents", "+", "presence"),
            self._at("agents", "+", "telemetry"),
            self._at("agents/+/replies/#"),
        ]

    def for_agent(self, agent: str) -> list[str]:
        """What an agent subscribes to before it has a task."""
        return [self.inbox(agent), self.coordinator, self.run, self.round, self.end]

    def parse(self, topic: str) -> Address:
        """Take a topic of this federation apart.

        Raises:
            ProtocolError: when it is none of the topics in ``RULES``.
        """
        head = self._at("")
        levels = topic[len(head) :].split("/") if topic.startswith(head) else []
        try:
            address = _address(levels)
        except ValueError:
            address = None
        if address is None:
            raise ProtocolError(f"topic {topic[:200]!r} is not one of federation {self.federation!r}")
        return address


def _address(levels: list[str]) -> Address | None:
    match levels:
        case ["coordinator" | "run" | "round" | "end" as kind]:
            return Address(kind)
        case ["slices" | "soft-labels" as kind, slot, chunk]:
            return Address(kind, slot=_number(slot), chunk=_number(chunk))
        case ["agents", agent, "presence" | "telemetry" | "inbox" as kind] if NAME.fullmatch(agent):
            return Address(kind, agent=agent)
        case ["agents", agent, "replies", client, exchange, chunk] if NAME.fullmatch(agent):
            first, _, second = exchange.partition(".")
            return Address("replies", agent, _number(client), _number(first), _number(second), chunk=_number(chunk))
    return None


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):  # as ``str`` writes it, so that no two topics mean the same
        raise ValueError(text)
    return int(text)
