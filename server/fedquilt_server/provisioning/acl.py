"""Mosquitto's access rules for one federation, made from the topic table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fedquilt_common.wire.mosquitto_version import VERSION_TOPIC
from fedquilt_common.wire.topics import (
    COORDINATOR,
    HOME_ASSISTANT,
    RELAYED,
    ROOT,
    SITE_USER,
    TOPIC_RULES,
    WATCH,
    Topics,
)

_HEAD: Final = """\
# Access rules, written by fedquilt: the topics that each user can read and write. Everything else is refused, even to
# users that are not named here. The broker accepts a subscription to a refused topic, but delivers no messages.

# The coordinator reads and writes every topic of the federation.
user {coordinator}
topic readwrite {root}/#
topic read {version}

# `{watch}` is for dashboards: it reads every topic of the federation and writes none.
user {watch}
topic read {root}/#
topic read {version}

# `{home}` is for Home Assistant and for `fedquilt homeassistant`, which publishes the boards' sensors for it. It has no
# rights in the federation.
user {home}
topic readwrite homeassistant/#

# Each board reads what the coordinator publishes to all boards. It writes its own topics only, reads its own presence,
# and reads its inbox.
"""


_SITE_HEAD: Final = """\
# Access rules of a site's broker, written by fedquilt: the topics that each user can read and write. Everything else is
# refused. The bridge to the central broker is no user: the file mosquitto.conf lists the topics that it forwards.

# `{watch}` is for dashboards and `fedquilt boards`: it reads every topic of the federation and writes none.
user {watch}
topic read {root}/#
topic read {version}

# Each board has the rights that it has at the central broker.
"""
_RELAY: Final = """\
# The relay adds the boards' replies up. It has the rights of a board, reads the boards' replies and what they publish
# about themselves, and writes their inboxes. It also reads whether the bridge is connected, for `fedquilt doctor`.
"""
_BRIDGES: Final = """\
# The bridge of each site has the rights of the boards behind it together. It also writes whether it is connected. Of a
# site with a relay, only the relay's replies cross the bridge.
"""


@dataclass(frozen=True)
class SiteAgents:
    """The agents behind a site.

    Attributes:
        boards: those that are not revoked.
        relay: the agent that sends their replies; None without one.
    """

    boards: Sequence[str]
    relay: str | None = None


def make_acl(federation: str, boards: Iterable[str], sites: Mapping[str, SiteAgents] | None = None) -> str:
    """Return the ACL file of a federation.

    There are no rules for all users (``pattern``): a board that is missing here has no rights, not even on an open
    connection. So a revoked board is left out.

    Args:
        federation: its name.
        boards: names of the boards that are not revoked.
        sites: the agents behind each site.
    """
    root = f"{ROOT}/{federation}"
    head = _HEAD.format(coordinator=COORDINATOR, watch=WATCH, home=HOME_ASSISTANT, root=root, version=VERSION_TOPIC)
    return head + _all_board_rules(root, boards) + (_all_bridge_rules(federation, sites) if sites else "")


def make_site_acl(federation: str, site: SiteAgents) -> str:
    """Return the ACL file of a site's broker, with the rights of ``watch``, of the site's boards and of its relay."""
    root = f"{ROOT}/{federation}"
    head = _SITE_HEAD.format(watch=WATCH, root=root, version=VERSION_TOPIC) + _all_board_rules(root, site.boards)
    if site.relay is None:
        return head
    *own, end = _board_rules(root, site.relay)
    return head + _RELAY + "\n".join([*own, *_relay_rules(root, site.boards), end, ""])


def _relay_rules(root: str, boards: Iterable[str]) -> Iterator[str]:
    """Yield what the relay of a site may do besides what each board may."""
    yield f"topic read {root}/{TOPIC_RULES['sites'].filter()}"
    for board in sorted(boards):
        for kind in RELAYED:
            yield f"topic read {root}/{TOPIC_RULES[kind].filter(board)}"
        yield f"topic write {root}/{TOPIC_RULES['inbox'].filter(board)}"


def _all_bridge_rules(federation: str, sites: Mapping[str, SiteAgents]) -> str:
    rules = [rule for site, agents in sorted(sites.items()) for rule in _bridge_rules(federation, site, agents)]
    return _BRIDGES + "\n".join([*rules, ""])


def _bridge_rules(federation: str, site: str, agents: SiteAgents) -> Iterator[str]:
    """Yield the rights of a site's bridge: it reads what it carries to the site, and writes what it carries from it."""
    topics = Topics(federation)
    yield f"user {SITE_USER}{site}"
    yield f"topic write {topics.site(site)}"
    for direction, name in topics.site_filters(agents.boards, agents.relay):
        yield f"topic {'read' if direction == 'in' else 'write'} {name}"
    yield ""


def _all_board_rules(root: str, boards: Iterable[str]) -> str:
    return "".join("\n".join(_board_rules(root, board)) + "\n" for board in sorted(boards))


def _board_rules(root: str, board: str) -> Iterator[str]:
    yield f"user {board}"
    for rule in (rule for rule in TOPIC_RULES.values() if rule.agent_access != "none"):
        yield f"topic {rule.agent_access} {root}/{rule.filter(board)}"
    yield ""
