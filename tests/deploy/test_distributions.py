"""The playbooks on containers of each distribution that boards run, where FEDQUILT_TEST_BOARDS=1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support import rootfs
from tests.support.boards import Machine, Playbooks, asked_for, build_image, make_key, recap, start, why_not
from tests.support.releases import another_release, wheelhouse
from tests.support.rootfs import DISTRIBUTIONS, Distribution

from fedquilt_server.provisioning.federation import make_federation

HEAVY = ("torch", "scipy", "scikit-learn")
"""Wheels that only training needs."""
CONNECTED = "journalctl -u fedquilt-agent | grep -om 1 'connected to the broker'"
UNIT = "systemctl show -p Description --value fedquilt-agent"


@dataclass(frozen=True)
class Fleet:
    """A workstation and a board of the same distribution, and wheels for both."""

    hub: Machine
    board: Machine
    playbooks: Playbooks
    wheels: Path

    def play(self, name: str, *options: str, wheels: Path | None = None) -> str:
        chosen = wheels or self.wheels
        return self.playbooks.play(name, *options, agent_wheels=chosen, coordinator_wheels=self.wheels)

    def changes_nothing(self, name: str, wheels: Path | None = None) -> bool:
        told = self.play(name, wheels=wheels)
        hosts = [host for host in ("hub", "board") if f"\n{host} " in told]
        return all("changed=0" in recap(told, host) for host in hosts) and "board" in hosts


@contextmanager
def fleet(distribution: Distribution, folder: Path) -> Iterator[Fleet]:
    build_image(distribution)
    wheels = wheelhouse(folder / "wheels", "--without", *HEAVY, python=distribution.python)
    key = make_key(folder)
    hub, board = start("hub", key, distribution), start("board", key, distribution)
    try:
        federation = make_federation(folder / "federation", "lab", [hub.address])
        federation.provision("board", "pi4", "0-2", host=board.address, user="root")
        yield Fleet(hub, board, Playbooks(federation.folder, key, hub), wheels)
    finally:
        hub.stop()
        board.stop()


def test_the_reason_for_a_skip_names_the_missing_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootfs, "KEYRINGS", tmp_path)
    monkeypatch.setattr(rootfs, "CACHE", tmp_path)
    monkeypatch.setattr("shutil.which", lambda tool: f"/usr/bin/{tool}")
    wanted = rootfs.RootFileSystem(DISTRIBUTIONS[-1], "systemd")
    assert "ubuntu-archive-keyring.gpg" in wanted.why_not()
    assert str(wanted.archive) in wanted.why_not()
    wanted.archive.touch()
    assert wanted.why_not() == ""


@asked_for
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda distribution: distribution.suite)
def test_each_playbook_is_idempotent_and_shows_no_key(distribution: Distribution, tmp_path: Path) -> None:
    """The agent connects, but does not train; each release brings its own systemd unit."""
    if reason := why_not(distribution):
        pytest.skip(reason)
    with fleet(distribution, tmp_path) as lab:
        assert "PRIVATE KEY" not in lab.play("site", "--diff", "-vvv")
        lab.board.wait(CONNECTED, "connected to the broker", 60)
        check_releases(lab)
        lab.board.sh("mkdir -p /boot/firmware && echo '-----BEGIN PRIVATE KEY-----' > /boot/firmware/user-data")
        assert "PRIVATE KEY-" not in lab.play("remove", "--diff", "-vvv")
        assert lab.board.sh("cat /boot/firmware/user-data") == "#cloud-config\n"
        assert lab.changes_nothing("remove")


def check_releases(lab: Fleet) -> None:
    assert lab.board.sh(UNIT).strip() == "fedquilt agent"
    second = another_release(lab.wheels, "second")
    lab.play("upgrade", wheels=second)
    assert lab.board.sh(UNIT).strip() == "second"
    assert lab.changes_nothing("site", wheels=second)
    lab.play("rollback")
    assert lab.board.sh(UNIT).strip() == "fedquilt agent"
