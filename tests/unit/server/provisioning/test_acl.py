"""The access rules are those of the topic table."""

from __future__ import annotations

from fedquilt_common.wire.topics import TOPIC_RULES
from fedquilt_server.provisioning.acl import SiteAgents, make_acl, make_site_acl


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
    acl = make_acl("lab", ["a", "b", "c"], {"hall": SiteAgents(["b"]), "roof": SiteAgents([])})
    rules = rules_of(acl, "site-hall")
    assert rules[0] == "topic write fedquilt/v1/lab/sites/hall"
    board = [line.replace("readwrite", "write") for line in rules_of(acl, "b")]
    assert sorted(rules[1:]) == sorted(board)
    assert not any("agents" in line for line in rules_of(acl, "site-roof"))


def test_a_sites_broker_has_the_rules_of_its_boards_and_no_coordinator() -> None:
    acl = make_site_acl("lab", SiteAgents(["b"]))
    assert rules_of(acl, "b") == rules_of(make_acl("lab", ["a", "b"]), "b")
    assert "user watch\n" in acl
    assert "user coordinator" not in acl
    assert "user a\n" not in acl


def test_of_a_site_with_a_relay_the_bridge_writes_the_relays_replies_only() -> None:
    acl = make_acl("lab", ["a", "b"], {"hall": SiteAgents(["a", "b"], "hall-relay")})
    rules = rules_of(acl, "site-hall")
    assert [rule for rule in rules if "replies" in rule] == ["topic write fedquilt/v1/lab/agents/hall-relay/replies/#"]
    for kind in ("presence", "telemetry", "requests"):
        written = [rule for rule in rules if rule.endswith(f"/{kind}")]
        assert written == [f"topic write fedquilt/v1/lab/agents/{name}/{kind}" for name in ("a", "b", "hall-relay")]
    assert "topic read fedquilt/v1/lab/agents/hall-relay/inbox" in rules
    assert "user hall-relay" not in acl  # it connects to the site's broker only


def test_a_sites_relay_reads_the_boards_replies_and_writes_their_inboxes() -> None:
    with_relay = make_site_acl("lab", SiteAgents(["a", "b"], "hall-relay"))
    without = make_site_acl("lab", SiteAgents(["a", "b", "hall-relay"]))
    assert rules_of(with_relay, "a") == rules_of(without, "a")
    own, rules = rules_of(without, "hall-relay"), rules_of(with_relay, "hall-relay")
    assert rules[: len(own)] == own
    assert rules[len(own)] == "topic read fedquilt/v1/lab/sites/#"
    assert rules[len(own) + 1 :] == [
        f"topic {access} fedquilt/v1/lab/agents/{board}/{name}"
        for board in ("a", "b")
        for access, name in (("read", "presence"), ("read", "telemetry"), ("read", "replies/#"), ("write", "inbox"))
    ]


def test_no_rule_is_for_all_users() -> None:
    """So a user without a section, such as a revoked board, has no rights."""
    acl = make_acl("lab", ["a"])
    assert "pattern" not in acl
    assert acl.index("user ") < acl.index("\ntopic ")
