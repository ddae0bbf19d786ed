"""Mosquitto's access rules for one federation, made from the topic table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fedquilt_common.wire.topics import COORDINATOR, ROOT, TOPIC_RULES, WATCH

_ACL: Final = """\
# Access rules: the topics that each user can read and write. Everything else is refused. The broker accepts a
# subscription to a refused topic, but delivers no messages. An agent's user name is the agent's name. Never name an
# agent "{coordinator}" or "{watch}": these users have rules of their own.

# The coordinator reads and writes every topic.
user {coordinator}
topic readwrite {root}/#

# `{watch}` is for dashboards: it reads every topic and writes none. The deny line overrides the rules for agents below.
user {watch}
topic deny {root}/agents/{watch}/#
topic read {root}/#

# Rules for agents; a pattern applies to all users, and %u is the user name.
# Each agent reads what the coordinator publishes to all agents.
{shared}
# It writes its own topics, reads its presence, and reads its inbox, but cannot write to the inbox.
{own}
"""


def make_acl(federation: str, revoked: Iterable[str]) -> str:
    """Return the ACL file of a federation.

    Args:
        federation: its name, or ``+`` for rules that hold in every federation of the broker.
        revoked: names of the revoked boards. Their deny rules override the rules for all users, also on a connection
            that is already open.
    """
    root = f"{ROOT}/{federation}"
    rules = _ACL.format(
        coordinator=COORDINATOR,
        watch=WATCH,
        root=root,
        shared="\n".join(_patterns(root, per_agent=False)),
        own="\n".join(_patterns(root, per_agent=True)),
    )
    denials = "".join(f"\nuser {board}\ntopic deny {ROOT}/#\n" for board in sorted(revoked))
    return rules + ("\n# Revoked:\n" + denials.lstrip("\n") if denials else "")


def _patterns(root: str, *, per_agent: bool) -> Iterator[str]:
    for rule in TOPIC_RULES.values():
        if rule.per_agent == per_agent:
            yield f"pattern {rule.agent_access} {root}/{rule.filter('%u')}"
