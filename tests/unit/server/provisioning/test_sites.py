"""The files of a site: its broker, its bridge, and the boards behind it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509

from fedquilt_common import cli
from fedquilt_common.errors import FederationError
from fedquilt_common.experiment.agent_config import read_agent_config
from fedquilt_common.experiment.relay_config import RelayConfig
from fedquilt_common.files.yaml_text import load_yaml
from fedquilt_server.provisioning.authority import expiry
from fedquilt_server.provisioning.broker_files import required_files
from fedquilt_server.provisioning.federation import DAYS, Federation, make_federation
from fedquilt_server.provisioning.owners import read_assignments
from fedquilt_server.provisioning.renewal import boards_elsewhere


@pytest.fixture
def made(tmp_path: Path) -> Federation:
    return make_federation(tmp_path / "f", "lab", ["10.0.0.1"])


def topics_of(federation: Federation, site: str) -> list[str]:
    text = (federation.site_folder(site) / "mosquitto-tls.conf").read_text()
    return [line for line in text.splitlines() if line.startswith("topic ")]


def serial_of(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def days_left(path: Path) -> int:
    until = expiry(x509.load_pem_x509_certificate(path.read_bytes()))
    return round((until - datetime.now(timezone.utc)) / timedelta(days=1))


def test_the_command_writes_a_broker_with_a_bridge_and_the_boards_connect_to_it(
    made: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--folder", str(made.folder)]
    site = ["--site", "hall", "--broker", "hall.example", "--port", "8884"]
    assert cli.run(["federation", "broker", *site, *folder]) == 0
    assert "mqtts://hall.example:8884" in capsys.readouterr().out
    assert cli.run(["provision", "pi", "--kind", "pi4", "--site", "hall", *folder]) == 0
    said = capsys.readouterr().out
    assert "The broker of the site hall needs new files. Run in the folder ansible\n" in said
    playbook = f"  ansible-playbook site.yml --inventory {made.folder / 'inventory.yml'} --limit"
    assert f"{playbook} site-hall\n" in said
    assert "fedquilt-relay" not in said
    files = made.site_folder("hall")
    assert all(path.exists() for path in required_files(files))
    assert {"bridge_cafile", "bridge_certfile"} <= set((files / "mosquitto.conf").read_text().split())
    text = (files / "mosquitto-tls.conf").read_text()
    assert "listener 8884" in text
    assert "address 10.0.0.1:8883" in text
    assert "topic fedquilt/v1/lab/agents/pi/replies/# out 1" in topics_of(made, "hall")
    config = load_yaml((made.board_folder("pi") / "agent.yaml").read_text(), "agent.yaml")
    assert (config["broker"], config["site"]) == ("mqtts://hall.example:8884", "hall")
    assert boards_elsewhere(made) == {}


def test_a_second_run_keeps_the_certificates_and_the_connection(made: Federation) -> None:
    first = made.add_site("hall", ["a.example"])
    files = made.site_folder("hall")
    bridge, broker = serial_of(files / "bridge.crt"), serial_of(files / "broker.crt")
    assert made.add_site("hall") == first
    assert (serial_of(files / "bridge.crt"), serial_of(files / "broker.crt")) == (bridge, broker)
    made.add_site("hall", ["b.example"])
    assert serial_of(files / "bridge.crt") == bridge
    assert serial_of(files / "broker.crt") != broker
    assert not made.record.withdrawn


def test_a_renewal_withdraws_the_certificate_of_the_bridge(made: Federation) -> None:
    before = made.add_site("hall", ["a.example"])
    after = made.add_site("hall", renew=True)
    assert after.connection == before.connection
    assert [entry.serial for entry in made.record.withdrawn] == [before.serial]
    assert made.record.withdrawn[0].board == "site-hall"


def test_new_certificates_of_a_site_are_valid_as_long_as_days_has_it(
    made: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["federation", "broker", "--folder", str(made.folder)]
    names = ("broker.crt", "bridge.crt", "relay/tls.crt")
    cases: list[tuple[list[str], int]] = [
        (["--days", "30"], 30), ([], 30), (["--renew", "--days", "7"], 7), (["--renew"], DAYS)
    ]  # fmt: skip
    for options, days in cases:
        assert cli.run([*command, "--site", "hall", "--broker", "hall.example", "--relay", *options]) == 0
        assert {days_left(made.site_folder("hall") / name) for name in names} == {days}
    capsys.readouterr()
    assert cli.run([*command, "--days", "30"]) == 2
    assert "name it with --site" in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_a_relay_comes_and_goes_with_its_certificate_and_its_topics(
    made: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["federation", "broker", "--site", "hall", "--folder", str(made.folder)]
    assert cli.run([*command, "--broker", "hall.example"]) == 0
    made.provision("pi", "pi4", "0-3", site="hall")
    assert cli.run([*command, "--relay"]) == 0
    assert "fedquilt relay --config relay.yaml" in " ".join(capsys.readouterr().out.split())
    folder = made.site_folder("hall") / "relay"
    config = RelayConfig.model_validate(read_agent_config(folder / "relay.yaml"))
    assert (config.broker, config.central, config.name, config.owners) == (
        "mqtts://hall.example:8883", "mqtts://10.0.0.1:8883", "hall-relay", dict.fromkeys(range(4), "pi"),
    )  # fmt: skip
    assert all(Path(path).is_file() for path in (config.ca, config.cert, config.key))
    replies = [line for line in topics_of(made, "hall") if "replies" in line]
    assert replies == ["topic fedquilt/v1/lab/agents/hall-relay/replies/# out 1"]
    assert "topic fedquilt/v1/lab/agents/pi/presence out 1" in topics_of(made, "hall")
    assert read_assignments(made.folder / "inventory.yml").relays == {"hall-relay": "hall"}
    first = made.add_site("hall").relay
    assert first is not None
    assert made.add_site("hall", renew=True).relay != first
    assert first.serial in {entry.serial for entry in made.record.withdrawn}
    assert cli.run([*command, "--no-relay"]) == 0
    assert not folder.exists()
    assert "topic fedquilt/v1/lab/agents/pi/replies/# out 1" in topics_of(made, "hall")
    assert [entry.board for entry in made.record.withdrawn].count("hall-relay") == 2


def test_the_command_that_adds_a_board_says_what_the_relay_needs(
    made: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    """The relay takes replies only of the clients in its file, so a new board needs a new file and a restart."""
    made.add_site("hall", ["hall.example"], relay=True)
    command = ["provision", "pi", "--kind", "pi4", "--clients", "5", "--site", "hall"]
    assert cli.run([*command, "--folder", str(made.folder)]) == 0
    config = made.site_folder("hall") / "relay" / "relay.yaml"
    assert RelayConfig.model_validate(read_agent_config(config)).owners == {5: "pi"}
    said = capsys.readouterr().out
    assert "The broker of the site hall and its relay need new files. Run in the folder ansible\n" in said
    assert f"--inventory {made.folder / 'inventory.yml'} --limit site-hall,hall-relay\n" in said
    assert said.endswith(f"Then copy {config} to the relay, and run there\n  sudo systemctl restart fedquilt-relay\n")


def test_both_sites_of_a_board_that_moves_are_named(made: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    made.add_site("hall", ["hall.example"])
    made.add_site("roof", ["roof.example"])
    made.provision("pi", "pi4", site="hall")
    assert cli.run(["provision", "pi", "--renew", "--site", "roof", "--folder", str(made.folder)]) == 0
    said = capsys.readouterr().out
    assert [line.split("--limit ")[1] for line in said.splitlines() if "--limit" in line] == ["site-hall", "site-roof"]


def test_a_central_broker_with_another_address_is_in_the_relays_file(made: Federation) -> None:
    made.add_site("hall", ["hall.example"], relay=True)
    made.renew(["new.example"])
    assert "central: mqtts://new.example:8883" in (made.site_folder("hall") / "relay" / "relay.yaml").read_text()


def test_the_relay_of_a_site_and_a_board_cannot_have_the_same_name(made: Federation) -> None:
    made.add_site("hall", ["hall.example"], relay=True)
    with pytest.raises(FederationError, match="'hall-relay' is the relay of the site 'hall'"):
        made.provision("hall-relay", "pi4")
    made.provision("roof-relay", "pi4")
    with pytest.raises(FederationError, match="a board has this name"):
        made.add_site("roof", ["roof.example"], relay=True)


def test_a_revoked_board_leaves_the_files_of_its_site(made: Federation) -> None:
    made.add_site("hall", ["a.example"])
    made.provision("pi", "pi4", site="hall")
    made.revoke("pi")
    assert not any("/agents/" in line for line in topics_of(made, "hall"))
    assert "user pi\n" not in (made.site_folder("hall") / "acl").read_text()


def test_a_board_moves_to_another_site_with_its_next_certificate(made: Federation) -> None:
    for site in ("hall", "roof"):
        made.add_site(site, [f"{site}.example"])
    made.provision("pi", "pi4", site="hall")
    made.provision("pi", renew=True, site="roof")
    assert (made.record.boards_behind("hall"), made.record.boards_behind("roof")) == ([], ["pi"])
    made.provision("pi", renew=True)
    assert made.record.boards["pi"].site == "roof"
    made.provision("pi", renew=True, site="")
    assert (made.record.boards["pi"].site, made.record.boards_behind("roof")) == ("", [])


@pytest.mark.parametrize(
    ("name", "hosts", "words"),
    [
        ("a b", ["h"], "cannot be used in a topic"),
        ("s" * 49, ["h"], "49 characters"),
        ("hall", [], "give --broker"),
        ("hall", ["a:1"], "without a port"),
    ],
)
def test_a_site_that_cannot_be_is_refused(made: Federation, name: str, hosts: list[str], words: str) -> None:
    with pytest.raises(FederationError, match=words):
        made.add_site(name, hosts)
    assert not made.record.sites


def test_what_the_names_of_sites_need_is_checked(tmp_path: Path, made: Federation) -> None:
    with pytest.raises(FederationError, match=r"no site 'attic' \(sites: none yet\)"):
        made.provision("pi", "pi4", site="attic")
    with pytest.raises(FederationError, match="are those of sites"):
        made.provision("site-pi", "pi4")
    v6 = make_federation(tmp_path / "v6", "lab", ["::1"])
    with pytest.raises(FederationError, match="cannot name an IPv6 address"):
        v6.add_site("hall", ["h"])


def test_the_options_of_a_site_need_its_name(made: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["federation", "broker", "--broker", "h", "--folder", str(made.folder)]) == 2
    assert "name it with --site" in " ".join(capsys.readouterr().err.replace("│", " ").split())
