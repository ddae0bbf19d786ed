"""The commands of a federation: init, renew, broker, provision, revoke, boards."""

from __future__ import annotations

import errno
import json
import shlex
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from fedquilt_common import cli
from fedquilt_server.provisioning.federation import make_federation
from fedquilt_server.provisioning.names import check_host, hostname_of
from fedquilt_server.provisioning.record import read_record
from fedquilt_server.provisioning.renewal import certificate_ends


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def run_json(*words: str) -> Any:
        assert cli.run([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    assert run_json("federation", "init", "--name", "lab", "--broker", "10.1.1.1", "--broker", "box")["broker"] == (
        "mqtts://10.1.1.1:8883"
    )
    first = run_json("provision", "kitchen", "--kind", "pi4")
    assert (first["clients"], first["state"], first["folder"]) == ("0", "good", "federation/boards/kitchen")
    run_json("provision", "desk", "--kind", "jetson-nano", "--clients", "5,6", "--profile", "private")
    assert run_json("revoke", "kitchen")["state"] == "revoked"
    assert [(row["board"], row["state"]) for row in run_json("boards")] == [("desk", "good"), ("kitchen", "revoked")]
    assert run_json("provision", "desk", "--renew")["kind"] == "jetson-nano"
    assert cli.run(["federation", "renew", "--broker", "other.local", "--reload", "true"]) == 0
    assert read_record(tmp_path / "federation").reload == "true"
    assert read_record(tmp_path / "federation").hosts == ("other.local",)
    for words, code in (
        (["revoke", "kitchen"], 8), (["revoke", "nobody"], 8), (["provision", "desk", "--kind", "pi4"], 8),
        (["boards", "--folder", "elsewhere"], 8), (["provision", "x"], 8), (["federation", "init", "--name", "a b"], 8),
    ):  # fmt: skip
        assert cli.run(words) == code, words
    capsys.readouterr()
    assert cli.run(["boards"]) == 0
    assert "NVIDIA Jetson Nano" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["provision", "x", "--kind", "pi4"], ["revoke", "pi"], ["federation", "renew"]])
def test_a_folder_that_cannot_be_written(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_federation(tmp_path / "f", "lab", ["localhost"]).provision("pi", "pi4")

    def refuse(path: Path, *_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("fedquilt_server.provisioning.federation.write_durably", refuse)
    assert cli.run([*words, "--folder", str(tmp_path / "f")]) == 6
    assert "make it writable" in capsys.readouterr().err


@pytest.mark.parametrize(("days", "state"), [(29, "ends soon"), (31, "good")])
def test_boards_tells_whose_certificate_should_be_renewed(
    days: int, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_federation(tmp_path / "f", "lab", ["localhost"]).provision("pi", "pi4", days=days)
    assert cli.run(["boards", "--folder", str(tmp_path / "f"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == state


def test_a_renewal_prints_what_it_renewed_and_which_boards_need_new_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["10.0.0.1"], reload="true")
    for name in ("kitchen", "desk", "gone"):
        federation.provision(name, "pi4")
    federation.revoke("gone")
    folder = ["--folder", str(federation.folder)]
    renew = ["federation", "renew", *folder, "--days", "100"]
    assert cli.run(renew) == 0
    text = capsys.readouterr().out
    until = certificate_ends(federation)["watch"]
    assert until - datetime.now(timezone.utc) < timedelta(days=100)
    assert f"Renewed the certificates of broker, coordinator, watch, homeassistant until {until:%Y-%m-%d}." in text
    assert "another address" not in text
    assert cli.run([*renew, "--broker", "10.0.0.2"]) == 0
    text = capsys.readouterr().out
    assert "2 boards have another address of the broker in their files: desk, kitchen." in text
    assert "`fedquilt provision NAME --renew`" in text
    assert cli.run(["provision", "desk", "--renew", *folder]) == 0
    capsys.readouterr()
    assert cli.run([*renew, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["broker"], row["hosts"], row["other_address"]) == ("mqtts://10.0.0.2:8883", ["10.0.0.2"], ["kitchen"])
    assert row["reload"] == "`true` succeeded"
    assert list(row["certificates"]) == ["broker", "coordinator", "watch", "homeassistant"]
    assert row["certificates"] == {name: end.isoformat() for name, end in certificate_ends(federation).items()}


def test_a_renewal_reloads_the_broker_whatever_the_boards_files_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = tmp_path / "done"
    federation = make_federation(tmp_path / "f", "lab", ["10.0.0.1"], reload=f"touch {done}")
    for name in ("desk", "fine", "kitchen"):
        federation.provision(name, "pi4")
    (federation.board_folder("desk") / "agent.yaml").write_text("broker: [")
    broken = federation.board_folder("kitchen") / "agent.yaml"
    broken.write_bytes(b"\xff")
    renew = ["federation", "renew", "--folder", str(federation.folder)]
    assert cli.run(renew) == 0
    found = capsys.readouterr()
    assert "2 boards have another address of the broker in their files: desk, kitchen." in found.out
    assert f"Note: {broken}: is not text in UTF-8" in found.err
    assert done.exists()
    assert cli.run([*renew, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["other_address"] == ["desk", "kitchen"]


def test_a_renewal_whose_reload_fails_prints_what_it_renewed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["10.0.0.1"], reload="false")
    assert cli.run(["federation", "renew", "--folder", str(federation.folder)]) == 8
    found = capsys.readouterr()
    assert "Renewed the certificates of broker" in found.out
    assert "the files are written, but `false` did not reload the broker" in found.err


@pytest.mark.parametrize(("days", "words"), [(31, ""), (29, "good until"), (-1, "expired on")])
def test_boards_names_certificates_of_the_workstation_that_end(
    days: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    federation.renew(days=days)
    assert cli.run(["boards", "--folder", str(federation.folder)]) == 0
    until = certificate_ends(federation)["watch"]
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Certificates")]
    line = (
        f"Certificates of the workstation, {words} {until:%Y-%m-%d}: broker, coordinator, watch, homeassistant. "
        "Run `fedquilt federation renew`"
    )
    assert lines == ([line] if words else [])
    assert cli.run(["boards", "--json", "--folder", str(federation.folder)]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("name", ["acl", "revoked.crl", "broker.key", "broker.crt", "ca.crt"])
def test_a_broker_without_one_of_its_files_says_which(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    gone = federation.broker_folder / name
    gone.unlink()
    assert cli.run(["federation", "broker", "--folder", str(tmp_path / "f")]) == 8
    assert f"{gone} is missing: `fedquilt federation renew`" in capsys.readouterr().err
    assert cli.run(["federation", "renew", "--folder", str(tmp_path / "f")]) == 0
    assert gone.exists()


def test_init_alone_finds_names_for_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["federation", "init", "--folder", str(tmp_path / "f")]) == 0
    output = capsys.readouterr().out
    hosts = read_record(tmp_path / "f").hosts
    assert hosts
    assert not {"localhost", "127.0.0.1"} & set(hosts)
    assert f"mqtts://{hosts[0]}:8883" in output
    assert f"--cert {tmp_path}/f/coordinator/tls.crt" in output


def test_the_printed_commands_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = "my fed; it's"

    def printed(*words: str) -> list[list[str]]:
        assert cli.run([*words, "--folder", folder]) == 0
        lines = capsys.readouterr().out.splitlines()
        return [shlex.split(line) for line in lines if line.startswith("  fedquilt")]

    broker, _, coordinator = printed("federation", "init", "--broker", "box")
    assert broker[2:5] == ["broker", "--folder", folder]
    assert coordinator[-1] == f"{folder}/coordinator/tls.key"
    (flash,) = printed("provision", "a", "--kind", "pi4", "--host", "box")[:1]
    assert flash[-2:] == ["--folder", folder]


@pytest.mark.parametrize(
    ("board", "host"), [("a" * 62 + "-b", "a" * 62), ("Living_Room.", "living-room"), ("1e3", "1e3")]
)
def test_the_host_name_of_a_board_can_be_one(board: str, host: str) -> None:
    assert check_host(hostname_of(board)) == host


@pytest.mark.parametrize(("kind", "meant"), [("pi6", "pi5"), ("Pi4", "pi4"), ("jetson", "jetson-nano")])
def test_a_kind_that_resembles_a_known_one_is_refused(
    kind: str, meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    assert cli.run(["provision", "third", "--kind", kind, "--folder", str(federation.folder)]) == 8
    found = capsys.readouterr().err
    assert f"there is no kind {kind!r}; did you mean {meant}?" in found
    assert "Note:" not in found
    assert federation.record.boards == {}


def test_a_kind_of_ones_own_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    assert cli.run(["provision", "third", "--kind", "pc", "--folder", str(federation.folder)]) == 0
    assert "Note: 'pc' is treated as a plain Linux board" in capsys.readouterr().err
    assert federation.board("third").kind == "pc"


def test_a_meter_of_the_owner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    command = ["provision", "third", "--kind", "pi4", "--folder", str(federation.folder), "--power-command"]
    assert cli.run([*command, "meter 'half a word"]) == 4
    assert "power-command: must be a program and its arguments" in capsys.readouterr().err
    assert cli.run([*command, "meter --port '/dev/tty 0'"]) == 0
    text = (federation.board_folder("third") / "agent.yaml").read_text()
    assert "power-command: meter --port '/dev/tty 0'\n" in text


def test_a_budget_that_is_no_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    federation = make_federation(tmp_path / "f", "lab", ["localhost"])
    command = ["provision", "third", "--kind", "pi4", "--folder", str(federation.folder), "--budget"]
    for wrong in ("lots", "3 potatoes"):
        assert cli.run([*command, wrong]) == 4
        assert (
            f"budget: must be a whole number of bytes or text such as 512MiB (it is {wrong!r})"
            in capsys.readouterr().err
        )
    assert cli.run([*command, "512MiB"]) == 0
