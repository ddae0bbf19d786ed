"""A federation's folder: authority, broker files, a bundle for each board, an Ansible inventory.

federation.yaml        what is known; everything below follows it
inventory.yml          for Ansible
authority/             ca.crt, and ca.key: keep a copy elsewhere, and nobody else's eyes off it
broker/                what Mosquitto reads
coordinator/, watch/   ca.crt, tls.crt, tls.key of the workstation's own users
boards/BOARD/          the same of a board, and its agent.yaml
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from fedquilt_common.errors import ExperimentError, FederationError, ProtocolError
from fedquilt_common.experiment.agent_config import AgentConfig, parse_clients
from fedquilt_common.files.durable import new_private, sync, write_durably
from fedquilt_common.files.locking import lock_folder
from fedquilt_common.files.yaml_text import dump_yaml, load_yaml, read_text
from fedquilt_common.wire.topics import RESERVED, check_name
from fedquilt_server.provisioning.authority import Identity, expiry, issue, load_identity, make_authority
from fedquilt_server.provisioning.authority import revocation_list as signed_list
from fedquilt_server.provisioning.broker_files import CONFIG, acl, installed_config, own_config, reload_broker
from fedquilt_server.provisioning.inventory import inventory
from fedquilt_server.provisioning.kinds import kind_of
from fedquilt_server.provisioning.names import GROUPS, check_host, check_user, hostname_of
from fedquilt_server.provisioning.record import RECORD, Board, Record, Withdrawn, read_record, write_record

DAYS: Final = 5 * 365
"""How long a certificate is good unless told otherwise."""
AUTHORITY, BROKER, BOARDS = "authority", "broker", "boards"
LONGEST_NAME: Final = 48
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
"""The broker is known as these, too: the coordinator runs beside it."""
_OURS: Final = frozenset({"broker", "id", "clients", "federation", "kind", "ca", "cert", "key"})
"""Keys of an agent's configuration that follow from the record."""


@dataclass(frozen=True)
class Federation:
    """The folder of one, which must have been made."""

    folder: Path

    @property
    def record(self) -> Record:
        """As it is now. Raises FederationError."""
        return read_record(self.folder)

    @property
    def broker_folder(self) -> Path:
        return self.folder.absolute() / BROKER

    def board_folder(self, board: str) -> Path:
        return self.folder / BOARDS / board

    def board(self, name: str) -> Board:
        """Raises FederationError for one that has never been provisioned."""
        boards = self.record.boards
        if name not in boards:
            known = ", ".join(sorted(boards)) or "none yet"
            raise FederationError(f"there is no board {name!r} in {self.folder} (there are: {known})")
        return boards[name]

    def provision(
        self, name: str, kind: str = "", clients: str = "", host: str = "", user: str = "", days: int = DAYS,
        renew: bool = False, **settings: Any,
    ) -> Board:  # fmt: skip
        """Give a board an identity, its configuration and a place in the inventory.

        ``kind`` may be left out for a board that has one. ``clients`` that are empty are the next number that no other
        board has, ``settings`` further keys of its
        ``agent.yaml``, whose other keys stay as they are where there is one. With ``renew`` a board that has an
        identity gets a new one, and the old one is withdrawn.
        Raises FederationError, ExperimentError.
        """
        with self._changing() as record:
            before = record.boards.get(name)
            _check(record, name, renew, host, user)
            kind = kind or (before.kind if before else "")
            hosted = _hosted(record, name, clients or (before.clients if before else ""))
            until = _until(days)
            config = _config(record, name, kind, hosted, {**self._settings(name, before), **settings})
            made = issue(self._authority(), name, until)
            board = Board(
                kind=kind, clients=hosted, host=host or (before.host if before else f"{hostname_of(name)}.local"),
                user=user or (before.user if before else kind_of(kind).user),
                serial=f"{made.certificate.serial_number:x}", until=expiry(made.certificate),
            )  # fmt: skip
            self._write_bundle(self.board_folder(name), made, config)
            gone = [_withdrawn(before, name)] if before is not None and before.revoked is None else []
            self._settle(
                record.model_copy(update={
                    "boards": {**record.boards, name: board}, "withdrawn": (*record.withdrawn, *gone),
                })
            )  # fmt: skip
        return board

    def revoke(self, name: str) -> str:
        """Withdraw a board's certificate and everything it may do; says what the broker made of it.

        Raises FederationError for a board that there is not, or that is revoked already.
        """
        with self._changing() as record:
            board = self.board(name)
            if board.revoked is not None:
                raise FederationError(f"{name} is revoked since {board.revoked:%Y-%m-%d %H:%M} UTC")
            gone = board.model_copy(update={"revoked": _now()})
            self._settle(
                record.model_copy(update={
                    "boards": {**record.boards, name: gone}, "withdrawn": (*record.withdrawn, _withdrawn(board, name)),
                })
            )  # fmt: skip
        return self.reload()

    def reload(self) -> str:
        """Make the broker read ACL and revocations again."""
        return reload_broker(self.broker_folder, self.record)

    def renew(self, hosts: Sequence[str] = (), days: int = DAYS, reload: str | None = None) -> None:
        """New certificates for the broker, the coordinator and `watch`; the broker is known as ``hosts`` from then on,
        if there are any, and ``reload`` the command that makes it read its files. It must be started anew."""
        with self._changing() as record:
            for host in hosts:
                check_host(host)
            record = record.model_copy(update={"hosts": tuple(hosts)}) if hosts else record
            record = record if reload is None else record.model_copy(update={"reload": reload})
            authority, until = self._authority(), _until(days)
            names = list(dict.fromkeys((*record.hosts, *LOCAL)))
            self._write_identity(self.broker_folder, issue(authority, record.hosts[0], until, names), "broker")
            for user in RESERVED:
                self._write_identity(self.folder / user, issue(authority, user, until), "tls")
            self.write_broker_config()
            self._settle(record)

    def write_broker_config(self) -> None:
        """Mosquitto's, for this folder where it is now and for the system's own."""
        port = self.record.port
        write_durably(self.broker_folder / CONFIG, own_config(self.broker_folder, port))
        write_durably(self.broker_folder / "mosquitto-tls.conf", installed_config(port))

    def _settings(self, name: str, before: Board | None) -> dict[str, Any]:
        """What a board's configuration says beside who and where it is."""
        path = self.board_folder(name) / "agent.yaml"
        if before is None or not path.exists():
            return {}
        known = load_yaml(read_text(path), str(path))
        return {key: value for key, value in known.items() if key not in _OURS} if isinstance(known, dict) else {}

    def _authority(self) -> Identity:
        folder = self.folder / AUTHORITY
        try:
            texts = [(folder / f"ca.{kind}").read_text() for kind in ("crt", "key")]
        except OSError as error:
            raise FederationError(f"the authority of {self.folder} cannot be read: {error}; restore it") from None
        return load_identity(texts[0], texts[1], str(folder))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Record]:
        """One command at a time."""
        _ = self.record  # before the lock makes a folder where there is none
        with lock_folder(self.folder):
            yield self.record

    def _settle(self, record: Record) -> None:
        """All files that follow from the record, and last the record itself."""
        revoked = [name for name, board in record.boards.items() if board.revoked is not None]
        serials = {int(one.serial, 16): one.at for one in record.withdrawn}
        write_durably(self.broker_folder / "revoked.crl", signed_list(self._authority(), serials, _now()))
        _write_private(self.broker_folder / "acl", acl(record.name, revoked))
        write_durably(self.folder / "inventory.yml", inventory(record))
        write_record(self.folder, record)

    def _write_bundle(self, folder: Path, identity: Identity, config: AgentConfig) -> None:
        self._write_identity(folder, identity, "tls")
        said = config.model_dump(mode="json", exclude_defaults=True, by_alias=True)
        write_durably(folder / "agent.yaml", "# Written by fedquilt provision.\n" + dump_yaml(said))

    def _write_identity(self, folder: Path, identity: Identity, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_durably(folder / "ca.crt", (self.folder / AUTHORITY / "ca.crt").read_text())
        _write_private(folder / f"{name}.key", identity.key_pem)
        write_durably(folder / f"{name}.crt", identity.certificate_pem)


def make_federation(folder: Path, name: str, hosts: Sequence[str], port: int = 8883, reload: str = "") -> Federation:
    """A new federation in ``folder``. ``hosts``: what its broker is called, the first of them for the boards.

    Raises FederationError where there is one already, or for a name that no topic can have.
    """
    _check_name(name, "federation")
    if len(name) > LONGEST_NAME:
        raise FederationError(
            f"federation {name!r}: has {len(name)} letters, {LONGEST_NAME} at most fit its certificate"
        )
    for host in hosts:
        check_host(host)
    federation, record = Federation(folder), Record(name=name, hosts=tuple(hosts), port=port, reload=reload)
    with lock_folder(folder):
        if (folder / RECORD).exists():
            raise FederationError(
                f"{folder} holds the federation {read_record(folder).name!r}: choose another --folder"
            )
        folder.chmod(0o700)
        authority = make_authority(name, _now())
        (folder / ".gitignore").write_text("*\n")  # it may lie in somebody's repository
        (folder / AUTHORITY).mkdir(exist_ok=True, mode=0o700)
        _write_private(folder / AUTHORITY / "ca.key", authority.key_pem)
        write_durably(folder / AUTHORITY / "ca.crt", authority.certificate_pem)
        write_record(folder, record)
    federation.renew()
    return federation


def _write_private(path: Path, text: str) -> None:
    """For its owner's eyes only, from its first moment on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = new_private(path.with_name(f".{path.name}.new"))
    fresh.write_text(text, encoding="utf-8")
    sync(fresh)
    fresh.replace(path)
    sync(path.parent)


def _check_name(name: str, what: str) -> None:
    try:
        check_name(name, what)
    except ProtocolError as error:
        raise FederationError(str(error)) from None


def _check(record: Record, name: str, renew: bool, host: str, user: str) -> None:
    _check_name(name, "board")
    if host:
        check_host(host, "--host")
    check_user(user)
    if renew and name not in record.boards:
        raise FederationError(f"there is no board {name!r} whose identity could be renewed; leave --renew out")
    if name.lower() in (*RESERVED, *GROUPS):
        raise FederationError(f"{name!r} has another meaning for the broker or for Ansible: choose another name")
    alike = [other for other in record.boards if other != name and hostname_of(other) == hostname_of(name)]
    if alike or not hostname_of(name):
        raise FederationError(
            f"{name!r}: its host name {hostname_of(name)!r} is that of {alike or 'nobody'}: choose another"
        )
    before = record.boards.get(name)
    if before is not None and before.revoked is None and not renew:
        raise FederationError(f"{name} has an identity: --renew gives it a new one, and withdraws the old")


def _hosted(record: Record, name: str, clients: str) -> str:
    """The clients of a board, none of which another one has."""
    taken = {
        client: other
        for other, board in record.boards.items()
        if other != name and board.revoked is None
        for client in parse_clients(board.clients)
    }
    if not clients:
        return str(next(number for number in range(len(taken) + 1) if number not in taken))
    for client in parse_clients(clients):
        if client in taken:
            raise FederationError(f"client {client} is that of {taken[client]}: give {name} others with --clients")
    return clients


def _config(record: Record, name: str, kind: str, clients: str, settings: dict[str, Any]) -> AgentConfig:
    values = {
        "broker": record.url, "id": name, "clients": clients, "federation": record.name, "kind": kind,
        "ca": "ca.crt", "cert": "tls.crt", "key": "tls.key", **settings,
    }  # fmt: skip
    try:
        return AgentConfig.model_validate(values)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, e['loc']))}: {e['msg']} (it is {e['input']!r})" for e in error.errors()]
        raise ExperimentError(f"board {name}: " + "; ".join(wrong)) from None


def _withdrawn(board: Board, name: str) -> Withdrawn:
    return Withdrawn(serial=board.serial, board=name, at=_now())


def _until(days: int) -> datetime:
    return _now() + timedelta(days=days)


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(microsecond=0)
