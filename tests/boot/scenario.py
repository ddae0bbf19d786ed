"""One board from its stock image to its first connection and, in the long form, to a model."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import yaml
from tests.boot.images import BOOT_MIB, BOOT_START, RELEASES, SECTOR, run, stock_image
from tests.boot.machine import HOST, Board, accelerator
from tests.support.peers import Peer, federation_broker

from fedquilt_common.wire.messages import AgentPresence
from fedquilt_common.wire.topics import Topics
from fedquilt_server.simulate.mosquitto import free_port

PROJECT: Final = Path(__file__).parents[2]
NAME: Final = "kitchen"
FEDERATION: Final = "boot"
PATIENCE: Final = 2400.0
WIFI: Final = {"ssid": "Lab", "password": "a long one", "country": "DE"}
CARD_BYTES: Final = 4 << 30
"""A card is larger than the image: at its first start, the board grows its root file system, and has room for torch."""
PIP_INSTALLS: Final = "Installing collected packages"
EXPERIMENT: Final = PROJECT / "deploy" / "experiments" / "digits-fedavg.yaml"
SMALL: Final = (
    "data.clients=2",
    "participation.per_round=2",
    "participation.quorum=2",
    "fleet=[{kind: board, agents: 1, clients: 2}]",
    "rounds=4",
    "training.epochs=1",
)


@dataclass
class Report:
    """The steps of a boot test with their seconds, and its checks with what is wrong."""

    image: str
    say: Callable[[str], None]
    steps: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    checks: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure a step."""
        self.say(f"{self.image}: {name} ...")
        began = time.monotonic()
        yield
        self.steps[name] = round(time.monotonic() - began, 1)
        self.say(f"{self.image}: {name}: {self.steps[name]:.0f} s")

    def check(self, what: str, holds: bool, seen: object = "") -> None:
        """Note a check."""
        self.checks += 1
        if not holds:
            self.problems.append(f"{what}: {seen}".strip())
        self.say(f"{self.image}: {what}: {'ok' if holds else f'WRONG: {seen}'}")


class Presence:
    """Follows the board's presence on the broker."""

    def __init__(self, federation: Path, port: int) -> None:
        self._peer = Peer(port, "boot-test", certs=federation / "watch")
        self._peer.subscribe(Topics(FEDERATION).presence(NAME))

    @property
    def online(self) -> bool:
        """Whether the latest message announces the board as online."""
        payloads = self._peer.payloads
        return bool(payloads and payloads[-1]) and AgentPresence.model_validate_json(payloads[-1]).online

    def close(self) -> None:
        """Disconnect."""
        self._peer.close()


@dataclass(frozen=True)
class Bench:
    """What a boot test works with: a federation with its broker, and a board with its card."""

    federation: Path
    port: int
    board: Board
    presence: Presence
    report: Report


def fedquilt(*arguments: str | Path) -> str:
    """Run the ``fedquilt`` command."""
    return run(sys.executable, "-m", "fedquilt_common.cli", *arguments)


def try_board(shape: str, release: str, cache: Path, folder: Path, say: Callable[[str], None], long: bool) -> Report:
    """Install a board whose power is cut, check it, and in the long form train with it.

    Args:
        shape: a key of ``SHAPES``.
        release: a Debian release.
        cache: holds stock images and wheelhouses between tests.
        folder: an empty folder for the card and the logs.
        say: called with each step.
        long: whether the board gets torch and trains; its power is cut during a run.
    """
    report = Report(f"{shape} {release}", say)
    wifi = shape == "raspios" and not long
    with _bench(shape, release, cache, folder, report, long, wifi) as bench:
        _install(bench)
        _check_system(bench, wifi)
        if long:
            _train(bench, folder)
        with report.step("shut down"):
            bench.board.power_off(PATIENCE)
        _check_card(bench)
        with report.step("start again, until the agent is connected"):
            bench.board.start()
            bench.board.wait(lambda: bench.presence.online, "the agent is connected", PATIENCE)
    return report


@contextmanager
def _bench(
    shape: str, release: str, cache: Path, folder: Path, report: Report, long: bool, wifi: bool
) -> Iterator[Bench]:
    federation, port, key = folder / "federation", free_port(), folder / "key"
    with report.step("make or find the stock image"):
        stock = stock_image(shape, release, cache)
    with report.step("make or find the wheelhouse"):
        wheels = _wheelhouse(release, cache, long)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    named = ("--folder", federation)
    fedquilt("federation", "init", *named, "--name", FEDERATION, "--broker", HOST, "--port", str(port))
    fedquilt("provision", NAME, *named, "--kind", "virtual", "--user", "pi", "--clients", "0-1")
    options: list[str | Path] = ["--wheels", wheels, "--ssh-key", key.with_suffix(".pub"), "--out", folder / "card.img"]
    if wifi:
        (folder / "wifi.yaml").write_text(yaml.safe_dump(WIFI))
        options += ["--wifi", folder / "wifi.yaml"]
    with report.step("flash"):
        fedquilt("flash", stock, "--board", NAME, *named, *options)
        os.truncate(folder / "card.img", CARD_BYTES)
    with report.step("choose an accelerator"):
        accelerated = accelerator(stock)
    report.say(f"{report.image}: QEMU with {' '.join(accelerated)}")
    board = Board(folder / "card.img", folder, key, "pi", accelerated)
    with federation_broker(federation, port):
        presence = Presence(federation, port)
        try:
            yield Bench(federation, port, board, presence, report)
        finally:
            presence.close()
            board.cut_power()


def _wheelhouse(release: str, cache: Path, long: bool) -> Path:
    """Return a wheelhouse for a release, made from this checkout; only the long form needs torch."""
    folder = cache / f"wheels-{release}{'-torch' if long else ''}"
    without = () if long else ("--without", "torch", "scipy", "scikit-learn")
    script = PROJECT / "scripts" / "wheelhouse.py"
    run(
        sys.executable,
        script,
        "--arch",
        "x86_64",
        "--python",
        RELEASES[release].distribution.python,
        "--out",
        folder,
        *without,
    )
    return folder


def _install(bench: Bench) -> None:
    """Start the card for the first time, cut the power during the installation, and start it again."""
    board, report = bench.board, bench.report
    with report.step("first start, until pip installs"):
        board.start()
        board.wait(lambda: board.printed(PIP_INSTALLS), "the installation begins", PATIENCE)
    report.say(f"{report.image}: power cut during the installation")
    board.cut_power()
    with report.step("second start, until the agent is connected"):
        board.start()
        board.wait(lambda: bench.presence.online, "the agent is connected", PATIENCE)


def _check_system(bench: Bench, wifi: bool) -> None:
    board, report = bench.board, bench.report
    board.wait(lambda: board.sh("echo here", check=False) == "here\n", "a login", PATIENCE)
    board.sh("systemctl is-system-running --wait", check=False)
    board.wait(lambda: "running" not in board.sh("cloud-init status", check=False), "cloud-init is done", PATIENCE)
    failed = board.sh("systemctl --failed --no-legend --plain")
    # The virtual board has no radio, so the service that waits for the Wi-Fi fails.
    expected = ("systemd-networkd-wait-online.service",) if wifi else ()
    rest = [line for line in failed.splitlines() if line.strip() and line.split()[0] not in expected]
    logs = [board.sh(f"sudo journalctl -b --no-pager -u {line.split()[0]} | tail -20", check=False) for line in rest]
    report.check("no service has failed", not rest, "\n".join([failed, *logs]))
    status = board.sh("cloud-init status --long", check=False)
    report.check("cloud-init reports no error", "status: done" in status, status)
    enabled = board.sh("systemctl is-enabled fedquilt-install.service", check=False).strip()
    report.check("the installer is disabled", enabled == "disabled", enabled)
    netplan = yaml.safe_load(board.sh("sudo netplan get"))["network"]
    cables = netplan["ethernets"]
    report.check("the cable is configured as on the card", list(cables) == ["eth0"] and cables["eth0"]["dhcp4"], cables)
    if wifi:
        points = netplan.get("wifis", {}).get("wlan0", {}).get("access-points", {})
        found = list(points) == [WIFI["ssid"]] and WIFI["password"] in str(points)
        report.check("the Wi-Fi is configured as on the card", found, netplan)
    copies = "sed -n 2p /etc/fedquilt/tls.key | grep -rlF -f - /var/lib/cloud /var/log /run/cloud-init /boot/firmware"
    kept = board.sh(f"sudo sh -c '{copies}'", check=False)
    report.check("no copy of the key is on the board", not kept.strip(), kept)
    mode = board.sh("sudo stat -c '%U %G %a' /etc/fedquilt/tls.key").strip()
    report.check("only the agent reads the key", mode == "root fedquilt 640", mode)
    report.say(f"{report.image}: {board.sh('systemd-analyze').strip()}")


def _check_card(bench: Bench) -> None:
    """Look for the private key among all bytes of the boot partition, also those that belong to no file."""
    with bench.board.card.open("rb") as file:
        file.seek(BOOT_START * SECTOR)
        partition = file.read(BOOT_MIB << 20)
    lines = (bench.federation / "boards" / NAME / "tls.key").read_text().splitlines()[1:-1]
    found = sum(line.encode() in partition for line in lines)
    bench.report.check("no byte of the key is in the boot partition", found == 0, f"{found} lines of it")
    der = base64.b64decode("".join(lines))
    bench.report.check("nor in another form", der not in partition)


def _train(bench: Bench, folder: Path) -> None:
    """Compare a run during which the board's power is cut with an undisturbed run of the same board."""
    board, report = bench.board, bench.report
    digests = []
    for name, disturbed in (("run with a power cut", True), ("undisturbed run", False)):
        out = folder / name.replace(" ", "-")
        with report.step(name):
            coordinator = _start_coordinator(bench, out)
            if disturbed:
                board.wait(partial(_has_begun, coordinator, out), "the first round", PATIENCE)
                board.cut_power()
                board.start()
            code = coordinator.wait(PATIENCE)
        report.check(f"the coordinator of the {name} ends well", code == 0, f"exit code {code}")
        if code:
            return
        digests.append(hashlib.sha256((out / "global.safetensors").read_bytes()).hexdigest())
    report.check("both runs have the same model, bit for bit", len(set(digests)) == 1, digests)


def _has_begun(coordinator: subprocess.Popen[bytes], out: Path) -> bool:
    """Whether a run has completed a round; or its coordinator has ended, and will not complete one."""
    table = out / "rounds.csv"
    return coordinator.poll() is not None or (table.exists() and len(table.read_text().splitlines()) > 1)


def _start_coordinator(bench: Bench, out: Path) -> subprocess.Popen[bytes]:
    identity = bench.federation / "coordinator"
    files = [word for name in ("ca", "cert", "key") for word in (f"--{name}", str(identity / _FILES[name]))]
    words = [
        sys.executable, "-m", "fedquilt_common.cli", "coordinator", str(EXPERIMENT), "--out", str(out),
        "--broker", f"mqtts://localhost:{bench.port}", "--federation", FEDERATION, "--port", str(free_port()), *files,
        *(word for change in SMALL for word in ("--set", change)),
    ]  # fmt: skip
    return subprocess.Popen(words)


_FILES: Final = {"ca": "ca.crt", "cert": "tls.crt", "key": "tls.key"}
