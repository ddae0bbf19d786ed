"""The topic table: topics are written, parsed and subscribed to; anything else is refused."""

from __future__ import annotations

import pytest
from paho.mqtt.client import topic_matches_sub
from tests.support.tables import each

from fedquilt_common.errors import ProtocolError
from fedquilt_common.wire.messages import ReceiptMessage
from fedquilt_common.wire.topics import AGENT_KINDS, ROOT, TOPIC_RULES, Address, Topics, check_name

TOPICS = Topics("lab-1")
BASE = f"{ROOT}/lab-1"

WRITTEN = {
    "coordinator": (TOPICS.coordinator, Address("coordinator")),
    "run": (TOPICS.run, Address("run")),
    "round": (TOPICS.round, Address("round")),
    "end": (TOPICS.end, Address("end")),
    "slices/3/41": (TOPICS.slot_chunk("slices/3", 41), Address("slices", slot=3, chunk=41)),
    "agents/pi.4_B/presence": (TOPICS.presence("pi.4_B"), Address("presence", "pi.4_B")),
    "agents/pi.4_B/telemetry": (TOPICS.telemetry("pi.4_B"), Address("telemetry", "pi.4_B")),
    "agents/pi.4_B/requests": (TOPICS.requests("pi.4_B"), Address("requests", "pi.4_B")),
    "agents/pi.4_B/data": (TOPICS.data("pi.4_B"), Address("data", "pi.4_B")),
    "agents/pi.4_B/inbox": (TOPICS.inbox("pi.4_B"), Address("inbox", "pi.4_B")),
    "sites/hall.2": (TOPICS.site("hall.2"), Address("sites", site="hall.2")),
    "agents/nano/replies/7/12.1/0": (
        TOPICS.reply_chunk("nano", client=7, round=12, exchange=1, chunk=0),
        Address("replies", "nano", client=7, round=12, exchange=1, chunk=0),
    ),
}


@pytest.mark.parametrize("suffix", WRITTEN)
def test_topic_is_the_designs_and_reads_back(suffix: str) -> None:
    topic, address = WRITTEN[suffix]
    assert topic == f"fedquilt/v1/lab-1/{suffix}"
    assert TOPICS.parse(topic) == address


def test_soft_labels_read_as_slices_do() -> None:
    assert TOPICS.parse(f"{BASE}/soft-labels/0/999999999") == Address("soft-labels", slot=0, chunk=999_999_999)


def test_the_table_has_every_kind_and_who_writes_it() -> None:
    agents = {kind for kind, rule in TOPIC_RULES.items() if rule.writer == "agent"}
    fleeting = {kind for kind, rule in TOPIC_RULES.items() if not rule.retained}
    assert set(TOPIC_RULES) == {address.kind for _, address in WRITTEN.values()} | {"soft-labels"}
    assert agents == {"presence", "replies", "telemetry", "requests"}
    assert fleeting == {"replies", "telemetry", "inbox", "requests", "data"}


def test_an_agent_reads_its_own_presence_and_else_only_what_the_coordinator_writes() -> None:
    access = {kind: rule.agent_access for kind, rule in TOPIC_RULES.items()}
    own = {"presence": "readwrite", "telemetry": "write", "replies": "write", "requests": "write"}
    own["sites"] = "none"
    assert access == {kind: own.get(kind, "read") for kind in TOPIC_RULES}


@pytest.mark.parametrize("kind", TOPIC_RULES)
def test_every_row_of_the_table_is_a_topic_of_its_kind(kind: str) -> None:
    suffix = TOPIC_RULES[kind].suffix  # type: ignore[index]  # mypy does not see that the keys are the kinds
    filled = suffix.replace("<agent>", "pi").replace("<site>", "hall")
    for level in ("<slot>", "<chunk>", "<client>", "<round>", "<exchange>"):
        filled = filled.replace(level, "5")
    assert TOPICS.parse(f"{BASE}/{filled}").kind == kind


def test_each_topic_crosses_the_bridge_of_a_site_in_one_direction_only() -> None:
    """So no message can circle: what a bridge has carried one way, it never carries back."""
    filters = TOPICS.site_filters(["pi.4_B", "nano"])
    for suffix, (topic, address) in WRITTEN.items():
        found = {direction for direction, name in filters if topic_matches_sub(name, topic)}
        rule = TOPIC_RULES[address.kind]
        # the bridge itself publishes whether it is connected
        assert found == (set() if rule.writer == "bridge" else {rule.site_direction}), suffix
    assert {rule.site_direction for rule in TOPIC_RULES.values() if rule.writer == "coordinator"} == {"in"}
    assert {rule.site_direction for rule in TOPIC_RULES.values() if rule.writer != "coordinator"} == {"out"}


def test_nothing_of_a_board_elsewhere_crosses_the_bridge_of_a_site() -> None:
    filters = TOPICS.site_filters(["pi"])
    for topic in (TOPICS.inbox("nano"), TOPICS.data("nano"), TOPICS.presence("nano"), TOPICS.site("hall")):
        assert not any(topic_matches_sub(name, topic) for _, name in filters), topic


HOSTILE = [
    f"{BASE}/sites/",
    f"{BASE}/sites/+",
    f"{BASE}/sites/hall/0",
    "",
    "/",
    BASE,
    f"{BASE}/",
    f"{BASE}/#",
    f"{BASE}/+",
    f"{BASE}/Round",
    f"{BASE}/round/",
    f"{BASE}//round",
    f"/{BASE}/round",
    f"{BASE}/round/1",
    f"{BASE}/slices/0",
    f"{BASE}/slices/0/",
    f"{BASE}/slices//0",
    f"{BASE}/slices/+/0",
    f"{BASE}/slices/0/#",
    f"{BASE}/slices/-1/0",
    f"{BASE}/slices/+1/0",
    f"{BASE}/slices/1_0/0",
    f"{BASE}/slices/ 1/0",
    f"{BASE}/slices/1\n/0",
    f"{BASE}/slices/007/0",
    f"{BASE}/slices/00/0",
    f"{BASE}/slices/1e3/0",
    f"{BASE}/slices/0x1/0",
    f"{BASE}/slices/1000000000/0",
    f"{BASE}/agents/pi/replies/1000000/1.0/0",  # no message can name this client
    f"{BASE}/slices/0/{'9' * 5000}",
    f"{BASE}/slices/\u0663/0",  # an Arabic three: isdigit() and int() take it
    f"{BASE}/slices/\u00b2/0",  # a superscript two: isdigit() takes it, int() does not
    f"{BASE}/slices/0/0/0",
    f"{BASE}/agents//inbox",
    f"{BASE}/agents/+/inbox",
    f"{BASE}/agents/../inbox",
    f"{BASE}/agents/pi\x00/inbox",
    f"{BASE}/agents/pi\n/inbox",
    f"{BASE}/agents/p\u00ef/inbox",
    f"{BASE}/agents/{'a' * 65}/inbox",
    f"{BASE}/agents/pi/outbox",
    f"{BASE}/agents/pi/inbox/0",
    f"{BASE}/agents/pi/replies/1/1.0",
    f"{BASE}/agents/pi/replies/1/1/0",
    f"{BASE}/agents/pi/replies/1/1./0",
    f"{BASE}/agents/pi/replies/1/.0/0",
    f"{BASE}/agents/pi/replies/1/1.0.0/0",
    f"{BASE}/agents/pi/replies/1/1.-1/0",
    f"{BASE}/agents/pi/replies/-1/1.0/0",
    f"{BASE}/agents/pi/replies/1/1.0/-1",
    f"{ROOT}/lab-2/round",
    f"{ROOT}/lab/round",
    f"{ROOT}/lab-10/round",
    f"{ROOT}/lab-1x/round",
    "fedquilt/v2/lab-1/round",
    "Fedquilt/v1/lab-1/round",
]


def test_a_receipt_can_name_every_reply_that_a_topic_can() -> None:
    topic = f"{BASE}/agents/pi/replies/999999/999999999.999999999/999999999"
    found = TOPICS.parse(topic)
    receipt = ReceiptMessage(
        run="r", client=found.client, round=found.round, exchange=found.exchange, digest="0" * 32, outcome="rejected"
    )
    assert (receipt.client, receipt.round, receipt.exchange) == (999_999, 999_999_999, 999_999_999)


@each(HOSTILE, lambda topic: ascii(topic)[:60])
def test_anything_else_is_refused(topic: str) -> None:
    with pytest.raises(ProtocolError, match="federation 'lab-1'") as caught:
        TOPICS.parse(topic)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "-a", ".", "a b", "a\n", "\u00e9", "$SYS", "a" * 65])
def test_a_federation_must_be_one_plain_level(name: str) -> None:
    with pytest.raises(ProtocolError, match=r"federation .* cannot be used in a topic"):
        Topics(name)


@pytest.mark.parametrize("name", ["a", "0", "Pi-4.lab_2", "a" * 64])
def test_good_names_pass_unchanged(name: str) -> None:
    assert check_name(name, "agent") == name


def seen_by(filters: list[str]) -> set[str]:
    """The rows of ``WRITTEN`` that a subscriber to ``filters`` receives."""
    return {suffix for suffix, (topic, _) in WRITTEN.items() if any(topic_matches_sub(f, topic) for f in filters)}


def test_the_coordinator_hears_all_that_agents_write_and_nothing_else() -> None:
    assert seen_by(TOPICS.filters(*AGENT_KINDS)) == {
        "agents/pi.4_B/presence",
        "agents/pi.4_B/telemetry",
        "agents/pi.4_B/requests",
        "agents/nano/replies/7/12.1/0",
    }


def test_an_agent_hears_its_inbox_and_the_state_of_the_run() -> None:
    assert seen_by(TOPICS.agent_filters("pi.4_B")) == {
        "agents/pi.4_B/inbox", "agents/pi.4_B/data", "coordinator", "run", "round", "end", "agents/pi.4_B/presence",
    }  # fmt: skip
    for own in (TOPICS.inbox("pi.4_B"), TOPICS.data("pi.4_B")):
        assert own not in TOPICS.agent_filters("nano")


def test_a_slots_filter_takes_its_chunks_only() -> None:
    assert topic_matches_sub(TOPICS.slot_chunks("slices/3"), TOPICS.slot_chunk("slices/3", 41))
    assert not topic_matches_sub(TOPICS.slot_chunks("slices/3"), TOPICS.slot_chunk("slices/30", 41))
