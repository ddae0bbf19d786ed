"""What is known of a federation's identities: ``federation.yaml``, which every other file of its folder follows."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedquilt_common.errors import ExperimentError, FederationError
from fedquilt_common.files.durable import write_durably
from fedquilt_common.files.yaml_text import dump_yaml, load_yaml, read_text
from fedquilt_common.wire.messages import Name

RECORD: Final = "federation.yaml"
_HEAD: Final = "# Written by fedquilt; `fedquilt provision` and `revoke` change it.\n"


class Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Board(Entry):
    """A board with an identity. ``serial``: of its certificate, in hex. ``host``: where Ansible finds it."""

    kind: Name
    clients: str
    host: str
    user: str = ""
    serial: str
    until: datetime
    revoked: datetime | None = None


class Withdrawn(Entry):
    """A certificate that no longer counts."""

    serial: str
    board: str
    at: datetime


class Record(Entry):
    """``hosts``: names and addresses of the broker, the first of them for the boards. ``reload``: a command that makes
    the broker read its files again, where it does not run from this folder."""

    name: Name
    hosts: tuple[str, ...] = Field(min_length=1)
    port: int = Field(8883, ge=1, le=65535)
    reload: str = ""
    boards: dict[Name, Board] = Field(default_factory=dict)
    withdrawn: tuple[Withdrawn, ...] = ()

    @property
    def url(self) -> str:
        """The broker, as boards reach it."""
        host = self.hosts[0]
        return f"mqtts://{f'[{host}]' if ':' in host else host}:{self.port}"


def read_record(folder: Path) -> Record:
    """Raises FederationError where there is none, or none that can be understood."""
    path = folder / RECORD
    if not path.exists():
        raise FederationError(
            f"{folder} holds no federation: make one with `fedquilt federation init`, or name another --folder"
        )
    try:
        return Record.model_validate(load_yaml(read_text(path), str(path)))
    except ExperimentError as error:
        raise FederationError(str(error)) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise FederationError(f"{path}: {place}: {first['msg']}; repair it, or restore it from a backup") from None


def write_record(folder: Path, record: Record) -> None:
    """Replace what is there, whole."""
    said: dict[str, Any] = record.model_dump(mode="json", exclude_defaults=True)
    write_durably(folder / RECORD, _HEAD + dump_yaml(said))
