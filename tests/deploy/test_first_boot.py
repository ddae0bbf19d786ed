"""docs/deploy.md word for word: its commands on a workstation, its cards in containers that start for the first time.

Where FEDQUILT_TEST_BOARDS=1, like the playbooks. cloud-init is Debian's own and finds the card where Raspberry Pi OS
looks for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.support.boards import (
    PATIENCE,
    ROOT,
    Machine,
    asked_for,
    build_image,
    create,
    make_key,
    run,
    start,
    switch_on,
    why_not,
)
from tests.support.cards import TOOLS, WHY_NOT, stock

from fedquilt_server.provisioning.partitions import boot_partition

DEPLOY = (ROOT / "docs" / "deploy.md").read_text()
BINARIES = Path(sys.executable).parent
SEED = (
    "datasource_list: [NoCloud, None]\ndatasource: {NoCloud: {seedfrom: 'file:///boot/firmware/'}}\nlocale: C.UTF-8\n"
)
"""What /etc/cloud/cloud.cfg.d/99_raspberry-pi.cfg says, and the only locale that a container has."""


def commands() -> list[str]:
    """Those of the page, in its order, each once and on one line."""
    blocks = re.findall(r"^```sh\n(.*?)^```", DEPLOY, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return list(dict.fromkeys(re.sub(r"\s+#.*", "", line) for line in lines))


def command(*words: str) -> str:
    """The one that these words are, or else the only one with them."""
    if " ".join(words) in commands():
        return " ".join(words)
    (found,) = [line for line in commands() if all(word in line for word in words)]
    return found


def test_every_command_of_the_page_is_tried_here() -> None:
    """Or, those of Ansible, in ``test_ansible.py``, and each of the others in tests of its own."""
    here = (*PREPARING, BROKER, COORDINATOR, BOARDS, DOCTOR, DOCTOR_ON_BOARD)
    tried = [command(*words) for words in (*here, *ELSEWHERE)]
    rest = [line for line in commands() if line not in tried]
    assert [line.split()[0] for line in rest] == ["make", "cd", "ansible-playbook"]


PREPARING = (
    ("federation init", "--broker"), ("provision kitchen --kind",), ("provision desk",),
    ("make wheelhouse ARCH=aarch64",),
    ("flash raspios", "--board"), ("wheelhouse-jetson", "make"), ("flash --board desk",),
)  # fmt: skip
BROKER, COORDINATOR, BOARDS = ("fedquilt federation broker",), ("fedquilt coordinator",), ("fedquilt boards",)
DOCTOR, DOCTOR_ON_BOARD = ("doctor --broker",), ("sudo", "doctor")
ELSEWHERE = (
    ("provision --from",), ("flash", "--all"), ("boards --watch",), ("fedquilt upgrade",), ("pip install",),
    ("--mdns",), ("--announce",), ("fedquilt homeassistant",), ("--power-command",), ("--power-topic",),
    ("intel-rapl",),
)  # fmt: skip


@dataclass(frozen=True)
class Workstation:
    """A copy of the project in which the page's commands are given; ``other`` is what a container has instead."""

    folder: Path
    other: dict[str, str]

    def say(self, *words: str) -> str:
        line = command(*words)
        for old, new in self.other.items():
            line = line.replace(old, new)
        return line

    def start(self, *words: str, log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as file:
            return subprocess.Popen(
                ["bash", "-c", f"exec {self.say(*words)}"],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
            )

    def give(self, *words: str) -> str:
        return run("bash", "-c", self.say(*words), cwd=self.folder, env=self.environment)

    @property
    def environment(self) -> dict[str, str]:
        """After ``make setup`` and ``activate``, neither of which is done again."""
        return {**os.environ, "PATH": f"{BINARIES}:{os.environ['PATH']}", "VENV": sys.prefix}


def gateway() -> str:
    """Under which containers know this machine: the bridge's address, which not every engine lists as a gateway."""
    template = '{{index .Options "com.docker.network.bridge.name"}}'
    bridge = run("docker", "network", "inspect", "bridge", "-f", template).strip()
    return next(one.address for one in psutil.net_if_addrs()[bridge] if one.family == socket.AF_INET)


def copy_project(folder: Path) -> None:
    """Copy the project without what its users make, as if it were older than this environment: ``make`` uses that."""
    unwanted = shutil.ignore_patterns(".git", ".venv", "dist", ".*_cache", "__pycache__")

    def ignore(at: str, names: list[str]) -> set[str]:
        return unwanted(at, names) | ({"runs", "federation"} if Path(at) == ROOT else set())

    shutil.copytree(ROOT, folder, ignore=ignore, symlinks=True)
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(folder / name, (0, 0))


@pytest.fixture(scope="module")
def workstation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workstation]:
    """With a federation, wheels and cards, and a broker that runs."""
    if reason := why_not() or WHY_NOT:
        pytest.skip(reason)
    build_image()
    folder = tmp_path_factory.mktemp("workstation") / "fedquilt"
    copy_project(folder)
    files = {"cmdline.txt": "console=tty1 rootwait\n", "user-data": "#cloud-config\n"}
    stock(folder / "stock.img", files=files, boot=(8192, 900 * 2048))
    (folder / "wifi.yaml").write_text(re.findall(r"^```yaml\n(.*?)^```", DEPLOY, re.MULTILINE | re.DOTALL)[0])
    make_key(folder)
    here = f"ARCH={os.uname().machine} PYTHON_ON_BOARD={sys.version_info[0]}.{sys.version_info[1]} ARGS="
    other = {
        "192.168.1.10": gateway(), "--kind pi4": "--kind container --user pi",
        "--kind jetson-orin-nano": "--kind container", "~/.ssh/id_ed25519.pub": "key.pub",
        "ARCH=aarch64 PYTHON_ON_BOARD=3.13": f"{here}'--out dist/wheelhouse-aarch64'",
        'PYTHON_ON_BOARD=3.10 ARGS="--without torch ': f'{here}"',
        "raspios-lite-arm64.img.xz": "stock.img", "--device /dev/sdX": "--out kitchen.img", "sudo ": "",
    }  # fmt: skip
    made = Workstation(folder, other)
    for words in PREPARING:
        made.give(*words)
    broker = made.start(*BROKER, log="broker.log")
    yield made
    broker.terminate()
    broker.wait(60)


def card(workstation: Workstation, where: Path) -> Path:
    """What Linux sees at /boot/firmware with the card of ``kitchen`` in it."""
    found = boot_partition(workstation.folder / "kitchen.img")
    assert found is not None
    firmware = where / "firmware"
    firmware.mkdir()
    image = f"{workstation.folder / 'kitchen.img'}@@{found.start}"
    run(str(TOOLS["mcopy"]), "-s", "-n", "-i", image, "::*", str(firmware))
    return firmware


@contextmanager
def board_with(firmware: Path) -> Iterator[Machine]:
    """A board that is switched on for the first time with this card."""
    container = create("kitchen")
    try:
        (firmware.parent / "99_raspberry-pi.cfg").write_text(SEED)
        run("docker", "cp", str(firmware.parent / "99_raspberry-pi.cfg"), f"{container}:/etc/cloud/cloud.cfg.d/")
        run("docker", "cp", str(firmware), f"{container}:/boot/firmware")
        machine = switch_on("kitchen", container)
        yield machine
    finally:
        run("docker", "rm", "-f", container)


RUNS = "systemctl is-active fedquilt-agent"


@asked_for
@pytest.mark.timeout(1800)
def test_a_power_cut_during_the_first_start_is_made_good_by_the_next(workstation: Workstation, tmp_path: Path) -> None:
    with board_with(card(workstation, tmp_path)) as board:
        board.wait("ls -d /opt/fedquilt/releases/* | wc -l", "1", 120)
        board.wait("ls -d /opt/fedquilt/releases/*/lib/*/site-packages/numpy | wc -l", "1", 120)
        run("docker", "kill", board.container)
        assert ".complete" not in run("docker", "diff", board.container)
        board = switch_on("kitchen", board.container)
        board.wait(RUNS, "active", 300)
        board.wait(
            "systemctl list-unit-files --no-legend --state=enabled 'fedquilt*' | cut -d ' ' -f 1",
            "fedquilt-agent.service",
            20,
        )


UNPACKED = "/opt/checkout"


def install_archive(workstation: Workstation, board: Machine) -> str:
    """Unpack the archive for a Jetson on the board; returns the output of its installer."""
    board.sh(f"mkdir {UNPACKED}")
    run("docker", "cp", str(workstation.folder / "desk.tar.gz"), f"{board.container}:{UNPACKED}")
    return board.sh(f"cd {UNPACKED} && tar -xzf desk.tar.gz && sh fedquilt/install.sh")


@asked_for
@pytest.mark.timeout(1800)
def test_from_cards_to_rounds(workstation: Workstation, tmp_path: Path) -> None:
    """One board by its card, one by the archive for a Jetson; neither has a network but that to the workstation."""
    coordinator = workstation.start(*COORDINATOR, log="coordinator.log")
    desk = start("desk", workstation.folder / "key")
    try:
        install_archive(workstation, desk)
        with board_with(card(workstation, tmp_path)) as kitchen:
            kitchen.wait(RUNS, "active", 300)
            assert coordinator.wait(PATIENCE) == 0, (workstation.folder / "coordinator.log").read_text()[-3000:]
            check_kitchen(kitchen)
            check_doctors(workstation, kitchen)
    finally:
        coordinator.kill()
        desk.stop()
    (result,) = workstation.folder.glob("runs/*/result.json")
    rows = json.loads(result.read_text())["rounds"]
    assert {row["clients"] for row in rows} == {8}
    assert rows[-1]["accuracy"] > 0.9
    told = workstation.give(*BOARDS)
    assert all(re.search(rf"{name} .* good ", told) for name in ("desk", "kitchen"))


def check_kitchen(kitchen: Machine) -> None:
    assert "status: done" in kitchen.sh("cloud-init status --long", check=False)
    assert kitchen.sh("hostname").strip() == "kitchen"
    assert kitchen.sh("stat -c '%U %G %a' /etc/fedquilt/tls.key").split() == ["root", "fedquilt", "640"]
    assert "PRIVATE KEY" not in kitchen.sh("grep -r PRIVATE /boot/firmware /var/lib/cloud", check=False)
    assert kitchen.sh("systemctl show -p User --value fedquilt-agent").strip() == "fedquilt"
    assert "ssh-ed25519" in kitchen.sh("cat /home/pi/.ssh/authorized_keys")


def check_doctors(workstation: Workstation, kitchen: Machine) -> None:
    """Nothing fails, on either machine."""
    told = workstation.give(*DOCTOR), kitchen.sh(workstation.say(*DOCTOR_ON_BOARD))
    assert all("fail" not in text for text in told), told


@asked_for
@pytest.mark.timeout(1800)
def test_a_board_whose_python_is_too_old_has_a_container(workstation: Workstation, tmp_path: Path) -> None:
    """Run by hand, as docs/deploy.md says it; torch is among the wheels here, as for a Nano."""
    desk = start("desk", workstation.folder / "key")
    try:
        desk.sh("printf '#!/bin/sh\\nexit 1\\n' > /usr/local/bin/python3; chmod +x /usr/local/bin/python3")
        assert "Python is older than 3.10" in install_archive(workstation, desk)
        assert desk.sh("systemctl list-unit-files --no-legend --state=enabled 'fedquilt*'", check=False) == ""
        owner = desk.sh("echo $(id -u fedquilt):$(id -g fedquilt)").strip()
        run("docker", "cp", f"{desk.container}:{UNPACKED}/fedquilt", str(tmp_path / "fedquilt"))
        (tmp_path / "etc").mkdir()
        copy = f"docker exec {desk.container} tar -C /etc -c fedquilt | tar -C {tmp_path}/etc --numeric-owner -xp"
        run("bash", "-c", copy)  # `docker cp` forgets groups
    finally:
        desk.stop()
    name = f"fedquilt-test-jetson-{os.getpid()}"
    base = f"BASE=python:{sys.version_info[0]}.{sys.version_info[1]}-slim-bookworm"
    run("docker", "build", "--build-arg", base, "--tag", name, str(tmp_path / "fedquilt"))
    volume = f"{tmp_path}/etc/fedquilt:/etc/fedquilt:ro"
    options = ["--read-only", "--tmpfs", "/tmp", "--tmpfs", "/var/lib/fedquilt:mode=777", "--user", owner, "-v", volume]  # noqa: S108
    try:
        run("docker", "run", "--detach", "--init", "--name", name, "--network", "host", *options, name)
        doctor = "/opt/fedquilt/bin/fedquilt doctor --config /etc/fedquilt/agent.yaml"
        assert "fail" not in run("docker", "exec", name, *doctor.split())
        end = time.monotonic() + 60
        while "connected to the broker" not in (said := run("bash", "-c", f"docker logs {name} 2>&1")):
            assert time.monotonic() < end, said
            time.sleep(1)
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, check=False)
        subprocess.run(["docker", "rmi", name], capture_output=True, check=False)
