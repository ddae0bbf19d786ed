"""The doctor for the relay of a site: beside two real brokers with TLS, and what it finds wrong in its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.peers import peer
from tests.support.sites import broker_tree

from fedquilt_common import cli
from fedquilt_common.doctor.bridge import check_bridge
from fedquilt_common.doctor.relay import check_relay, is_relay
from fedquilt_common.doctor.settings import check_holder
from fedquilt_common.experiment.agent_config import read_agent_config
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.topics import BRIDGE_DOWN, BRIDGE_UP, Topics
from fedquilt_server.provisioning.federation import make_federation

CONFIG = {"broker": "mqtts://localhost:1", "site": "hall", "boards": {"a": "0-3", "b": 4}}
WELL = {
    "configuration", "certificate's name", "broker", "own certificate", "broker's certificate", "MQTT",
    "largest packet", "ACL", "federation", "bridge",
}  # fmt: skip


def doctor(config: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    code = cli.run(["doctor", "--config", str(config), "--json"])
    checks: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return code, {check["name"]: check for check in checks}


def named(found: dict[str, dict[str, str]], state: str) -> set[str]:
    return {name for name, check in found.items() if check["state"] == state}


def test_a_relay_beside_its_brokers_and_when_the_central_one_is_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker_tree(tmp_path / "f", {"hall": ["a", "b"]}, relays=["hall"]) as tree:
        federation = tree.federation
        config = federation.site_folder("hall") / "relay" / "relay.yaml"
        port = federation.record.sites["hall"].port
        with peer(port, "watch", certs=federation.folder / "watch") as watch:
            watch.subscribe(Topics("lab").site("hall"))
            watch.wait(lambda: watch.payloads[-1:] == [BRIDGE_UP])
            _, found = doctor(config, capsys)
            assert named(found, "ok") >= WELL
            assert named(found, "fail") <= {"clock", "disk", "memory"}
            assert found["configuration"]["said"] == "hall-relay serves the site 'hall' with 2 boards and 2 clients"
            assert {"clock", "disk", "memory"} <= found.keys()
            assert "torch" not in found
            tree.kill()
            watch.wait(lambda: watch.payloads[-1:] == [BRIDGE_DOWN])
        code, found = doctor(config, capsys)
    assert code == 10
    assert named(found, "ok") >= WELL - {"bridge"}
    assert named(found, "fail") >= {"bridge", "broker (central)"}
    assert "replies wait at the site" in found["bridge"]["said"]
    assert federation.record.url in found["broker (central)"]["said"]


def test_a_way_to_the_central_broker_is_tried_only_if_the_site_is_not_connected_to_it() -> None:
    names = [check.name for check in check_relay({**CONFIG, "central": "mqtts://localhost:2"})]
    assert names == ["configuration", "broker", "broker (central)"]
    assert [check.name for check in check_relay(CONFIG)] == ["configuration", "broker"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"broker": None}, "broker"),
        ({"site": "a b"}, "site: "),
        ({"ports": 1}, "ports: "),
        ({"boards": {"a": "0-1", "b": "1"}}, "client 1 belongs to a and to b"),
        ({"central": "mqtts://"}, "is not valid"),
        ({"broker": "mqtt://h", "cert": "x"}, "need an mqtts:// address"),
    ],
)
def test_a_file_that_the_relay_could_not_use_is_a_failure(changes: dict[str, Any], words: str) -> None:
    (check,) = check_relay({**CONFIG, **changes})
    assert (check.name, check.state) == ("configuration", "fail")
    assert words in check.said
    assert "copy it again" in check.advice


def test_a_file_that_cannot_be_used_does_not_hide_the_checks_of_the_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "relay.yaml"
    config.write_text("broker: mqtts://h:x\nsite: hall\n")
    code, found = doctor(config, capsys)
    assert (code, found["configuration"]["state"]) == (10, "fail")
    assert "disk" in found


def test_a_relay_without_a_list_of_boards_is_a_warning() -> None:
    first, *_ = check_relay({**CONFIG, "boards": None})
    assert (first.state, "any board may host any client" in first.said) == ("warn", True)


def test_the_certificate_of_another_machine_is_a_failure(tmp_path: Path) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    federation.add_site("hall", ["localhost"], relay=True)
    federation.provision("pi", "pi4", site="hall")
    folder = federation.site_folder("hall") / "relay"
    address = parse_broker_url("mqtts://localhost").with_files("", str(folder / "tls.crt"), "")
    assert [check.state for check in check_holder(address, "hall-relay")] == ["ok"]
    (check,) = check_holder(address, "roof-relay")
    assert (check.state, "is of hall-relay, not of roof-relay" in check.said) == ("fail", True)
    assert check_holder(parse_broker_url("mqtt://localhost"), "hall-relay") == []
    assert check_holder(address.with_files("", str(folder / "none.crt"), ""), "hall-relay") == []
    assert is_relay(read_agent_config(folder / "relay.yaml"))
    assert not is_relay(read_agent_config(federation.board_folder("pi") / "agent.yaml"))


@pytest.mark.parametrize(("state", "grade"), [(BRIDGE_UP, "ok"), (BRIDGE_DOWN, "fail"), (None, "warn"), (b"x", "warn")])
def test_what_the_site_retains_of_its_bridge(state: bytes | None, grade: str) -> None:
    check = check_bridge("hall", state)
    assert (check.state, bool(check.advice)) == (grade, grade != "ok")
