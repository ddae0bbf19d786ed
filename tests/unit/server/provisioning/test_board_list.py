"""A fleet from one CSV file: what is read, what is refused and where, and what a second run changes."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedquilt_common import cli
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import AgentConfig, read_agent_config
from fedquilt_server.provisioning.board_list import read_boards
from fedquilt_server.provisioning.federation import Federation, make_federation

LIST = """\
name,kind,clients,host,user,wifi
kitchen,pi4,,,,wifi.yaml
desk,jetson-orin-nano,4-7,10.0.0.9,nv,
cellar,pi4,0-3,,,
"""


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    (tmp_path / "wifi.yaml").write_text("ssid: Lab\npassword: a long one\ncountry: DE\n")
    return make_federation(tmp_path / "federation", "lab", ["localhost"])


def provision(federation: Federation, text: str, *options: str) -> int:
    """Write the list and run the command."""
    path = federation.folder.parent / "boards.csv"
    path.write_text(text, encoding="utf-8")
    return cli.run(["provision", "--from", str(path), "--folder", str(federation.folder), *options])


def contents(federation: Federation) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in federation.folder.rglob("*") if path.is_file()}


def changes(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return {row["board"]: row["change"] for row in json.loads(capsys.readouterr().out)}


def test_every_line_becomes_a_board(federation: Federation) -> None:
    assert provision(federation, LIST, "--profile", "private", "--max-epsilon", "8", "--max-delta", "1e-5") == 0
    boards = federation.record.boards
    assert {name: (board.kind, board.clients, board.host, board.user) for name, board in boards.items()} == {
        "kitchen": ("pi4", "8", "kitchen.local", "pi"),  # 0 to 7 are the choice of other lines
        "desk": ("jetson-orin-nano", "4-7", "10.0.0.9", "nv"),
        "cellar": ("pi4", "0-3", "cellar.local", "pi"),
    }
    config = AgentConfig.model_validate(read_agent_config(federation.board_folder("desk") / "agent.yaml"))
    assert (config.profile, config.max_epsilon, config.max_delta) == ("private", 8.0, 1e-5)
    network = federation.wifi_file("kitchen")
    assert yaml.safe_load(network.read_text())["ssid"] == "Lab"
    assert network.stat().st_mode & 0o777 == 0o600
    assert not federation.wifi_file("desk").exists()


def test_the_same_list_changes_nothing_and_new_lines_are_added(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert provision(federation, LIST, "--json") == 0
    assert set(changes(capsys).values()) == {"added"}
    before = contents(federation)
    assert provision(federation, LIST, "--json") == 0
    assert set(changes(capsys).values()) == {"unchanged"}
    assert contents(federation) == before
    assert provision(federation, LIST + "attic,pi5,,,,\n", "--json") == 0
    assert changes(capsys) == {"kitchen": "unchanged", "desk": "unchanged", "cellar": "unchanged", "attic": "added"}
    identities = {path: text for path, text in before.items() if "boards" in path.parts}
    assert {path: contents(federation)[path] for path in identities} == identities


def test_the_number_of_new_boards(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    assert provision(federation, "name,kind\na,pi4\n") == 0
    assert "1 board is new, 0 had an identity before." in capsys.readouterr().out
    assert provision(federation, "name,kind\na,pi4\nb,pc\nc,pc\n") == 0
    found = capsys.readouterr()
    assert "2 boards are new, 1 had an identity before." in found.out
    assert found.err.count("'pc' is treated as a plain Linux board") == 1


def test_another_network_is_kept_without_a_new_identity(
    federation: Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provision(federation, LIST)
    serial = federation.board("kitchen").serial
    (tmp_path / "wifi.yaml").write_text("ssid: Other\ncountry: DE\n")
    assert provision(federation, LIST) == 0
    assert "kitchen (Raspberry Pi 4 Model B, clients 8): has another wireless network" in capsys.readouterr().out
    assert yaml.safe_load(federation.wifi_file("kitchen").read_text()) == {"ssid": "Other", "country": "DE"}
    assert federation.board("kitchen").serial == serial


def test_each_mistake_is_reported_with_its_place_and_nothing_is_written(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.provision("old", "pi4", "20")
    federation.provision("gone", "pi4", "21")
    federation.revoke("gone")
    before = contents(federation)
    table = """\
name,kind,clients,host,user,wifi
good,pi4,0,,,
../x,pi4,1,,,
agents,pi4,2,,,
a,pi 4,3,,,
b,,4,,,
c,pi4,many,,,
d,pi4,0,,,
e,pi4,20,,,
f,pi4,5,a b,,
g,pi4,6,,Me: x,
h,pi4,7,,,none.yaml
good,pi4,8,,,
old,pi5,20,,,
old,pi4,22,,,
gone,pi4,,,,
GOOD,pi4,9,,,
i,pi4,10,11,pi.local,pi,wifi.yaml
j,pi6,12,,,
"""
    assert provision(federation, table) == 4
    output = capsys.readouterr().err
    for place, words in (
        ("3, column name", "cannot be used in a topic"), ("4, column name", "reserved name"),
        ("5, column kind", "'pi 4' is not a kind"), ("6, column kind", "'' is not a kind"),
        ("7, column clients", "write them as 0-3"), ("8, column clients", "good already hosts client 0"),
        ("9, column clients", "old already hosts client 20"), ("10, column host", "must be a host name"),
        ("11, column user", "is not a name for a Linux user"), ("12, column wifi", "none.yaml: no such file"),
        ("13, column name", "'good' is in line 2, too"), ("14, column kind", "--renew --kind pi5"),
        ("15, column clients", "'22' is not the '20' that old has"), ("16, column name", "gone is revoked"),
        ("17, column name", "the same as that of good"), ("18, column 7", "'wifi.yaml' has no column"),
        ("19, column kind", "did you mean pi5?"),
    ):  # fmt: skip
        assert [line for line in output.splitlines() if f"boards.csv, line {place}: " in line and words in line], place
    assert "line 18, column clients" not in output  # its cells may be in the wrong columns
    assert "Nothing was written." in output
    assert contents(federation) == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("kitchen,pi4\n", "line 1: there is no column 'kitchen'"),
        ("name,kinds\n", "did you mean kind?"),
        ("name,clients\n", "the column kind is missing"),
        ("name,kind,name\n", "the column name occurs twice"),
    ],
)
def test_a_file_that_is_no_list(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "boards.csv").write_text(text)
    with pytest.raises(ExperimentError, match=r"boards\.csv") as error:
        read_boards(tmp_path / "boards.csv")
    assert words in str(error.value)


def test_what_spreadsheets_write_is_read(tmp_path: Path) -> None:
    path = tmp_path / "boards.csv"
    path.write_bytes('\ufeffName;Kind;Clients;Wi-Fi\r\nkitchen;pi4;"0,2";wifi.yaml\r\n;;;\r\n'.encode())
    (board,) = read_boards(path)
    assert (board.line, board.request.name, board.request.clients) == (2, "kitchen", "0,2")
    assert board.wifi == tmp_path / "wifi.yaml"


def test_a_reload_that_fails_leaves_every_board_complete(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    federation.renew(reload="false")
    assert provision(federation, LIST) == 8
    errors = capsys.readouterr().err
    assert "`false` did not reload the broker" in errors
    assert "These boards got an identity: desk, cellar, kitchen." in errors
    assert federation.wifi_file("kitchen").exists()


@pytest.mark.parametrize("listed", [True, False])
def test_a_board_that_fails_leaves_those_before_it_complete(
    listed: bool, federation: Federation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reloads, provisioned = [], Federation.provision

    def provision_until_full(self: Federation, name: str, *more: Any, **settings: Any) -> Any:
        if name == "third":
            raise OSError(errno.ENOSPC, "No space left on device")
        return provisioned(self, name, *more, **settings)

    monkeypatch.setattr(Federation, "provision", provision_until_full)
    monkeypatch.setattr(Federation, "reload", lambda self: reloads.append(list(self.record.boards)))
    if listed:
        table = "name,kind,wifi\nfirst,pi4,wifi.yaml\nsecond,pi4,\nthird,pi4,\n"
        assert provision(federation, table) == 1
    else:
        folder = ["--folder", str(federation.folder)]
        assert cli.run(["provision", "first", "second", "third", "--kind", "pi4", *folder]) == 1
    errors = capsys.readouterr().err
    assert "No space left" in errors
    assert "These boards got an identity: first, second." in errors
    assert reloads == [["first", "second"]]
    assert federation.wifi_file("first").exists() == listed


def test_a_board_that_is_named_twice(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(federation)
    command = ["provision", "a", "b", "a", "--kind", "pi4", "--folder", str(federation.folder)]
    assert cli.run(command) == 8
    assert "'a' is given twice" in capsys.readouterr().err
    assert contents(federation) == before


def test_a_setting_for_all_is_checked_before_anything_is_written(federation: Federation) -> None:
    before = contents(federation)
    assert provision(federation, LIST, "--budget", "much") == 4
    assert contents(federation) == before


@pytest.mark.parametrize("options", [["kitchen"], ["--kind", "pi4"], ["--renew"]])
def test_options_that_the_file_has_are_refused(federation: Federation, options: list[str]) -> None:
    assert provision(federation, LIST, *options) == 2
    assert federation.record.boards == {}
