"""The playbooks: run against containers with systemd and sshd where FEDQUILT_TEST_BOARDS=1.

The second half makes a board image with debootstrap the first time and needs some minutes and a Docker engine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.support.boards import ROOT, Machine, Playbooks, build_image, run, start, why_not

from fedquilt_server.provisioning.federation import Federation, make_federation
from fedquilt_server.provisioning.kinds import KINDS

ROUNDS = 4
EXPERIMENT = {
    "name": "boards", "seed": 1, "rounds": ROUNDS, "data": {"set": "digits", "clients": 3}, "model": {"name": "mlp"},
    "algorithm": {"name": "fedper"}, "training": {"epochs": 1, "lr": 0.05},
}  # fmt: skip
"""Each client keeps a head of its own, so that there is a memory that an upgrade could lose."""
asked_for = pytest.mark.skipif(
    os.environ.get("FEDQUILT_TEST_BOARDS") != "1",
    reason="takes minutes: set FEDQUILT_TEST_BOARDS=1 to run it (needs a Docker engine, debootstrap and ssh)",
)


def test_the_example_is_what_provisioning_writes(tmp_path: Path) -> None:
    """But for the names in it."""
    federation = make_federation(tmp_path / "f", "lab", ["192.168.1.10"])
    federation.provision("kitchen", "pi4")
    federation.provision("desk", "jetson-orin-nano")
    written = yaml.safe_load((federation.folder / "inventory.yml").read_text())
    assert yaml.safe_load((ROOT / "ansible" / "inventory.example.yml").read_text()) == written


def test_the_units_paths_are_those_of_the_roles() -> None:
    unit = (ROOT / "deploy" / "systemd" / "fedquilt-agent.service").read_text()
    base = yaml.safe_load((ROOT / "ansible" / "roles" / "base" / "defaults" / "main.yml").read_text())
    assert f"ExecStart={base['base_folder']}/current/bin/fedquilt agent --config {base['base_configuration']}/" in unit
    assert f"User={base['base_user']}\n" in unit
    for line in ("Restart=always", "NoNewPrivileges=yes", "ProtectSystem=strict", "StateDirectory=fedquilt"):
        assert line in unit.splitlines()
    assert re.search(r"^WatchdogSec=\d+$", unit, re.MULTILINE)
    assert re.search(r"^MemoryMax=", unit, re.MULTILINE)
    assert {kind for kind, known in KINDS.items() if known.jetson} == {k for k in KINDS if k.startswith("jetson-")}


# -- on containers ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lab:
    """A workstation, a board, their federation, and wheels for both."""

    hub: Machine
    board: Machine
    federation: Federation
    playbooks: Playbooks
    wheels: Path
    server_wheels: Path
    experiment: Path

    def site(self) -> str:
        return self.playbooks.play(
            "site", coordinator_experiment=self.experiment, agent_wheels=self.wheels,
            coordinator_wheels=self.server_wheels,
        )  # fmt: skip

    def memories(self) -> list[tuple[int, int, int]]:
        """Client, round and bytes of what the board keeps."""
        told = self.board.sh("/opt/fedquilt/current/bin/fedquilt memory list --state /var/lib/fedquilt --json")
        return [(row["client"], row["round"], row["bytes"]) for row in json.loads(told)]

    def await_rounds(self, count: int) -> None:
        end = time.monotonic() + 300
        while self.rounds() < count:
            assert time.monotonic() < end, self.board.sh("journalctl -u fedquilt-agent | tail -30", check=False)
            time.sleep(1)

    def rounds(self) -> int:
        told = self.hub.sh("cat /var/lib/fedquilt-coordinator/runs/*/result.json", check=False)
        return len(json.loads(told)["rounds"]) if told else 0


def wheelhouse(folder: Path, *options: str) -> Path:
    run(sys.executable, str(ROOT / "scripts" / "wheelhouse.py"), "--arch", os.uname().machine, "--out", str(folder),
        "--python", f"{sys.version_info[0]}.{sys.version_info[1]}", *options)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if reason := why_not():
        pytest.skip(reason)
    build_image()
    folder = tmp_path_factory.mktemp("lab")
    key = folder / "key"
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    hub, board = start("hub", key), start("board", key)
    try:
        federation = make_federation(folder / "federation", "lab", [hub.address])
        federation.provision("board", "pi4", "0-2", host=board.address, user="root")
        playbooks = Playbooks(federation.folder, key, hub)
        wheels, server = wheelhouse(folder / "wheels"), wheelhouse(folder / "server", "--extra", "server")
        experiment = folder / "experiment.yaml"
        experiment.write_text(yaml.safe_dump(EXPERIMENT))
        yield Lab(hub, board, federation, playbooks, wheels, server, experiment)
    finally:
        hub.stop()
        board.stop()


def another_release(lab: Lab, name: str, *, broken: bool = False) -> Path:
    """The same software under another hash, or one whose agent does not start."""
    folder = lab.wheels.with_name(name)
    shutil.copytree(lab.wheels, folder)
    requirements = folder / "requirements.txt"
    if broken:
        (wheel,) = folder.glob("paho_mqtt-*.whl")
        wheel.unlink()
        kept = [line for line in requirements.read_text().splitlines() if not line.startswith("paho-mqtt")]
        requirements.write_text("\n".join(kept) + "\n")
    requirements.write_text(requirements.read_text() + f"# {name}\n")
    return folder


@asked_for
@pytest.mark.timeout(1800)
def test_from_nothing_to_a_round_and_back_to_nothing(lab: Lab) -> None:
    """One story, since each step needs the one before."""
    lab.site()
    lab.await_rounds(ROUNDS)
    assert "changed=0" in recap(lab.site(), "board")
    assert "changed=0" in recap(lab.site(), "hub")
    assert lab.board.sh("systemctl show -p User --value fedquilt-agent").strip() == "fedquilt"
    assert lab.board.sh("stat -c '%U %a' /etc/fedquilt/tls.key /var/lib/fedquilt").split() == [
        "root", "640", "fedquilt", "700",
    ]  # fmt: skip
    memories = lab.memories()
    assert [(client, number) for client, number, _ in memories] == [(client, ROUNDS) for client in range(3)]
    first = lab.board.sh("readlink /opt/fedquilt/current")

    lab.playbooks.play("upgrade", agent_wheels=another_release(lab, "second"))
    second = lab.board.sh("readlink /opt/fedquilt/current")
    assert second != first
    assert lab.board.sh("systemctl is-active fedquilt-agent").strip() == "active"
    assert lab.memories() == memories

    lab.playbooks.play("rollback")
    assert lab.board.sh("readlink /opt/fedquilt/current") == first
    assert lab.board.sh("systemctl is-active fedquilt-agent").strip() == "active"

    told = lab.playbooks.play("upgrade", agent_wheels=another_release(lab, "third", broken=True), fails=True)
    assert "failed with the new release, so the board was rolled back" in told
    assert lab.board.sh("readlink /opt/fedquilt/current") == first
    assert lab.board.sh("systemctl is-active fedquilt-agent").strip() == "active"

    before = lab.board.sh("systemctl show -p NRestarts --value fedquilt-agent").strip()
    lab.board.sh("kill -STOP $(systemctl show -p MainPID --value fedquilt-agent)")
    end = time.monotonic() + 200
    while lab.board.sh("systemctl show -p NRestarts --value fedquilt-agent").strip() == before:
        assert time.monotonic() < end, "the watchdog did not start an agent that hangs anew"
        time.sleep(2)

    lab.playbooks.play("remove")
    looks = (
        "find / -xdev -name '*fedquilt*' -not -path '/proc/*' -not -path '/sys/*'", "getent passwd fedquilt",
        "systemctl list-units --all --plain --no-legend 'fedquilt*'",
    )  # fmt: skip
    assert [lab.board.sh(look, check=False).strip() for look in looks] == ["", "", ""]
    assert "changed=0" in recap(lab.playbooks.play("remove"), "board")


def recap(told: str, host: str) -> str:
    """The line of a host in what Ansible says last."""
    return next(line for line in told.splitlines()[::-1] if line.startswith(f"{host} "))
