"""The options of ``fedquilt provision``, ``federation broker`` and ``flash``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedquilt_server.provisioning.kinds import KINDS

BrokerAnnounceOption = Annotated[
    bool, typer.Option("--announce", help="Announce the broker with mDNS, as `federation announce` does.")
]
BrokerSiteOption = Annotated[
    str, typer.Option(help="Write the files of this site's broker, which bridges to this one. Runs no broker.")
]
BrokerHostsOption = Annotated[
    list[str] | None,
    typer.Option(help="With --site: name or address of the site's broker; repeatable. Its boards use the first."),
]
BrokerPortOption = Annotated[
    int | None, typer.Option(min=1, max=65535, help="With --site: the port of the site's broker; default: 8883.")
]
BrokerRenewOption = Annotated[
    bool, typer.Option("--renew", help="With --site: replace the certificates of a site that has them.")
]
BrokerDaysOption = Annotated[
    int | None, typer.Option(min=1, max=7300, help="With --site: validity of new certificates in days; default: 1825.")
]
BrokerRelayOption = Annotated[
    bool | None,
    typer.Option(
        "--relay/--no-relay", help="With --site: one reply of `fedquilt relay` for all boards crosses the line."
    ),
]
ProvisionBoardOption = Annotated[
    list[str] | None,
    typer.Argument(help="Name of the board, its certificate and its agent; several for equal boards."),
]
ProvisionFromOption = Annotated[
    Path | None,
    typer.Option("--from", help="CSV file with the columns name, kind, clients, host, user and wifi."),
]
ProvisionKindOption = Annotated[str, typer.Option(help=f"Kind of the board, such as {', '.join(KINDS)}.")]
ProvisionClientsOption = Annotated[
    str, typer.Option(help="Clients to host, such as 0-3; default: the next free number.")
]
ProvisionHostOption = Annotated[str, typer.Option(help="Host name or address for Ansible; default: BOARD.local.")]
ProvisionUserOption = Annotated[str, typer.Option(help="User for Ansible; default: the usual one for the kind.")]
ProvisionSiteOption = Annotated[
    str | None, typer.Option(help="Site through whose broker the board connects; default: the central broker.")
]
ProvisionWorkersOption = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Number of training processes that run at the same time.")
]
ProvisionThreadsOption = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads per training process.")]
ProvisionBudgetOption = Annotated[
    str | None, typer.Option(help="Memory for training, such as 512MiB; default: the free memory.")
]
ProvisionProfileOption = Annotated[
    str | None, typer.Option(help="open, or private to publish nothing about the board's resources.")
]
ProvisionMaxDeltaOption = Annotated[
    float | None, typer.Option(help="Decline training with a larger delta, too; needs --max-epsilon.")
]
ProvisionMaxEpsilonOption = Annotated[
    float | None,
    typer.Option(help="Decline training without local differential privacy, or with a larger epsilon."),
]
ProvisionPowerCommandOption = Annotated[
    str | None, typer.Option(help="Program on the board that prints its power in watts; default: its sensors.")
]
ProvisionPowerTopicOption = Annotated[
    str | None, typer.Option(help="MQTT topic with its power in watts, as mqtt://host/TOPIC; default: its sensors.")
]
ProvisionRenewOption = Annotated[
    bool, typer.Option("--renew", help="Replace the certificate of a board that already has one.")
]
FlashImageOption = Annotated[
    Path | None,
    typer.Argument(
        help="Stock image of Raspberry Pi OS or Ubuntu: .img, .img.xz or .img.gz. A Jetson's archive needs none."
    ),
]
FlashBoardOption = Annotated[str, typer.Option(help="Name of a provisioned board.")]
FlashAllOption = Annotated[
    bool, typer.Option("--all", help="Every board that is not revoked, each into a file of the folder --out.")
]
FlashWifiOption = Annotated[
    Path | None,
    typer.Option(
        help="YAML file with ssid, password and country (two letters).",
        show_default="the one of the board's line in `provision --from`",
    ),
]
FlashOutOption = Annotated[
    Path | None,
    typer.Option(help="Image file to write; for a Jetson, an archive: .tar or .tar.gz; for --all, a folder."),
]
FlashDeviceOption = Annotated[
    Path | None, typer.Option(help="Card to write, such as /dev/sdX. All data on it is lost.")
]
FlashWheelsOption = Annotated[Path, typer.Option(help="Wheelhouse, built with `make wheelhouse`.")]
FlashNoWheelsOption = Annotated[
    bool, typer.Option("--no-wheels", help="Without the software: you install it with Ansible.")
]
FlashSshKeyOption = Annotated[
    Path | None, typer.Option(help="Public SSH key that can log in, for example for Ansible.")
]
FlashForceOption = Annotated[
    bool, typer.Option("--force", help="With --all: write even the boards whose file has the same content.")
]
FlashYesOption = Annotated[bool, typer.Option("--yes", help="Write a card without asking.")]
