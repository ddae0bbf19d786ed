"""``fedquilt agent``: read the settings from options and configuration file, and run the agent."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from fedquilt_client.agent import Agent
from fedquilt_client.link_setup import wrap_transport
from fedquilt_client.settings import AgentSettings
from fedquilt_client.slots import Slot, take_slot
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import AgentConfig, merge_config, parse_clients, parse_own_data
from fedquilt_common.process.malloc import return_freed_memory
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.process.watchdog import CountedStop, report_liveness
from fedquilt_common.user_imports import check_allowed, is_user_import
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, parse_broker_url
from fedquilt_common.wire.client_id import agent_client_id, keep_suffix
from fedquilt_common.wire.meter_topic import parse_meter_topic
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Deliver, MakeTransport, Transport, Will

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

_REQUIRED: Final = "Required, here or in --config."


def _default(name: str) -> str:
    """Return the value that the agent's configuration has without the option."""
    return str(AgentConfig.model_fields[name].default)


@app.callback()
def group() -> None:
    """Keep ``agent`` a sub-command."""


@app.command()
def agent(
    broker: Annotated[str | None, typer.Option(help=f"mqtt://host[:port] or mqtts://... {_REQUIRED}")] = None,
    id: Annotated[str | None, typer.Option(help=f"Name of this agent, unique in its federation. {_REQUIRED}")] = None,
    clients: Annotated[str | None, typer.Option(help=f"Clients hosted here, such as 0-3 or 0,2,5. {_REQUIRED}")] = None,
    each: Annotated[
        int | None,
        typer.Option(
            help="Host N of --clients that no other agent with this --state hosts; --id gets the slot's number.",
            metavar="N",
            show_default="all of --clients",
        ),
    ] = None,
    federation: Annotated[
        str | None, typer.Option(help="Name space at the broker.", show_default=_default("federation"))
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="Kind of board, for the status page and the algorithms.", show_default=_default("kind")),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="Site through whose broker this agent connects, for the status page.", show_default="none"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Number of training processes at a time.", show_default=_default("workers"))
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Number of threads of each training process.", show_default=_default("threads"))
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory that the agent reports for the board, such as 512MiB.", show_default="measured"),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Memory that training may take, such as 64MiB.", show_default="what is free"),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="open; or private: report the kind of board, not its resources.", show_default=_default("profile")
        ),
    ] = None,
    max_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Decline training that may spend more on any samples, or has no local differential privacy.",
            show_default="no limit",
        ),
    ] = None,
    power_command: Annotated[
        str | None,
        typer.Option(help="Program that prints the board's power in watts.", show_default="the board's sensors"),
    ] = None,
    power_topic: Annotated[
        str | None,
        typer.Option(
            help="MQTT topic with the board's power in watts: mqtt://host/TOPIC, with #KEY for JSON.",
            show_default="the board's sensors",
        ),
    ] = None,
    machine_agents: Annotated[
        int | None,
        typer.Option(help="Agents on this machine; each reports an equal part of its power.", show_default="1"),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the data that must survive a restart.",
            show_default="$STATE_DIRECTORY, else ~/.local/state/fedquilt/ID",
        ),
    ] = None,
    allow_import: Annotated[
        list[str] | None,
        typer.Option(help="Package that an experiment may load code from; repeatable."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Samples of this board that never leave it: CLIENT=FILE or CLIENT=package:factory; repeatable."
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            help="Simulate a link: rate=50,latency=1,loss=0.2, also mtu, speedup, window, timeout, open and period; "
            "or `experiment` for its link.",
            show_default="no simulated link",
        ),
    ] = None,
    ca: Annotated[
        str | None,
        typer.Option(help="CA certificates (PEM) to verify the broker with.", show_default="those of the system"),
    ] = None,
    cert: Annotated[str | None, typer.Option(help="Client certificate (PEM) for the broker.")] = None,
    key: Annotated[str | None, typer.Option(help="Key of the client certificate (PEM).")] = None,
    idle: Annotated[
        float | None,
        typer.Option(
            help="End a training process that had no task for so many seconds; the next task starts one.",
            show_default=_default("idle"),
        ),
    ] = None,
    once: Annotated[
        bool | None, typer.Option("--once", help="Exit when the run has ended.", show_default="wait for the next run")
    ] = None,
    relay: Annotated[
        bool | None,
        typer.Option(
            "--relay",
            help="Add the replies of the clients up before they travel, in runs with exact_sums.",
            show_default="each reply travels alone",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with the same keys; options override it.")] = None,
) -> None:
    """Host clients on this board: fetch their tasks, train, send the replies. Runs until you stop it.

    You can give the broker's password in FEDQUILT_BROKER_PASSWORD instead of the URL.
    """
    options = {k: v for k, v in locals().items() if k != "config" and v not in (None, [])}
    settings = merge_config(AgentConfig, "agent", config, options)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    address = parse_broker_url(settings.broker).with_files(settings.ca, settings.cert, settings.key)
    address = address.with_password(os.environ.get(BROKER_PASSWORD, ""))

    transports: list[Transport] = []

    own, slot = _take_slot(_agent_settings(settings), settings.each)

    def transport(deliver: Deliver, will: Will) -> Transport:
        client_id = agent_client_id(own.federation, own.name, keep_suffix(own.state))
        transports.append(MqttTransport(address, client_id, deliver, will=will))
        return transports[-1]

    return_freed_memory()
    stop = StopSignal()
    make: MakeTransport = transport
    if settings.link is not None:
        make = wrap_transport(settings.link, own.name, min(own.clients), Topics(own.federation), transport)
    turns = CountedStop(stop)
    with report_liveness(lambda: (turns.count, [each.bytes_sent for each in transports])):
        Agent(own, make).execute(turns)
    if slot is not None:
        slot.lock.close()
    raise typer.Exit(stop.exit_code)


def _take_slot(settings: AgentSettings, each: int | None) -> tuple[AgentSettings, Slot | None]:
    """Return the settings with a slot's clients, name and folder if ``each`` is set, and the slot to keep."""
    if each is None:
        return settings, None
    slot = take_slot(settings.state, settings.clients, each)
    name = f"{settings.name}-{slot.number}"
    return replace(settings, name=name, clients=slot.clients, state=slot.state), slot


def _check_own_data(own: dict[int, str], clients: tuple[int, ...], allowed: Sequence[str]) -> dict[int, str]:
    """Check what can be wrong with ``--data`` before a run describes the samples."""
    for client, source in own.items():
        if client not in clients:
            raise ExperimentError(f"--data {client}={source}: this agent does not host client {client}; see --clients")
        if not Path(source).is_file():
            if not is_user_import(source):
                raise ExperimentError(f"--data {client}={source}: there is no such file; correct the path")
            check_allowed(source, "own samples", allowed)
    return own


def _agent_settings(config: AgentConfig) -> AgentSettings:
    clients = parse_clients(str(config.clients))
    return AgentSettings(
        name=config.id,
        clients=clients,
        state=config.state or default_state(config.id),
        federation=config.federation,
        kind=config.kind,
        site=config.site,
        workers=config.workers,
        threads=config.threads,
        memory=int(config.memory) if config.memory else None,
        budget=int(config.budget) if config.budget else None,
        private=config.profile == "private",
        max_epsilon=config.max_epsilon,
        power_command=config.power_command,
        power_topic=parse_meter_topic(config.power_topic) if config.power_topic else None,
        machine_agents=config.machine_agents,
        allow_import=tuple(config.allow_import),
        own_data=_check_own_data(parse_own_data(config.data), clients, config.allow_import),
        idle=config.idle,
        once=config.once,
        relay=config.relay,
    )


def default_state(name: str) -> Path:
    """Return systemd's StateDirectory if it is set, else a folder below the user's state directory."""
    folder = os.environ.get("STATE_DIRECTORY")
    if folder:
        return Path(folder)
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "fedquilt" / name


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt agent``."""
    app(arguments, prog_name="fedquilt")
