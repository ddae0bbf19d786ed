"""Mosquitto's access rules for one federation, made from the topic table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fedquilt_common.wire.mosquitto_version import VERSION_TOPIC
from fedquilt_common.wire.topics import COORDINATOR, HOME_ASSISTANT, ROOT, TOPIC_RULES, WATCH

_HEAD: Final = """\
# Access rules, written by fedquilt: the topics that each user can read and write. Everything else is refused, also to
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


def make_acl(federation: str, boards: Iterable[str]) -> str:
    """Return the ACL file of a federation.

    There are no rules for all users (``pattern``): a board that is missing here has no rights, not even on an open
    connection. So a revoked board is left out.

    Args:
        federation: its name.
        boards: names of the boards that are not revoked.
    """
    root = f"{ROOT}/{federation}"
    head = _HEAD.format(coordinator=COORDINATOR, watch=WATCH, home=HOME_ASSISTANT, root=root, version=VERSION_TOPIC)
    return head + "".join("\n".join(_board_rules(root, board)) + "\n" for board in sorted(boards))


def _board_rules(root: str, board: str) -> Iterator[str]:
    yield f"user {board}"
    for rule in TOPIC_RULES.values():
        yield f"topic {rule.agent_access} {root}/{rule.filter(board)}"
    yield ""
