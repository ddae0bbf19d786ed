"""Containers with systemd and sshd that stand for boards and for the workstation, and playbooks run against them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.rootfs import DEBIAN_12, Distribution, RootFileSystem

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "systemd,systemd-sysv,dbus,openssh-server,python3,ca-certificates,iproute2,sudo,cloud-init,locales,"
    "python3-cffi-backend,python3-apt,mosquitto"
)
"""Only the workstation needs Mosquitto; it is installed here because the tests do not use the Internet."""
HOOKS = ('chroot "$1" systemctl disable mosquitto',)
PATIENCE = 600.0
STRANGERS = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ControlMaster=auto -o ControlPersist=60s"
"""Containers have new host keys each time, and reuse the addresses of earlier ones."""


asked_for = pytest.mark.skipif(
    os.environ.get("FEDQUILT_TEST_BOARDS") != "1",
    reason="takes minutes: set FEDQUILT_TEST_BOARDS=1 to run it (needs a Docker engine, mmdebstrap and ssh)",
)


def run(*command: str, check: bool = True, **more: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **more)
    assert not check or done.returncode == 0, f"{command}: {done.stdout[-6000:]}{done.stderr[-3000:]}"
    output: str = done.stdout
    return output


def make_key(folder: Path) -> Path:
    """Return a new SSH key; its public half is beside it."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key"))
    return folder / "key"


def root_of(distribution: Distribution) -> RootFileSystem:
    return RootFileSystem(distribution, PACKAGES, HOOKS)


def image(distribution: Distribution) -> str:
    """Return the name of the Docker image."""
    return f"fedquilt-test-board:{root_of(distribution).name}"


def has_image(distribution: Distribution) -> bool:
    command = ["docker", "image", "inspect", image(distribution)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def why_not(distribution: Distribution = DEBIAN_12) -> str:
    """Return what is missing for containers and how to get it; empty if nothing is."""
    packages = {"docker": "docker.io", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
    for tool, package in packages.items():
        if shutil.which(tool) is None:
            return f"{tool} is not installed: sudo apt-get install {package}"
    engine = subprocess.run(["docker", "info"], capture_output=True, check=False)
    if engine.returncode != 0:
        return "no Docker engine answers: start one (docker info must succeed)"
    return "" if has_image(distribution) else root_of(distribution).why_not()


def build_image(distribution: Distribution = DEBIAN_12) -> None:
    """Build an image of the distribution with systemd if it is missing; takes some minutes the first time."""
    if not has_image(distribution):
        root = root_of(distribution).make()
        run("docker", "import", "-c", 'CMD ["/lib/systemd/systemd"]', str(root), image(distribution))


@dataclass(frozen=True)
class Machine:
    """A running container."""

    name: str
    container: str
    address: str

    def sh(self, script: str, *, check: bool = True) -> str:
        return run("docker", "exec", self.container, "sh", "-c", script, check=check)

    def wait(self, look: str, wanted: str, seconds: float) -> None:
        """Wait until the command ``look`` prints ``wanted``."""
        end = time.monotonic() + seconds
        while self.sh(look, check=False).strip() != wanted:
            assert time.monotonic() < end, self.sh("systemctl status; journalctl --no-pager | tail -50", check=False)
            time.sleep(0.2)

    def stop(self) -> None:
        subprocess.run(["docker", "rm", "-f", self.container], capture_output=True, check=False)


def create(name: str, distribution: Distribution = DEBIAN_12) -> str:
    """Create a stopped container with systemd as process 1; returns its name."""
    container = f"fedquilt-test-{name}-{os.getpid()}"
    run(
        "docker", "create", "--name", container, "--hostname", name, "--cap-add", "SYS_ADMIN",
        "--security-opt", "seccomp=unconfined", "--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec",  # noqa: S108
        "-v", "/sys/fs/cgroup:/sys/fs/cgroup:rw", image(distribution),
    )  # fmt: skip
    return container


def switch_on(name: str, container: str) -> Machine:
    run("docker", "start", container)
    template = "{{range.NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
    machine = Machine(name, container, run("docker", "inspect", "-f", template, container).strip())
    machine.wait("systemctl is-active ssh.service ssh.socket | grep -m 1 '^active'", "active", 60)
    return machine


def start(name: str, key: Path, distribution: Distribution = DEBIAN_12) -> Machine:
    """Start a container in which the public half of ``key`` can log in as root."""
    machine = switch_on(name, create(name, distribution))
    machine.sh("touch /var/lib/apt/lists")  # fresh, so that Ansible does not ask the Internet for newer ones
    public = key.with_suffix(".pub").read_text().strip()
    machine.sh(f"install -d -m 700 /root/.ssh; echo '{public}' > /root/.ssh/authorized_keys")
    return machine


@dataclass(frozen=True)
class Playbooks:
    """Runs the playbooks of ``ansible/`` with the federation's own inventory, in which ``hub`` is the workstation."""

    federation: Path
    key: Path
    hub: Machine

    def inventory(self) -> Path:
        raw = yaml.safe_load((self.federation / "inventory.yml").read_text())
        for group in ("broker", "coordinator"):
            where = {"ansible_host": self.hub.address, "ansible_user": "root"}
            raw["all"]["children"][group]["hosts"] = {"hub": where}
        path = self.federation / "test-inventory.yml"
        path.write_text(yaml.safe_dump(raw))
        return path

    def play(self, name: str, *options: str, fails: bool = False, **variables: Any) -> str:
        """Run a playbook; returns Ansible's output."""
        more = [word for key, value in variables.items() for word in ("-e", f"{key}={value}")]
        command = [str(Path(sys.executable).parent / "ansible-playbook"), f"{name}.yml", "-i", str(self.inventory())]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        done = subprocess.run(
            [*command, "--private-key", str(self.key), *more, *options],
            cwd=ROOT / "ansible", capture_output=True, text=True, timeout=PATIENCE, check=False,
            env={**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_SSH_ARGS": STRANGERS, "PATH": path},
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stdout[-6000:] + done.stderr[-2000:]
        return done.stdout


def recap(told: str, host: str) -> str:
    """Return the line of a host at the end of Ansible's output."""
    return next(line for line in told.splitlines()[::-1] if line.startswith(f"{host} "))
