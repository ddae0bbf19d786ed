"""The files of other projects are those that the list names."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import fedquilt_server.web

WEB = Path(fedquilt_server.web.__file__).parent


def test_vendored_files_are_what_the_list_says() -> None:
    vendor = WEB / "static" / "vendor"
    listed = dict(re.findall(r"\| `(\S+)` \| `(\w{64})` \|", (vendor / "VENDORED.md").read_text()))
    found = {p.relative_to(vendor).as_posix(): p for p in vendor.rglob("*") if p.is_file()}
    del found["VENDORED.md"]
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()} == listed
