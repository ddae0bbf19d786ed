"""What a scenario leaves behind: read once, as one record, for the judge."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.soak.federation import Federation

VARYING: Final = re.compile(
    r"seconds$|^bytes_|^label_bytes|^joules|^(gpu_)?memory_peak$|^(late|rejected|duplicates|model_bytes)$"
)
"""Columns of a round that may differ between two runs with the same model."""
UNFINISHED: Final = re.compile(r"\.new$|\.tmp$|/partial/|/replies/|/drafts/(?!spare$)")
"""Files that exist only while something is written. A board that is killed in the last round leaves its spare file."""

REFUSED: Final = 6
FINISHED: Final = "holds a finished run"
_MARGIN: Final = " |+"
"""What precedes a line of a traceback, which may be that of a group."""

Reply = tuple[int, int, int, float, tuple[tuple[str, float], ...]]
"""Round, exchange, client, weight, and the metrics that do not depend on time."""


@dataclass(frozen=True)
class Evidence:
    """What a scenario leaves behind.

    Attributes:
        codes: exit code of each start of the command, in order; None for one that did not end.
        message: standard error of the last start.
        sha256: of the final model; None without one.
        rows: the results of each round, without columns that may vary.
        replies: the replies in the journal, sorted.
        runs: the run's identifiers, one if nothing started over.
        tracebacks: the error of each traceback in a file, with the file's name.
        unfinished: files that should have been removed.
        locked: lock files that are still held.
        survivors: command lines of processes that are left.
    """

    codes: tuple[int | None, ...]
    message: str
    seconds: float
    sha256: str | None = None
    rows: tuple[dict[str, Any], ...] = ()
    replies: tuple[Reply, ...] = ()
    runs: frozenset[str] = frozenset()
    tracebacks: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    survivors: tuple[str, ...] = ()

    @property
    def is_finished(self) -> bool:
        """Whether the run is finished. The command refuses a finished run if a fault had stopped it at its very end."""
        return self.codes[-1] == 0 or (self.codes[-1] == REFUSED and FINISHED in self.message and len(self.codes) > 1)


def collect(federation: Federation, codes: tuple[int | None, ...], seconds: float, runs: frozenset[str]) -> Evidence:
    """Read what is left. The processes of a command that has ended get some seconds to follow it."""
    over = codes[-1] is not None
    left = federation.wait_gone() if over else []
    survivors = tuple(sorted(filter(None, map(_command_line, left))))
    run = federation.run
    return Evidence(
        codes=codes,
        message=federation.message(),
        seconds=seconds,
        sha256=_sha256(run / "global.safetensors"),
        rows=tuple(_rows(run / "result.json")),
        replies=tuple(sorted(_replies(federation))),
        runs=runs | {name for name in [federation.run_id()] if name},
        tracebacks=tuple(_tracebacks(federation.folder)),
        unfinished=tuple(_unfinished(run)) if over else (),
        locked=tuple(str(path.relative_to(run)) for path in sorted(run.rglob("*.lock")) if over and _is_held(path)),
        survivors=survivors,
    )


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    try:
        rounds = json.loads(path.read_text())["rounds"]
    except (OSError, ValueError, KeyError):
        return
    for row in rounds:
        yield {key: value for key, value in row.items() if not VARYING.search(key)}


def _replies(federation: Federation) -> list[Reply]:
    """Return the replies that count: those of a round that was restarted are sent and journaled again."""
    found: list[Reply] = []
    wanted = "kind IN ('Replied', 'RoundRestarted')"
    for kind, body in federation.query(f"SELECT kind, body FROM events WHERE {wanted} ORDER BY seq"):  # noqa: S608
        event = json.loads(str(body))
        if kind == "RoundRestarted":
            found = [reply for reply in found if reply[0] != event["round"]]
            continue
        metrics = tuple(sorted((k, v) for k, v in event["metrics"].items() if not VARYING.search(k)))
        found.append((event["round"], event["exchange"], event["client"], event["weight"], metrics))
    return found


def _tracebacks(folder: Path) -> Iterator[str]:
    for path in sorted([*folder.glob("command-*"), *(folder / "run" / "logs").glob("*.log")]):
        for error in find_errors(path.read_text(errors="replace")):
            yield f"{path.relative_to(folder)}: {error[:300]}"


def find_errors(log: str) -> Iterator[str]:
    """Yield the line with the error of each traceback in a log: the first one after it that is not indented."""
    lines = iter(log.splitlines())
    for line in lines:
        if "Traceback" in line:
            indent = _indent(line)
            yield next((each for each in lines if _indent(each) <= indent), line).strip(_MARGIN)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(_MARGIN))


def _unfinished(run: Path) -> Iterator[str]:
    for path in sorted(run.rglob("*")):
        name = f"/{path.relative_to(run)}"
        if path.is_file() and UNFINISHED.search(name):
            yield name[1:]


def _is_held(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _command_line(pid: int) -> str:
    try:
        return " ".join(Path(f"/proc/{pid}/cmdline").read_text().split("\0"))[:200]
    except OSError:
        return ""
