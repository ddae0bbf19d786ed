"""A virtual board: QEMU starts a card as a Raspberry Pi's firmware does, and its power can be cut."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.boot.images import BOOT_START, SECTOR, run

from fedquilt_server.simulate.mosquitto import free_port

HOST: Final = "10.0.2.2"
"""Under this address, QEMU's user network shows a board the machine on which QEMU runs."""
PROBE_SECONDS: Final = 30.0
EMULATED: Final = "systemd.default_device_timeout_sec=900"
"""An emulated processor beside other load may take minutes to find its disk, where a board takes seconds."""
SSH_OPTIONS: Final = (
    "-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR", "-oConnectTimeout=20",
    "-oBatchMode=yes", "-oServerAliveInterval=10",
)  # fmt: skip


@dataclass
class Board:
    """A card, and the virtual board that it is in.

    Args:
        card: the image file of the card.
        folder: holds the console's log of each start.
        key: private SSH key that logs in.
        user: the user that the card creates.
        options: QEMU's options for the accelerator and the processor.
    """

    card: Path
    folder: Path
    key: Path
    user: str
    options: tuple[str, ...]
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _port: int = field(default_factory=free_port)

    @property
    def console(self) -> Path:
        """The console's log of the latest start."""
        return self.folder / f"console-{self.starts}.log"

    def start(self) -> None:
        """Switch the board on."""
        self.starts += 1
        network = f"user,id=net,hostfwd=tcp:127.0.0.1:{self._port}-:22"
        self._process = boot(self.card, self.console, self.options, "-netdev", network)

    def cut_power(self) -> None:
        """Stop the board in an instant: what its system has not yet written is lost."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def power_off(self, seconds: float) -> None:
        """Shut the board down in order."""
        assert self._process is not None
        self.sh("sudo systemctl poweroff", check=False)
        self._process.wait(seconds)

    def sh(self, script: str, *, check: bool = True) -> str:
        """Run a shell script on the board and return what it prints.

        Raises:
            RuntimeError: it fails.
        """
        target = f"{self.user}@127.0.0.1"
        words = ["ssh", *SSH_OPTIONS, "-i", str(self.key), "-p", str(self._port), target, script]
        done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if check and done.returncode:
            raise RuntimeError(f"{script}: exit code {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def wait(self, reached: Callable[[], bool], what: str, seconds: float) -> float:
        """Wait until something holds; returns the seconds that it took.

        Raises:
            TimeoutError: it does not hold in time, or the board has stopped.
        """
        assert self._process is not None
        began = time.monotonic()
        while not reached():
            if time.monotonic() - began > seconds or self._process.poll() is not None:
                tail = self.console.read_text(errors="replace")[-1500:]
                raise TimeoutError(f"{what}: not within {seconds:.0f} s; the console ends with: {tail}")
            time.sleep(0.5)
        return time.monotonic() - began

    def printed(self, text: str) -> bool:
        """Return whether the console shows a text since the latest start."""
        return self.console.exists() and text in self.console.read_text(errors="replace")


def boot(card: Path, console: Path, options: tuple[str, ...], *more: str) -> subprocess.Popen[bytes]:
    """Start QEMU with the kernel, initial RAM disk and command line of the card's boot partition."""
    firmware = console.with_suffix(".firmware")
    firmware.mkdir()
    names = ("vmlinuz", "initrd.img", "cmdline.txt")
    run("mcopy", "-n", "-i", f"{card}@@{BOOT_START * SECTOR}", *(f"::{name}" for name in names), firmware)
    words = [
        "qemu-system-x86_64", "-machine", "q35", "-smp", "1", "-m", "1024", "-display", "none", "-no-reboot",
        *options, "-serial", f"file:{console}",
        "-kernel", str(firmware / "vmlinuz"), "-initrd", str(firmware / "initrd.img"),
        "-append", f"{(firmware / 'cmdline.txt').read_text().strip()} {EMULATED}",
        "-drive", f"file={card},format=raw,if=virtio,cache=writeback",
        "-device", "virtio-rng-pci", "-device", "virtio-net-pci,netdev=net", *more,
    ]  # fmt: skip
    with console.with_suffix(".qemu.log").open("wb") as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log)


def accelerator(card: Path) -> tuple[str, ...]:
    """Return QEMU's fastest options on this machine.

    Some machines have a ``/dev/kvm`` that is too slow to start anything, so a kernel is started to find out.
    """
    slow = ("-accel", "tcg,tb-size=512", "-cpu", "max")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return slow
    fast = ("-accel", "kvm", "-cpu", "host")
    with tempfile.TemporaryDirectory() as folder:
        console = Path(folder) / "console.log"
        return fast if _starts(card, console, fast) else slow


def _starts(card: Path, console: Path, options: tuple[str, ...]) -> bool:
    """Return whether the kernel starts its first program within the probe's time; the card is not written."""
    process = boot(card, console, options, "-snapshot", "-netdev", "user,id=net")
    end = time.monotonic() + PROBE_SECONDS
    try:
        while process.poll() is None and time.monotonic() < end:
            if console.exists() and "Run /init" in console.read_text(errors="replace"):
                return True
            time.sleep(0.5)
        return False
    finally:
        process.kill()
        process.wait()
