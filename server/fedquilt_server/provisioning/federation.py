"""Manage a federation's folder: authority, broker files, an identity for each board, an Ansible inventory.

federation.yaml        the record; all files below follow from it
inventory.yml          for Ansible
authority/             ca.crt and ca.key: back them up, and keep ca.key secret
broker/                the files of Mosquitto
sites/SITE/            the files of a site's Mosquitto, with the identity of its bridge; relay/ with those of its relay
coordinator/, watch/, homeassistant/
                       ca.crt, tls.crt, tls.key of the workstation's own users
boards/BOARD/          ca.crt, tls.crt, tls.key and agent.yaml of a board; its wifi.yaml if a list of boards named one
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from fedquilt_common.errors import FederationError
from fedquilt_common.experiment.agent_config import AgentConfig
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import write_durably
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.files.yaml_text import dump_yaml
from fedquilt_common.wire.topics import RELAY_SUFFIX, RESERVED, SITE_USER
from fedquilt_server.provisioning.acl import make_acl
from fedquilt_server.provisioning.authority import Identity, issue_certificate, load_identity, make_authority
from fedquilt_server.provisioning.authority import revocation_list as signed_list
from fedquilt_server.provisioning.board_plan import (
    BoardRequest,
    check_level,
    check_request,
    complete_request,
    make_config,
    merge_settings,
)
from fedquilt_server.provisioning.broker_files import CONFIG, local_config, system_config
from fedquilt_server.provisioning.broker_process import reload_broker
from fedquilt_server.provisioning.card import Wifi
from fedquilt_server.provisioning.inventory import inventory
from fedquilt_server.provisioning.names import broker_name, check_host
from fedquilt_server.provisioning.private_files import hide_from_git, write_private
from fedquilt_server.provisioning.record import (
    BoardRecord,
    FederationRecord,
    RelayRecord,
    SiteRecord,
    UserRecord,
    read_record,
    write_record,
)
from fedquilt_server.provisioning.site_bridge import BRIDGE
from fedquilt_server.provisioning.site_files import RELAY, agents_behind, write_site
from fedquilt_server.provisioning.site_plan import plan_site, relay_name
from fedquilt_server.provisioning.vacancy import AUTHORITY, check_vacant
from fedquilt_server.provisioning.withdrawal import withdraw, withdraw_users

DAYS: Final = 5 * 365
"""Default validity of a certificate in days."""
BROKER, BOARDS, SITES = "broker", "boards", "sites"
LONGEST_NAME: Final = 48
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
"""Further names of the broker, for the coordinator on the same machine."""


@dataclass(frozen=True)
class Federation:
    """A federation in its folder. ``make_federation`` creates one."""

    folder: Path

    @property
    def record(self) -> FederationRecord:
        """The current record, read from its file.

        Raises:
            FederationError: there is no record, or it is not valid.
        """
        return read_record(self.folder)

    @property
    def broker_folder(self) -> Path:
        """The folder of the broker's files, as an absolute path."""
        return self.folder.absolute() / BROKER

    def site_folder(self, site: str) -> Path:
        """Return the folder with the files of a site's broker, as an absolute path."""
        return self.folder.absolute() / SITES / site

    def board_folder(self, board: str) -> Path:
        """Return the folder with the identity of a board."""
        return self.folder / BOARDS / board

    def board(self, name: str) -> BoardRecord:
        """Return the record of a board.

        Raises:
            FederationError: the board has never been provisioned.
        """
        boards = self.record.boards
        if name not in boards:
            names = ", ".join(sorted(boards)) or "none yet"
            raise FederationError(f"there is no board {name!r} in {self.folder} (boards: {names})")
        return boards[name]

    def provision(
        self, name: str, kind: str = "", clients: str = "", host: str = "", user: str = "", days: int = DAYS,
        renew: bool = False, **settings: Any,
    ) -> BoardRecord:  # fmt: skip
        """Give a board an identity, an agent configuration and an entry in the inventory.

        Args:
            name: name of the board.
            kind: kind of the board; can be empty for a board that already has one.
            clients: clients to host, such as 0-3; if empty, those it had, or the next free number.
            host: address for Ansible; if empty, the one it had, or BOARD.local.
            user: user for Ansible; if empty, the one it had, or the usual one for the kind.
            days: validity of the certificate.
            renew: replace the identity of a board that already has one; the old certificate is withdrawn.
            settings: further keys of its ``agent.yaml``; other keys of an existing file are kept.

        Raises:
            FederationError: the name, the host, the user or the clients cannot be used, or the board needs ``renew``.
            ExperimentError: the agent configuration is not valid.
        """
        with self._locked_record() as record:
            before, request = record.boards.get(name), BoardRequest(name, kind, clients, host, user)
            check_request(record, request, renew)
            planned = complete_request(record, request)
            if before is not None:
                settings = merge_settings(self.board_folder(name) / "agent.yaml", settings)
            config = make_config(record, planned, settings)
            identity = issue_certificate(self._authority(), name, _expiry_after(days))
            board = BoardRecord(
                kind=planned.kind, clients=planned.clients, host=planned.host, user=planned.user,
                site=config.site or "", serial=identity.serial, until=identity.until,
            )  # fmt: skip
            withdrawn = withdraw(record, name, before, self.board_folder(name) / "tls.crt")
            if withdrawn != record:  # first: if this is interrupted, no certificate stays valid that is not recorded
                self._write_files(withdrawn)
            self._write_bundle(self.board_folder(name), identity, config)
            self._write_files(withdrawn.model_copy(update={"boards": {**record.boards, name: board}}))
        return board

    def add_site(
        self,
        name: str,
        hosts: Sequence[str] = (),
        port: int | None = None,
        days: int = DAYS,
        renew: bool = False,
        relay: bool | None = None,
    ) -> SiteRecord:
        """Write the files of a site's broker. A site that exists keeps its certificates, unless its hosts change.

        Args:
            name: name of the site.
            hosts: names and addresses of the site's broker; empty keeps those that it had.
            port: the broker's port; None keeps the one that it had, or is 8883.
            days: validity of new certificates.
            renew: replace the certificates of the broker, its bridge and its relay; those of the last two are
                withdrawn.
            relay: whether a relay sends the boards' replies; None: as before, at first without one.

        Raises:
            FederationError: the name or a host cannot be used, or a new site has no host.
        """
        with self._locked_record() as record:
            before = record.sites.get(name)
            planned = plan_site(record, name, hosts, port)
            folder, authority, until = self.site_folder(name), self._authority(), _expiry_after(days)
            if renew or before is None or before.hosts != planned.hosts:
                identity = issue_certificate(authority, BROKER, until, (*planned.hosts, *LOCAL))
                self._write_identity(folder, identity, "broker")
            if renew or before is None:
                record = withdraw(record, f"{SITE_USER}{name}", before, folder / f"{BRIDGE}.crt")
                identity = issue_certificate(authority, f"{SITE_USER}{name}", until)
                self._write_identity(folder, identity, BRIDGE)
                planned = planned.model_copy(update={"serial": identity.serial, "until": identity.until})
            own, record = self._issue_relay(record, name, relay, renew=renew, until=until)
            planned = planned.model_copy(update={"relay": own})
            self._write_files(record.model_copy(update={"sites": {**record.sites, name: planned}}))
        return planned

    def _issue_relay(
        self, record: FederationRecord, site: str, wanted: bool | None, *, renew: bool, until: datetime
    ) -> tuple[RelayRecord | None, FederationRecord]:
        """Return the relay of a site, with a new certificate if needed, and the record that withdraws the old one."""
        before = record.sites[site].relay if site in record.sites else None
        has_relay, folder = (before is not None if wanted is None else wanted), self.site_folder(site) / RELAY
        if before is not None and has_relay and not renew:
            return before, record
        record = withdraw(record, f"{site}{RELAY_SUFFIX}", before, folder / "tls.crt")
        if not has_relay:
            shutil.rmtree(folder, ignore_errors=True)
            return None, record
        name = relay_name(record, site)
        identity = issue_certificate(self._authority(), name, until)
        self._write_identity(folder, identity, "tls")
        return RelayRecord(name=name, serial=identity.serial, until=identity.until), record

    def wifi_file(self, board: str) -> Path:
        """Return the file with a board's wireless network; it exists only if the board has one."""
        return self.board_folder(board) / "wifi.yaml"

    def keep_wifi(self, board: str, wifi: Wifi) -> bool:
        """Keep a board's wireless network for ``fedquilt flash``; returns whether it is new or has changed."""
        path, text = self.wifi_file(board), dump_yaml(wifi.model_dump(exclude_defaults=True))
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return False
        with report_disk_errors(self.folder):
            write_private(path, text)
        return True

    def revoke(self, name: str) -> str:
        """Withdraw a board's certificate and its access rights, and make the broker use the new files.

        Returns:
            The result of ``reload``.

        Raises:
            FederationError: there is no such board, it is already revoked, or the broker cannot be reloaded.
        """
        if name in RESERVED:
            raise FederationError(
                f"{name} is a user of the workstation, not a board: `fedquilt federation renew` withdraws its "
                "certificate, and those of the other users, and writes new ones"
            )
        with self._locked_record() as record:
            board = self.board(name)
            withdrawn = withdraw(record, name, board, self.board_folder(name) / "tls.crt")
            if board.revoked is not None and withdrawn == record:
                raise FederationError(f"{name} was already revoked at {board.revoked:%Y-%m-%d %H:%M} UTC")
            revoked = board.model_copy(update={"revoked": board.revoked or _now()})
            self._write_files(withdrawn.model_copy(update={"boards": {**record.boards, name: revoked}}))
        return self.reload()

    def reload(self, *, restart: bool = False) -> str:
        """Make the broker use its new files.

        Args:
            restart: restart it in any case: a reload suffices for the ACL and the revocation list only.

        Returns:
            What was done, or what the user must do.

        Raises:
            FederationError: the broker cannot be made to use them.
        """
        return reload_broker(self.broker_folder, self.record, restart=restart)

    def renew(self, hosts: Sequence[str] = (), days: int = DAYS, reload: str | None = None) -> None:
        """Renew the certificates of the broker and the workstation's users; then call ``reload(restart=True)``.

        The users' old certificates are withdrawn. The broker's own is not: no client reads the revocation list.

        Args:
            hosts: new names and addresses of the broker; empty keeps the old ones.
            days: validity of the certificates.
            reload: new command that makes the broker use its new files; None keeps the old one.

        Raises:
            FederationError: a host is not a name or an address.
        """
        with self._locked_record() as before:
            for host in hosts:
                check_host(host)
            record = withdraw_users(before, self.folder)
            if record != before:  # first: if this is interrupted, no certificate stays valid that is not recorded
                self._write_files(record)
            record = record.model_copy(update={"hosts": tuple(hosts)}) if hosts else record
            record = record if reload is None else record.model_copy(update={"reload": reload})
            authority, until = self._authority(), _expiry_after(days)
            names = list(dict.fromkeys((*record.hosts, *LOCAL, broker_name(record.name))))
            self._write_identity(self.broker_folder, issue_certificate(authority, BROKER, until, names), "broker")
            users = {user: issue_certificate(authority, user, until) for user in RESERVED}
            for user, identity in users.items():
                self._write_identity(self.folder / user, identity, "tls")
            self.write_broker_config()
            issued = {user: UserRecord(serial=each.serial, until=each.until) for user, each in users.items()}
            self._write_files(record.model_copy(update={"users": issued}))

    def write_broker_config(self) -> None:
        """Write two configurations of Mosquitto: for this folder at its current place, and for a system-wide broker."""
        port = self.record.port
        write_durably(self.broker_folder / CONFIG, local_config(self.broker_folder, port))
        write_durably(self.broker_folder / "mosquitto-tls.conf", system_config(port))

    def _authority(self) -> Identity:
        folder = self.folder / AUTHORITY
        try:
            texts = [(folder / f"ca.{kind}").read_text() for kind in ("crt", "key")]
        except OSError as error:
            raise FederationError(
                f"the authority of {self.folder} cannot be read: {error}; restore it from a backup"
            ) from None
        return load_identity(texts[0], texts[1], str(folder))

    @contextlib.contextmanager
    def _locked_record(self) -> Iterator[FederationRecord]:
        """Yield the record under a lock, so that only one command changes it at a time.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        _ = self.record  # raises before the lock creates a missing folder
        with report_disk_errors(self.folder), lock_folder(self.folder):
            yield self.record

    def _write_files(self, record: FederationRecord) -> None:
        """Write all files that follow from the record, and the record itself last."""
        boards = [name for name, board in record.boards.items() if board.revoked is None]
        serials = {int(entry.serial, 16): entry.at for entry in record.withdrawn}
        revoked = signed_list(self._authority(), serials, _now())
        behind = {site: agents_behind(record, site) for site in record.sites}
        write_durably(self.broker_folder / "revoked.crl", revoked)
        write_private(self.broker_folder / "acl", make_acl(record.name, boards, behind))
        for site in behind:
            write_site(self.site_folder(site), record, site, revoked)
        write_durably(self.folder / "inventory.yml", inventory(record))
        write_record(self.folder, record)

    def _write_bundle(self, folder: Path, identity: Identity, config: AgentConfig) -> None:
        self._write_identity(folder, identity, "tls")
        values = config.model_dump(mode="json", exclude_defaults=True, by_alias=True)
        write_durably(folder / "agent.yaml", "# Written by fedquilt provision.\n" + dump_yaml(values))

    def _write_identity(self, folder: Path, identity: Identity, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(folder / "ca.crt", (self.folder / AUTHORITY / "ca.crt").read_text())
        write_private(folder / f"{name}.key", identity.key_pem)
        write_durably(folder / f"{name}.crt", identity.certificate_pem)


def make_federation(folder: Path, name: str, hosts: Sequence[str], port: int = 8883, reload: str = "") -> Federation:
    """Create a federation in ``folder``.

    Args:
        folder: the new folder, or an empty one.
        name: name of the federation; a level of its topics.
        hosts: names and addresses of the broker; boards use the first one.
        port: the broker's port.
        reload: command that makes the broker use its new files.

    Raises:
        FederationError: the folder holds a federation or other files, or the name or a host cannot be used.
    """
    check_level(name, "federation")
    if len(name) > LONGEST_NAME:
        raise FederationError(
            f"federation {name!r}: has {len(name)} characters; a certificate has room for {LONGEST_NAME} at most"
        )
    for host in hosts:
        check_host(host)
    federation, record = Federation(folder), FederationRecord(name=name, hosts=tuple(hosts), port=port, reload=reload)
    check_vacant(folder)  # before the lock leaves its file there
    with report_disk_errors(folder), lock_folder(folder):
        check_vacant(folder)
        folder.chmod(0o700)
        authority = make_authority(name, _now())
        hide_from_git(folder)
        (folder / AUTHORITY).mkdir(exist_ok=True, mode=0o700)
        write_private(folder / AUTHORITY / "ca.key", authority.key_pem)
        write_durably(folder / AUTHORITY / "ca.crt", authority.certificate_pem)
        write_record(folder, record)
    federation.renew()
    return federation


def _expiry_after(days: int) -> datetime:
    return _now() + timedelta(days=days)


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(microsecond=0)
