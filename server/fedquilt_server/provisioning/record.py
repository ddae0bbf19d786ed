"""Read and write ``federation.yaml``, the record of a federation's identities.

All other files of the federation's folder follow from this record.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AwareDatetime, Field, ValidationError

from fedquilt_common.errors import ExperimentError, FederationError
from fedquilt_common.experiment.section import Section
from fedquilt_common.files.durable import write_durably
from fedquilt_common.files.yaml_text import MAX_OWN_CHARACTERS, dump_yaml, load_yaml, read_text
from fedquilt_common.rejections import first_problem
from fedquilt_common.wire.message_base import Name

RECORD: Final = "federation.yaml"
_HEAD: Final = "# Written by fedquilt; `fedquilt provision` and `revoke` change it.\n"


Moment: TypeAlias = Annotated[AwareDatetime, Field(strict=False)]
"""A date and a time with a time zone; YAML holds them as text."""
Serial: TypeAlias = Annotated[str, Field(pattern="^([1-9a-f][0-9a-f]{0,38}|[1-7][0-9a-f]{39})$")]
"""The serial number of a certificate, in hexadecimal: above 0 and below 2^159, as X.509 permits."""
Hosts: TypeAlias = Annotated[tuple[str, ...], Field(min_length=1, strict=False)]
"""Names and addresses of a broker."""


NOT_ISSUED: Final[Mapping[str, Any]] = MappingProxyType(
    {"serial": "1", "until": datetime.fromtimestamp(0, timezone.utc)}
)
"""Stands in a plan for the certificate that does not exist yet."""


class BoardRecord(Section):
    """A board with an identity.

    Args:
        kind: kind of the board, such as pi4.
        clients: the clients that it hosts, such as 0-3.
        host: its address for Ansible.
        user: the user with whom Ansible logs in.
        site: the site through whose broker it connects; empty for the central broker.
        serial: serial number of its certificate, in hexadecimal.
        until: end of the certificate's validity.
        revoked: when it was revoked; None if it was not.
    """

    kind: Name
    clients: str
    host: str
    user: str = ""
    site: str = ""
    serial: Serial
    until: Moment
    revoked: Moment | None = None


class RelayRecord(Section):
    """The relay of a site, which sends one reply for all boards behind it.

    Args:
        name: its name, which is that of its agent and of its user.
        serial: serial number of its certificate, in hexadecimal.
        until: end of the certificate's validity.
    """

    name: Name
    serial: Serial
    until: Moment


class SiteRecord(Section):
    """A site: its own broker, with a bridge to the central one.

    Args:
        hosts: names and addresses of its broker; the boards behind it use the first one.
        port: its broker's port.
        connection: random name of the bridge's connection; nobody who does not hold it can end the connection.
        serial: serial number of the bridge's certificate, in hexadecimal.
        until: end of the certificate's validity.
        relay: its relay; None: each reply crosses the line.
    """

    hosts: Hosts
    port: int = Field(8883, ge=1, le=65535)
    connection: str
    serial: Serial
    until: Moment
    relay: RelayRecord | None = None

    @property
    def url(self) -> str:
        """The URL of the site's broker for its boards."""
        return _broker_url(self.hosts[0], self.port)


class UserRecord(Section):
    """A user of the workstation: the coordinator, ``watch`` or ``homeassistant``.

    Args:
        serial: serial number of its certificate, in hexadecimal.
        until: end of the certificate's validity.
    """

    serial: Serial
    until: Moment


class RevokedCertificate(Section):
    """A certificate that was revoked, or replaced by a new one; ``board`` is its user."""

    serial: Serial
    board: str
    at: Moment


class FederationRecord(Section):
    """The record of a federation.

    Args:
        name: name of the federation.
        hosts: names and addresses of the broker; boards use the first one.
        port: the broker's port.
        reload: command that makes the broker use its new files; needed if the broker does not run from this folder.
        boards: the boards by name.
        sites: the sites by name.
        users: the users of the workstation by name; empty if an earlier version made the federation.
        withdrawn: the certificates that were revoked or replaced.
    """

    name: Name
    hosts: Hosts
    port: int = Field(8883, ge=1, le=65535)
    reload: str = ""
    boards: dict[Name, BoardRecord] = Field(default_factory=dict)
    sites: dict[Name, SiteRecord] = Field(default_factory=dict)
    users: dict[Name, UserRecord] = Field(default_factory=dict)
    withdrawn: Annotated[tuple[RevokedCertificate, ...], Field(strict=False)] = ()

    @property
    def url(self) -> str:
        """The broker's URL for the boards."""
        return _broker_url(self.hosts[0], self.port)

    def url_of(self, board: BoardRecord) -> str:
        """Return the URL of the broker through which a board connects: the central one, or that of its site."""
        return self.sites[board.site].url if board.site in self.sites else self.url

    @property
    def relays(self) -> dict[str, str]:
        """The site of each relay."""
        return {site.relay.name: name for name, site in sorted(self.sites.items()) if site.relay is not None}

    def boards_behind(self, site: str) -> list[str]:
        """List the boards behind a site that are not revoked."""
        return sorted(name for name, board in self.boards.items() if board.site == site and board.revoked is None)


def _broker_url(host: str, port: int) -> str:
    return f"mqtts://{f'[{host}]' if ':' in host else host}:{port}"


def read_record(folder: Path) -> FederationRecord:
    """Read the record of the federation in ``folder``.

    Raises:
        FederationError: there is no record, or it is not valid.
    """
    path = folder / RECORD
    if not path.exists():
        raise FederationError(
            f"{folder} holds no federation: create one with `fedquilt federation init`, or choose another --folder"
        )
    try:
        return FederationRecord.model_validate(load_yaml(read_text(path), str(path), MAX_OWN_CHARACTERS))
    except ExperimentError as error:
        raise FederationError(str(error)) from None
    except ValidationError as error:
        why = first_problem(error)
        raise FederationError(f"{path}: {why}; correct it, or restore the file from a backup") from None


def write_record(folder: Path, record: FederationRecord) -> None:
    """Write the record durably; it replaces an older one."""
    values: dict[str, Any] = record.model_dump(mode="json", exclude_defaults=True)
    write_durably(folder / RECORD, _HEAD + dump_yaml(values))
