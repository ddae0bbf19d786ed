"""The access rules are those of the topic table."""

from __future__ import annotations

from fedquilt_common.wire.topics import TOPIC_RULES
from fedquilt_server.provisioning.acl import make_acl, make_site_acl


def rules_of(acl: str, user: str) -> list[str]:
    section = acl.split(f"\nuser {user}\n")[1].split("\nuser ")[0]
    return [line for line in section.splitlines() if line.startswith("topic ")]


def test_each_board_has_a_line_for_each_row_of_the_topic_table() -> None:
    acl = make_acl("lab", ["b", "a"])
    granted = [rule for rule in TOPIC_RULES.values() if rule.agent_access != "none"]
    for board in ("a", "b"):
        rows = [f"topic {rule.agent_access} fedquilt/v1/lab/{rule.filter(board)}" for rule in granted]
        assert rules_of(acl, board) == rows
    assert acl.index("user a\n") < acl.index("user b\n")


def test_the_bridge_of_a_site_reads_what_its_boards_read_and_writes_what_they_write() -> None:
    acl = make_acl("lab", ["a", "b", "c"], {"hall": ["b"], "roof": []})
    rules = rules_of(acl, "site-hall")
    assert rules[0] == "topic write fedquilt/v1/lab/sites/hall"
    board = [line.replace("readwrite", "write") for line in rules_of(acl, "b")]
    assert sorted(rules[1:]) == sorted(board)
    assert not any("agents" in line for line in rules_of(acl, "site-roof"))


def test_a_sites_broker_has_the_rules_of_its_boards_and_no_coordinator() -> None:
    acl = make_site_acl("lab", ["b"])
    assert rules_of(acl, "b") == rules_of(make_acl("lab", ["a", "b"]), "b")
    assert "user watch\n" in acl
    assert "user coordinator" not in acl
    assert "user a\n" not in acl


def test_no_rule_is_for_all_users() -> None:
    """So a user without a section, such as a revoked board, has no rights."""
    acl = make_acl("lab", ["a"])
    assert "pattern" not in acl
    assert acl.index("user ") < acl.index("\ntopic ")
