"""The broker and the relay of a site, installed by the playbooks on a container where FEDQUILT_TEST_BOARDS=1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.deploy.test_distributions import HEAVY
from tests.support.boards import Machine, Playbooks, asked_for, build_image, make_key, recap, start, why_not
from tests.support.releases import another_release, wheelhouse

from fedquilt_server.provisioning.federation import Federation, make_federation

FEDQUILT = "/opt/fedquilt/current/bin/fedquilt"
HOSTS = ("hub", "site-hall", "hall-relay")


@dataclass(frozen=True)
class Site:
    """A workstation, the machine of a site, their federation, and wheels without torch."""

    hub: Machine
    hall: Machine
    federation: Federation
    playbooks: Playbooks
    wheels: Path

    def play(self, name: str, *limit: str, wheels: Path | None = None, fails: bool = False) -> str:
        return self.playbooks.play(
            name, "--diff", "--limit", ",".join(limit), fails=fails, ansible_user="root",
            agent_wheels=wheels or self.wheels, coordinator_wheels=self.wheels,
        )  # fmt: skip

    def doctor(self) -> dict[str, str]:
        told = self.hall.sh(f"{FEDQUILT} doctor --json", check=False)
        return {check["name"]: check["state"] for check in json.loads(told)}

    def shown(self, name: str) -> str:
        return self.hall.sh(f"systemctl show -p {name} --value fedquilt-relay").strip()


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    build_image()
    wheels, key = wheelhouse(folder / "wheels", "--without", *HEAVY), make_key(folder)
    hub, hall = start("hub", key), start("hall", key)
    try:
        federation = make_federation(folder / "federation", "lab", [hub.address])
        federation.add_site("hall", [hall.address], relay=True)
        federation.provision("one", "pi4", "0-1", site="hall")
        yield Site(hub, hall, federation, Playbooks(federation.folder, key, hub), wheels)
    finally:
        hub.stop()
        hall.stop()


@asked_for
@pytest.mark.timeout(1800)
def test_a_site_from_nothing_to_a_relay_and_back(tmp_path: Path) -> None:
    """One story, since each step needs the one before."""
    if reason := why_not():
        pytest.skip(reason)
    with site(tmp_path) as lab:
        assert "PRIVATE KEY" not in lab.play("site", *HOSTS)
        check_relay(lab)
        told = lab.play("site", *HOSTS)
        assert all("changed=0" in recap(told, host) for host in HOSTS)
        check_new_board(lab)
        check_releases(lab)
        lab.federation.provision("guest", "pi4", "7", host=lab.hall.address, user="root")
        assert "has the service fedquilt-relay" in lab.play("site", "guest", fails=True)
        lab.play("remove", "hall-relay")
        look = (
            "ls -d /opt/fedquilt /etc/fedquilt /var/lib/fedquilt* /etc/systemd/system/fedquilt*; getent passwd fedquilt"
        )
        assert lab.hall.sh(look, check=False) == ""
        assert lab.hall.sh("systemctl is-active mosquitto").strip() == "active"


def check_relay(lab: Site) -> None:
    lab.hall.wait("journalctl -u fedquilt-relay | grep -om 1 'connected to the broker'", "connected to the broker", 60)
    assert (lab.shown("User"), lab.shown("ActiveState")) == ("fedquilt", "active")
    assert lab.hall.sh("stat -c '%U %a' /etc/fedquilt/relay/tls.key /var/lib/fedquilt-relay").split() == [
        "root", "640", "fedquilt", "700",
    ]  # fmt: skip
    bridge = "/opt/fedquilt/current/bin/fedquilt doctor --json | grep -A 1 bridge | grep -o ok"
    lab.hall.wait(bridge, "ok", 60)
    found = lab.doctor()
    names = ("configuration", "certificate's name", "MQTT", "ACL", "federation", "bridge", "disk")
    assert {name: found[name] for name in names} == dict.fromkeys(names, "ok")
    assert lab.hall.sh("systemd-analyze verify fedquilt-relay.service 2>&1", check=False) == ""


def check_new_board(lab: Site) -> None:
    """The playbook that `provision` prints gives the relay the clients of a new board, and starts it again."""
    before = lab.shown("MainPID")
    lab.federation.provision("two", "pi4", "2", site="hall")
    lab.play("site", "site-hall", "hall-relay")
    assert lab.shown("MainPID") != before
    assert "two: " in lab.hall.sh("cat /etc/fedquilt/relay/relay.yaml")
    assert "user two\n" in lab.hall.sh("cat /etc/mosquitto/fedquilt/acl")


def check_releases(lab: Site) -> None:
    first = lab.hall.sh("readlink /opt/fedquilt/current")
    lab.play("upgrade", "hall-relay", wheels=another_release(lab.wheels, "second"))
    assert (lab.shown("Description"), lab.shown("ActiveState")) == ("second", "active")
    lab.play("rollback", "hall-relay")
    assert (lab.shown("Description"), lab.hall.sh("readlink /opt/fedquilt/current")) == ("fedquilt relay", first)
    broken = another_release(lab.wheels, "third", broken=True)
    assert "failed with the new release, so it was rolled back" in lab.play(
        "upgrade", "hall-relay", wheels=broken, fails=True
    )
    assert (lab.shown("Description"), lab.shown("ActiveState")) == ("fedquilt relay", "active")
