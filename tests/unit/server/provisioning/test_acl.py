"""The access rules are those of the topic table."""

from __future__ import annotations

from fedquilt_common.wire.topics import TOPIC_RULES
from fedquilt_server.provisioning.acl import make_acl


def test_each_row_of_the_topic_table_has_its_line() -> None:
    lines = make_acl("lab", ()).splitlines()
    for rule in TOPIC_RULES.values():
        assert lines.count(f"pattern {rule.agent_access} fedquilt/v1/lab/{rule.filter('%u')}") == 1
    assert sum(line.startswith("pattern ") for line in lines) == len(TOPIC_RULES)


def test_a_revoked_board_is_denied_everything() -> None:
    assert make_acl("lab", ["b", "a"]).endswith(
        "\n\n# Revoked:\nuser a\ntopic deny fedquilt/v1/#\n\nuser b\ntopic deny fedquilt/v1/#\n"
    )
    assert "Revoked" not in make_acl("lab", ())
