"""The options of ``fedquilt agent`` and ``fedquilt relay``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from fedquilt_common.experiment.agent_config import AgentConfig

REQUIRED: Final = "Required, here or in --config."


def _default(name: str) -> str:
    """Return the value that the agent's configuration has without the option."""
    return str(AgentConfig.model_fields[name].default)


BrokerOption = Annotated[str | None, typer.Option(help=f"mqtt://host[:port] or mqtts://... {REQUIRED}")]
OwnIdOption = Annotated[str | None, typer.Option(help=f"Name of this agent, unique in its federation. {REQUIRED}")]
ClientsOption = Annotated[str | None, typer.Option(help=f"Clients hosted here, such as 0-3 or 0,2,5. {REQUIRED}")]
EachOption = Annotated[
    int | None,
    typer.Option(
        help="Host N of --clients that no other agent with this --state hosts; --id gets the slot's number.",
        metavar="N",
        show_default="all of --clients",
    ),
]
FederationOption = Annotated[
    str | None, typer.Option(help="Name space at the broker.", show_default=_default("federation"))
]
KindOption = Annotated[
    str | None,
    typer.Option(help="Kind of board, for the status page and the algorithms.", show_default=_default("kind")),
]
SiteOption = Annotated[
    str | None,
    typer.Option(help="Site through whose broker this agent connects, for the status page.", show_default="none"),
]
WorkersOption = Annotated[
    int | None, typer.Option(help="Number of training processes at a time.", show_default=_default("workers"))
]
ThreadsOption = Annotated[
    int | None, typer.Option(help="Number of threads of each training process.", show_default=_default("threads"))
]
MemoryOption = Annotated[
    str | None,
    typer.Option(help="Memory that the agent reports for the board, such as 512MiB.", show_default="measured"),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(help="Memory that training may take, such as 64MiB.", show_default="what is free"),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        help="open; or private: report the kind of board, not its resources.", show_default=_default("profile")
    ),
]
MaxDeltaOption = Annotated[
    float | None,
    typer.Option(
        help="Decline training with a larger delta, too; needs --max-epsilon.",
        show_default="no limit",
    ),
]
MaxEpsilonOption = Annotated[
    float | None,
    typer.Option(
        help="Decline training that may spend more on any samples, or has no local differential privacy.",
        show_default="no limit",
    ),
]
PowerCommandOption = Annotated[
    str | None,
    typer.Option(help="Program that prints the board's power in watts.", show_default="the board's sensors"),
]
PowerTopicOption = Annotated[
    str | None,
    typer.Option(
        help="MQTT topic with the board's power in watts: mqtt://host/TOPIC, with #KEY for JSON.",
        show_default="the board's sensors",
    ),
]
MachineAgentsOption = Annotated[
    int | None,
    typer.Option(help="Agents on this machine; each reports an equal part of its power.", show_default="1"),
]
OwnStateOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the data that must survive a restart.",
        show_default="$STATE_DIRECTORY, else ~/.local/state/fedquilt/ID",
    ),
]
AllowImportOption = Annotated[
    list[str] | None,
    typer.Option(help="Package that an experiment may load code from; repeatable."),
]
DataOption = Annotated[
    list[str] | None,
    typer.Option(help="Samples of this board that never leave it: CLIENT=FILE or CLIENT=package:factory; repeatable."),
]
LinkOption = Annotated[
    str | None,
    typer.Option(
        help="Simulate a link: rate=50,latency=1,loss=0.2, and mtu, speedup, window, timeout, open and period; "
        "or `experiment` for its link.",
        show_default="no simulated link",
    ),
]
CaOption = Annotated[
    str | None,
    typer.Option(help="CA certificates (PEM) to verify the broker with.", show_default="those of the system"),
]
CertOption = Annotated[str | None, typer.Option(help="Client certificate (PEM) for the broker.")]
KeyOption = Annotated[str | None, typer.Option(help="Key of the client certificate (PEM).")]
IdleOption = Annotated[
    float | None,
    typer.Option(
        help="End a training process after this many seconds without a task; the next task starts one.",
        show_default=_default("idle"),
    ),
]
OnceOption = Annotated[
    bool | None, typer.Option("--once", help="Exit when the run has ended.", show_default="wait for the next run")
]
RelayOption = Annotated[
    bool | None,
    typer.Option(
        "--relay",
        help="Add up the replies of the clients before sending them, in runs with exact_sums.",
        show_default="each reply travels alone",
    ),
]
ConfigOption = Annotated[Path | None, typer.Option(help="YAML file with the same keys; options override it.")]
