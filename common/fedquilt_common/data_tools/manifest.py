"""``SOURCES.json``: which files of a data set's folder were downloaded from where, with their digests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.files.durable import write_durably

NAME: Final = "SOURCES.json"


@dataclass(frozen=True)
class DownloadRecord:
    """A file that was downloaded.

    Attributes:
        url: where it came from; "" if it was there before, and was only unpacked.
        sha256: its digest, in hex.
        size: its bytes.
        unpacked: the folder or file that it was unpacked to; "" if it was not.
    """

    url: str
    sha256: str
    size: int
    unpacked: str = ""


def read_records(folder: Path) -> Mapping[str, DownloadRecord]:
    """Return the downloads into a folder by the name of the file; none without a manifest.

    Raises:
        DataUnavailableError: the manifest is damaged.
    """
    path = folder / NAME
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: DownloadRecord(**fields) for name, fields in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataUnavailableError(
            f"{path}: is damaged ({error}); delete it, then run `fedquilt data get` again"
        ) from error


def add_record(folder: Path, name: str, record: DownloadRecord) -> None:
    """Add a download to a folder's manifest."""
    records = {**read_records(folder), name: record}
    content = {"files": {key: asdict(records[key]) for key in sorted(records)}}
    write_durably(folder / NAME, json.dumps(content, indent=2) + "\n")
