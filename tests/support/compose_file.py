"""Reads ``docker-compose.yml`` for the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

from fedquilt_common.experiment.agent_config import parse_clients

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
AGENTS = {
    name: service for name, service in SERVICES.items() if name.startswith("agent-") and service["profiles"] == ["demo"]
}
TLS_AGENTS = {
    name: service for name, service in SERVICES.items() if name.startswith("agent-") and name.endswith("-tls")
}
OURS = [name for name, service in SERVICES.items() if "build" in service]
EXPERIMENTS = ROOT / "deploy" / "experiments"
QUICK = EXPERIMENTS / "digits-fedavg.yaml"
MONITORING = ROOT / "deploy" / "monitoring"
SIZES = {"m": 2**20, "g": 2**30}
ENOUGH_FOR_TORCH = 512 * 2**20


def compose_program() -> list[str]:
    """Return the words that start Docker Compose, or none if it is not installed."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    plugin = ["docker", "compose"]
    found = shutil.which("docker") and not subprocess.run([*plugin, "version"], capture_output=True).returncode
    return plugin if found else []


def defaults(text: str) -> str:
    """Replace ``${NAME:-word}`` with ``word``, as Compose does if NAME is not set."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def options(service: dict[str, Any]) -> dict[str, str]:
    """Return the options of an agent's command."""
    words = service["command"].split()
    assert words[0] == "agent"
    return {name.removeprefix("--"): value for name, value in zip(words[1::2], words[2::2], strict=True)}


def share(service: dict[str, Any], slot: int) -> tuple[int, ...]:
    """Return the clients of the replica ``slot`` of an agent's service."""
    values = options(service)
    clients, each = parse_clients(values["clients"]), int(values["each"])
    return clients[slot * each : (slot + 1) * each]


def memory_limit(service: dict[str, Any]) -> int:
    """Return a service's memory limit in bytes."""
    return int(service["mem_limit"][:-1]) * SIZES[service["mem_limit"][-1]]


def plain_environment() -> dict[str, str]:
    """Return this process's environment without the variables that change the federation."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("FEDQUILT_", "COMPOSE_"))}
