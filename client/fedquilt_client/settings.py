"""The settings of one agent, as the command line and the configuration file give them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedquilt_common.experiment.agent_config import IDLE_SECONDS
from fedquilt_common.wire.meter_topic import MeterTopic


@dataclass(frozen=True)
class AgentSettings:
    """Settings of one agent.

    Attributes:
        name: unique in its federation.
        clients: the clients that it hosts.
        state: folder of the data that must survive a restart.
        workers: training processes at a time, with ``threads`` threads each.
        memory: bytes of memory that the board reports; None reports what it has.
        budget: bytes that training may take; None allows what is free.
        private: report nothing about the board's resources.
        max_epsilon: the most that training may spend on any samples, in all runs; None: no limit, and training
            without differential privacy.
        max_delta: the largest delta at which ``max_epsilon`` may count; None: the experiments choose it.
        power_topic: where a meter of the owner publishes the board's power in watts; None: nowhere.
        power_command: the owner's command that prints the board's power in watts; None: the board's own sensors.
        machine_agents: agents on this machine, which share its power figure.
        allow_import: packages from which an experiment may import models, algorithms and data sets.
        own_data: file or ``package:factory`` with the samples that this board has for a client.
        idle: seconds after which a training process that has no task is ended.
        once: leave when the run has ended.
        site: the site through whose broker it connects; None without one.
        relay: add the replies of the clients up before they travel, where the run allows it.
    """

    name: str
    clients: tuple[int, ...]
    state: Path
    federation: str = "default"
    kind: str = "generic"
    workers: int = 1
    threads: int = 1
    memory: int | None = None
    budget: int | None = None
    private: bool = False
    max_epsilon: float | None = None
    max_delta: float | None = None
    power_command: str | None = None
    power_topic: MeterTopic | None = None
    machine_agents: int = 1
    allow_import: tuple[str, ...] = ()
    own_data: Mapping[int, str] = field(default_factory=dict)
    idle: float = IDLE_SECONDS
    once: bool = False
    site: str | None = None
    relay: bool = False


def default_state(name: str) -> Path:
    """Return systemd's StateDirectory if it is set, else a folder below the user's state directory."""
    folder = os.environ.get("STATE_DIRECTORY")
    if folder:
        return Path(folder)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "fedquilt" / name
