"""The table of MQTT topics; subscriptions, parsing and the broker's ACL are made from it (docs/protocol.md)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from fedquilt_common.errors import ProtocolError

ROOT: Final = "fedquilt/v1"
NAME_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
NAME: Final = re.compile(NAME_PATTERN)
COORDINATOR, WATCH, HOME_ASSISTANT = "coordinator", "watch", "homeassistant"
AGENTS: Final = "agents/"
"""Level above the topics of each agent."""
RESERVED: Final = (COORDINATOR, WATCH, HOME_ASSISTANT)
"""User names that the broker's ACL reserves; no agent may have one of them."""
SITE_USER: Final = "site-"
"""Prefix of the user name of a site's bridge; no agent's name may begin with it."""
RELAY_SUFFIX: Final = "-relay"
"""End of the usual name of a site's relay, after the site's name."""
BRIDGE_UP, BRIDGE_DOWN = b"1", b"0"
"""What a site's Mosquitto publishes about its bridge: it is connected to the central broker, or not."""
_NUMBER_PATTERN: Final = "0|[1-9][0-9]{0,8}"
"""Only the form that ``str`` writes, so that no two topics mean the same."""
_LEVEL_PATTERNS: Final = {"agent": NAME_PATTERN, "site": NAME_PATTERN, "client": "0|[1-9][0-9]{0,5}"}
"""Forms of levels that are not any number; messages name clients below 1,000,000."""
_LEVEL: Final = re.compile("<([a-z]+)>")

TopicKind = Literal[
    "coordinator",
    "run",
    "round",
    "slices",
    "soft-labels",
    "end",
    "presence",
    "telemetry",
    "replies",
    "inbox",
    "requests",
    "data",
    "sites",
]
BridgeDirection = Literal["in", "out"]
"""The direction in which a site's bridge forwards a topic: from the central broker, or to it."""


@dataclass(frozen=True)
class TopicRule:
    """One row of the topic table.

    Attributes:
        suffix: the levels below the federation; a level in angle brackets varies.
        writer: who publishes. The other side reads; below ``agents/<agent>`` only this agent and the coordinator do.
            Agents do not read what a bridge publishes.
        retained: whether the broker retains the last message.
        read_back: whether an agent that writes the topic may read it, too.
    """

    suffix: str
    writer: Literal["coordinator", "agent", "bridge"]
    retained: bool
    read_back: bool = False

    @property
    def per_agent(self) -> bool:
        """Whether each agent has topics of this row of its own."""
        return "<agent>" in self.suffix

    @property
    def agent_access(self) -> Literal["read", "write", "readwrite", "none"]:
        """What the broker allows an agent to do with the row's topics; below ``agents/`` with its own only."""
        if self.writer == "agent":
            return "readwrite" if self.read_back else "write"
        return "read" if self.writer == "coordinator" else "none"

    @property
    def site_direction(self) -> BridgeDirection:
        """The only direction in which the row's topics cross the bridge of a site, so that no message can circle."""
        return "in" if self.writer == "coordinator" else "out"

    @property
    def per_slot(self) -> bool:
        """Whether the row's topics are numbered slots, which an agent subscribes to when a task names them."""
        return "<slot>" in self.suffix

    def filter(self, agent: str = "+") -> str:
        """An MQTT filter, without the federation, for the row's topics of ``agent`` (default: of all agents)."""
        fixed, varies, _ = self.suffix.replace("<agent>", agent).partition("<")
        return f"{fixed}#" if varies else fixed


TOPIC_RULES: Final[dict[TopicKind, TopicRule]] = {
    "coordinator": TopicRule("coordinator", "coordinator", True),
    "run": TopicRule("run", "coordinator", True),
    "round": TopicRule("round", "coordinator", True),
    "slices": TopicRule("slices/<slot>/<chunk>", "coordinator", True),
    "soft-labels": TopicRule("soft-labels/<slot>/<chunk>", "coordinator", True),
    "end": TopicRule("end", "coordinator", True),
    "presence": TopicRule("agents/<agent>/presence", "agent", True, read_back=True),
    "telemetry": TopicRule("agents/<agent>/telemetry", "agent", False),
    "replies": TopicRule("agents/<agent>/replies/<client>/<round>.<exchange>/<chunk>", "agent", False),
    "inbox": TopicRule("agents/<agent>/inbox", "coordinator", False),
    "requests": TopicRule("agents/<agent>/requests", "agent", False),
    "data": TopicRule("agents/<agent>/data", "coordinator", False),
    "sites": TopicRule("sites/<site>", "bridge", True),
}


AGENT_KINDS: Final[tuple[TopicKind, ...]] = tuple(k for k, rule in TOPIC_RULES.items() if rule.writer == "agent")
"""All that agents write, which the coordinator reads."""
RELAYED: Final[tuple[TopicKind, ...]] = ("presence", "telemetry", "replies")
"""What the relay of a site reads of the boards behind it."""


def check_name(name: str, what: str) -> str:
    """Return ``name`` if it can be one level of a topic.

    Args:
        name: a federation, an agent or another name that becomes a level.
        what: what ``name`` names, for the message ("agent").

    Raises:
        ProtocolError: it has other characters than letters, digits, ``_``, ``.`` and ``-``, or is too long.
    """
    if not NAME.fullmatch(name):
        raise ProtocolError(
            f"{what} {name[:80]!r} cannot be used in a topic: use 1 to 64 letters, digits, '_', '.' or '-', "
            "starting with a letter or digit"
        )
    return name


@dataclass(frozen=True)
class Address:
    """A parsed topic. A number that its kind does not have is -1."""

    kind: TopicKind
    agent: str = ""
    site: str = ""
    client: int = -1
    round: int = -1
    exchange: int = -1
    slot: int = -1
    chunk: int = -1

    @property
    def place(self) -> str:
        """Kind and slot as in the topic, such as ``slices/0``."""
        return f"{self.kind}/{self.slot}"


@dataclass(frozen=True)
class Topics:
    """The topics of one federation."""

    federation: str

    def __post_init__(self) -> None:
        check_name(self.federation, "federation")

    def _below(self, levels: str) -> str:
        return f"{ROOT}/{self.federation}/{levels}"

    def _topic(self, kind: TopicKind, **levels: object) -> str:
        return self._below(_LEVEL.sub(lambda level: str(levels[level[1]]), TOPIC_RULES[kind].suffix))

    @property
    def coordinator(self) -> str:
        """Topic of the coordinator's presence."""
        return self._topic("coordinator")

    @property
    def run(self) -> str:
        """Topic of the run."""
        return self._topic("run")

    @property
    def round(self) -> str:
        """Topic of the open exchange's manifest."""
        return self._topic("round")

    @property
    def end(self) -> str:
        """Topic of the run's end."""
        return self._topic("end")

    def slot_chunk(self, place: str, chunk: int) -> str:
        """Topic of one chunk at ``place``, such as ``slices/0`` or ``soft-labels/0``."""
        return self._below(f"{place}/{chunk}")

    def slot_chunks(self, place: str) -> str:
        """Filter for every chunk at ``place``."""
        return self._below(f"{place}/+")

    def presence(self, agent: str) -> str:
        """Topic of an agent's presence."""
        return self._topic("presence", agent=agent)

    def telemetry(self, agent: str) -> str:
        """Topic of an agent's telemetry."""
        return self._topic("telemetry", agent=agent)

    def inbox(self, agent: str) -> str:
        """Topic on which the coordinator writes to one agent."""
        return self._topic("inbox", agent=agent)

    def requests(self, agent: str) -> str:
        """Topic on which an agent asks for chunks of samples."""
        return self._topic("requests", agent=agent)

    def data(self, agent: str) -> str:
        """Topic on which the coordinator publishes chunks of samples to one agent."""
        return self._topic("data", agent=agent)

    def reply_chunk(self, agent: str, client: int, round: int, exchange: int, chunk: int) -> str:
        """Topic of one chunk of a client's reply."""
        return self._topic("replies", agent=agent, client=client, round=round, exchange=exchange, chunk=chunk)

    def site(self, site: str) -> str:
        """Topic of the state of a site's bridge: ``1`` while it is connected to the central broker, else ``0``."""
        return self._topic("sites", site=site)

    def site_filters(self, boards: Iterable[str], relay: str | None = None) -> list[tuple[BridgeDirection, str]]:
        """Filters for all that crosses the bridge of a site, each with its direction.

        Args:
            boards: those behind the site.
            relay: the agent that sends their replies; None: each sends its own.
        """
        names = {kind: sorted(boards) if rule.per_agent else [""] for kind, rule in TOPIC_RULES.items()}
        if relay is not None:
            names = {kind: [*found, relay] if TOPIC_RULES[kind].per_agent else found for kind, found in names.items()}
            names["replies"] = [relay]
        return [
            (rule.site_direction, self._below(rule.filter(agent)))
            for kind, rule in TOPIC_RULES.items()
            if rule.writer != "bridge"
            for agent in names[kind]
        ]

    def filters(self, *kinds: TopicKind, agent: str = "+") -> list[str]:
        """Filters for some kinds of topics of ``agent`` (default: of all agents)."""
        return [self._below(TOPIC_RULES[kind].filter(agent)) for kind in kinds]

    def origin(self, topic: str) -> tuple[str, str] | None:
        """Return the agent and the next level of a topic below ``agents/``, unchecked; None for any other topic."""
        head = self._below(AGENTS)
        if not topic.startswith(head):
            return None
        agent, _, rest = topic[len(head) :].partition("/")
        return agent, rest.partition("/")[0]

    def agent_filters(self, agent: str) -> list[str]:
        """Filters that an agent subscribes to before it has a task: its inbox first, what it writes itself last."""
        rules = [rule for rule in TOPIC_RULES.values() if "read" in rule.agent_access and not rule.per_slot]
        order = sorted(rules, key=lambda rule: (rule.writer == "agent", not rule.per_agent))
        return [self._below(rule.filter(agent)) for rule in order]

    def parse(self, topic: str) -> Address:
        """Parse a topic of this federation.

        Raises:
            ProtocolError: it is not one of the topics in ``TOPIC_RULES``.
        """
        head = self._below("")
        address = _parse_levels(topic[len(head) :]) if topic.startswith(head) else None
        if address is None:
            raise ProtocolError(f"topic {topic[:200]!r} is not one of federation {self.federation!r}")
        return address


def _pattern(rule: TopicRule) -> re.Pattern[str]:
    def group(level: re.Match[str]) -> str:
        return f"(?P<{level[1]}>{_LEVEL_PATTERNS.get(level[1], _NUMBER_PATTERN)})"

    return re.compile(_LEVEL.sub(group, rule.suffix.replace(".", r"\.")))


_PATTERNS: Final = {kind: _pattern(rule) for kind, rule in TOPIC_RULES.items()}


def _parse_levels(levels: str) -> Address | None:
    for kind, pattern in _PATTERNS.items():
        if match := pattern.fullmatch(levels):
            found = match.groupdict()
            agent, site = found.pop("agent", ""), found.pop("site", "")
            return Address(kind, agent, site, **{level: int(number) for level, number in found.items()})
    return None
