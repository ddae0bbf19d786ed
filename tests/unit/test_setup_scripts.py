"""The scripts behind ``make setup``, run as a user without rights would run them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

SCRIPTS = Path(__file__).parents[2] / "scripts"
NOBODY = 65534

needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="needs apt-get: run it on Debian or Ubuntu")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a copy of the scripts, all of it the unprivileged user's (pytest's own is private)."""
    folder = Path(tempfile.mkdtemp(prefix="fedquilt-setup-"))
    shutil.copytree(SCRIPTS, folder / "scripts")
    if os.geteuid() == 0:
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


def run(place: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``place`` without rights and with nothing but the given environment."""
    nobody = NOBODY if os.geteuid() == 0 else None
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(place), "FEDQUILT_NO_ROOT": "1"}
    return subprocess.run(
        command,
        cwd=place,
        env=plain | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        user=nobody,
        group=nobody,
        extra_groups=[] if nobody else None,
    )


def skip_without_packages(result: subprocess.CompletedProcess[str]) -> None:
    """Skip where the packages cannot be had at all, which is not the scripts' fault."""
    signs = (
        "Could not resolve",
        "Temporary failure resolving",
        "Failed to fetch",
        "Unable to locate package",
    )
    if result.returncode and any(sign in result.stderr for sign in signs):
        pytest.skip(f"needs Debian's packages: check the network ({result.stderr.strip().splitlines()[0]})")


@pytest.mark.long
@needs_apt
def test_mosquitto_is_unpacked_without_rights_and_runs(place: Path) -> None:
    result = run(place, "scripts/mosquitto.sh", "venv", FEDQUILT_PRIVATE_MOSQUITTO="1")
    skip_without_packages(result)
    assert result.returncode == 0, result.stderr
    program = place / "venv" / "bin" / "mosquitto"
    assert (place / "venv/mosquitto/usr/sbin/mosquitto").exists()
    assert any(_lets_in(program) for _ in range(3)), "another program may take the port in between, not thrice"
    again = run(place, "scripts/mosquitto.sh", "venv", FEDQUILT_PRIVATE_MOSQUITTO="1")
    assert (again.returncode, again.stdout) == (0, ""), "a second time there is nothing to do"


@pytest.mark.long
@needs_apt
@pytest.mark.skipif(
    not Path("/usr/bin/python3").exists(), reason="/usr/bin/python3 is not installed: sudo apt-get install python3"
)
def test_a_python_without_ensurepip_gets_a_pip(place: Path) -> None:
    """Debian without python3-venv, played by an interpreter that refuses to import ensurepip."""
    python = _script(place / "python3", 'case "$*" in *ensurepip*) exit 1 ;; esac; exec /usr/bin/python3 "$@"')
    result = run(place, "scripts/venv.sh", "venv", PYTHON=str(python))
    skip_without_packages(result)
    assert result.returncode == 0, result.stderr
    pip = run(place, "venv/bin/python", "-m", "pip", "--version")
    assert str(place / "venv") in pip.stdout


def test_no_ensurepip_and_no_apt_says_what_to_do(place: Path) -> None:
    python = _script(place / "python3", 'case "$*" in *ensurepip*) exit 1 ;; esac; exec /usr/bin/python3 "$@"')
    result = run(place, "scripts/venv.sh", "venv", PYTHON=str(python), PATH=str(_tools(place)))
    assert result.returncode == 2
    assert "python3-venv" in result.stderr


def test_an_old_python_is_named_with_its_version(place: Path) -> None:
    python = _script(place / "python3", 'if [ "$1" = --version ]; then echo "Python 3.9.2"; else exit 1; fi')
    result = run(place, "scripts/venv.sh", "venv", PYTHON=str(python))
    assert result.returncode == 2
    assert "Python 3.9.2" in result.stderr
    assert "3.10 or newer" in result.stderr


def test_no_python_is_named(place: Path) -> None:
    result = run(place, "scripts/venv.sh", "venv", PYTHON="python-of-nobody")
    assert result.returncode == 2
    assert "python-of-nobody" in result.stderr


def test_no_broker_to_be_had_is_code_3(place: Path) -> None:
    result = run(place, "scripts/mosquitto.sh", "venv", PATH=str(_tools(place)), FEDQUILT_PRIVATE_MOSQUITTO="1")
    assert result.returncode == 3
    assert "FEDQUILT_MOSQUITTO" in result.stderr


def test_a_broker_on_the_path_is_enough(place: Path) -> None:
    tools = _tools(place)
    _script(tools / "mosquitto", "exit 0")
    result = run(place, "scripts/mosquitto.sh", "venv", PATH=str(tools))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert not (place / "venv").exists()


def _script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def _tools(place: Path) -> Path:
    """A PATH on which there is no package manager."""
    folder = place / "tools"
    folder.mkdir()
    for name in ("bash", "sh", "dirname", "basename", "id", "grep", "rm", "mkdir", "mktemp"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _lets_in(program: Path) -> bool:
    """Whether the broker, once started, lets a client in."""
    port = _free_port()
    with subprocess.Popen([program, "-p", str(port)], stderr=subprocess.DEVNULL) as child:
        try:
            return _connects(port, child)
        finally:
            child.terminate()


def _connects(port: int, broker: subprocess.Popen[bytes]) -> bool:
    """Whether an MQTT 5 client is let in while the broker lives, within half a minute."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    end = time.monotonic() + 60
    while time.monotonic() < end and broker.poll() is None:
        try:
            client.connect("127.0.0.1", port)
        except OSError:
            time.sleep(0.1)
            continue
        while not client.is_connected() and time.monotonic() < end:
            client.loop(0.1)
        return client.is_connected()
    return False
