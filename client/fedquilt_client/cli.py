"""``fedquilt agent``: read the settings from options and configuration file, and run the agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from fedquilt_client import options
from fedquilt_client.agent import Agent
from fedquilt_client.link_setup import wrap_transport
from fedquilt_client.process import begin_process, run_participant
from fedquilt_client.settings import AgentSettings, default_state
from fedquilt_client.slots import Slot, take_slot
from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import AgentConfig, merge_config
from fedquilt_common.user_imports import check_allowed, is_user_import
from fedquilt_common.wire.meter_topic import parse_meter_topic
from fedquilt_common.wire.transport import MakeTransport

app = CommandApp()


@app.callback()
def group() -> None:
    """Keep ``agent`` a sub-command."""


@app.command()
def agent(
    broker: options.BrokerOption = None,
    id: options.OwnIdOption = None,
    clients: options.ClientsOption = None,
    each: options.EachOption = None,
    federation: options.FederationOption = None,
    kind: options.KindOption = None,
    site: options.SiteOption = None,
    workers: options.WorkersOption = None,
    threads: options.ThreadsOption = None,
    memory: options.MemoryOption = None,
    budget: options.BudgetOption = None,
    profile: options.ProfileOption = None,
    max_epsilon: options.MaxEpsilonOption = None,
    max_delta: options.MaxDeltaOption = None,
    power_command: options.PowerCommandOption = None,
    power_topic: options.PowerTopicOption = None,
    machine_agents: options.MachineAgentsOption = None,
    state: options.OwnStateOption = None,
    allow_import: options.AllowImportOption = None,
    data: options.DataOption = None,
    link: options.LinkOption = None,
    ca: options.CaOption = None,
    cert: options.CertOption = None,
    key: options.KeyOption = None,
    idle: options.IdleOption = None,
    once: options.OnceOption = None,
    relay: options.RelayOption = None,
    config: options.ConfigOption = None,
) -> None:
    """Host clients on this board: fetch their tasks, train, send the replies. Runs until you stop it.

    You can give the broker's password in FEDQUILT_BROKER_PASSWORD instead of the URL.
    """
    given = {k: v for k, v in locals().items() if k != "config" and v not in (None, [])}
    settings = merge_config(AgentConfig, "agent", config, given)
    address = begin_process(settings)
    own, slot = _take_slot(_agent_settings(settings), settings.each)

    def make(connect: MakeTransport, should_stop: Callable[[], bool]) -> Agent:
        if settings.link is None:
            return Agent(own, connect)
        return Agent(own, wrap_transport(settings.link, own, connect, should_stop))

    exit_code = run_participant(own, address, make)
    if slot is not None:
        slot.lock.close()
    raise typer.Exit(exit_code)


def _take_slot(settings: AgentSettings, each: int | None) -> tuple[AgentSettings, Slot | None]:
    """Return the settings with a slot's clients, name and folder if ``each`` is set, and the slot to keep."""
    if each is None:
        return settings, None
    slot = take_slot(settings.state, settings.clients, each)
    name = f"{settings.name}-{slot.number}"
    return replace(settings, name=name, clients=slot.clients, state=slot.state), slot


def _check_own_data(own: dict[int, str], allowed: Sequence[str]) -> dict[int, str]:
    """Check the files and factories of ``--data`` before a run describes the samples."""
    for client, source in own.items():
        if not Path(source).is_file():
            if not is_user_import(source):
                raise ExperimentError(f"--data {client}={source}: there is no such file; correct the path")
            check_allowed(source, "own samples", allowed)
    return own


def _agent_settings(config: AgentConfig) -> AgentSettings:
    return AgentSettings(
        name=config.id,
        clients=config.hosted,
        state=config.state or default_state(config.id),
        federation=config.federation,
        kind=config.kind,
        site=config.site,
        workers=config.workers,
        threads=config.threads,
        memory=None if config.memory is None else int(config.memory),
        budget=None if config.budget is None else int(config.budget),
        private=config.profile == "private",
        max_epsilon=config.max_epsilon,
        max_delta=config.max_delta,
        power_command=config.power_command,
        power_topic=parse_meter_topic(config.power_topic) if config.power_topic else None,
        machine_agents=config.machine_agents,
        allow_import=tuple(config.allow_import),
        own_data=_check_own_data(config.own_data, config.allow_import),
        idle=config.idle,
        once=config.once,
        relay=config.relay,
    )


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt agent``."""
    app(arguments, prog_name="fedquilt")
