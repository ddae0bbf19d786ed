"""The access rules are those of the topic table."""

from __future__ import annotations

from fedquilt_common.wire.topics import TOPIC_RULES
from fedquilt_server.provisioning.acl import make_acl


def rules_of(acl: str, user: str) -> list[str]:
    section = acl.split(f"\nuser {user}\n")[1].split("\nuser ")[0]
    return [line for line in section.splitlines() if line.startswith("topic ")]


def test_each_board_has_a_line_for_each_row_of_the_topic_table() -> None:
    acl = make_acl("lab", ["b", "a"])
    for board in ("a", "b"):
        rows = [f"topic {rule.agent_access} fedquilt/v1/lab/{rule.filter(board)}" for rule in TOPIC_RULES.values()]
        assert rules_of(acl, board) == rows
    assert acl.index("user a\n") < acl.index("user b\n")


def test_no_rule_is_for_all_users() -> None:
    """So a user without a section, such as a revoked board, has no rights."""
    acl = make_acl("lab", ["a"])
    assert "pattern" not in acl
    assert acl.index("user ") < acl.index("\ntopic ")
