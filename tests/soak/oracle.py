"""The judge of a scenario: compares what it left with what the undisturbed run leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.soak.evidence import Evidence

DAMAGED = frozenset({6, 7})
"""Exit codes if a folder cannot be repaired: of its process, and of a run in which too many clients fail for this."""


@dataclass(frozen=True)
class Outcome:
    """A scenario's end.

    Attributes:
        damaged: files that the scenario has damaged; the run may then end with the name of one of them.
        found: what the faults themselves have found wrong.
        same_repliers: whether the policy requires that all clients reply. Otherwise a deadline may close an exchange
            without one, and the model is another one.
    """

    evidence: Evidence
    damaged: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    same_repliers: bool = True


def judge(outcome: Outcome, undisturbed: Evidence) -> list[str]:
    """Return what is wrong, in sentences; an empty list if the promise is kept."""
    found = outcome.evidence
    problems = [*outcome.found, *_hygiene(found)]
    if found.is_finished:
        return [*problems, *_counts(found), *_result(outcome, undisturbed)]
    if found.codes[-1] in DAMAGED and outcome.damaged:
        return [*problems, *_names_the_damage(outcome)]
    return [*problems, _end(found)]


def _end(found: Evidence) -> str:
    code = found.codes[-1]
    last = (found.message.strip().splitlines() or [""])[-1][:500]
    if code is None:
        return f"it hangs: no end after {found.seconds:.0f} s"
    return f"it ended with exit code {code}: {last}"


def _hygiene(found: Evidence) -> Iterator[str]:
    for where in found.tracebacks:
        yield f"a traceback in {where}"
    for name in found.unfinished if found.is_finished else ():
        yield f"an unfinished file is left: {name}"
    for name in found.locked:
        yield f"a lock is still held: {name}"
    for line in found.survivors:
        yield f"a process is left: {line}"


def _names_the_damage(outcome: Outcome) -> Iterator[str]:
    # SQLite keeps the latest part of the journal in a file of its own; the message names the journal.
    names = [path.rsplit("/", 1)[-1].removesuffix("-wal").removesuffix("-shm") for path in outcome.damaged]
    code = outcome.evidence.codes[-1]
    if not any(name in outcome.evidence.message for name in names):
        yield f"exit code {code} without the name of a damaged file ({', '.join(outcome.damaged)})"


def _counts(found: Evidence) -> Iterator[str]:
    if len(found.runs) > 1:
        yield f"the run started over: {', '.join(sorted(found.runs))}"
    times = Counter(reply[:3] for reply in found.replies)
    for (round, exchange, client), count in sorted(times.items()):
        if count > 1:
            yield f"client {client} counts {count} times in exchange {round}.{exchange}"
    accepted = Counter(reply[0] for reply in found.replies)
    for row in found.rows:
        if row["replies"] != accepted[row["round"]]:
            yield f"round {row['round']}: {row['replies']} replies in the results, {accepted[row['round']]} journaled"


def _result(outcome: Outcome, undisturbed: Evidence) -> Iterator[str]:
    found = outcome.evidence
    if not outcome.same_repliers and _repliers(found) != _repliers(undisturbed):
        return
    if found.sha256 != undisturbed.sha256:
        yield f"the model is {found.sha256}, undisturbed {undisturbed.sha256}"
    if _repliers(found) != _repliers(undisturbed):
        yield f"other replies are journaled: {sorted(_repliers(found) ^ _repliers(undisturbed))}"
    elif found.replies != undisturbed.replies:
        yield "the weights or metrics in the journal differ from the undisturbed ones"
    if found.rows != undisturbed.rows:
        yield f"the results differ: {_difference(found.rows, undisturbed.rows)}"


def _repliers(found: Evidence) -> set[tuple[int, int, int]]:
    return {reply[:3] for reply in found.replies}


def _difference(rows: tuple[dict[str, object], ...], others: tuple[dict[str, object], ...]) -> str:
    if len(rows) != len(others):
        return f"{len(rows)} rounds, not {len(others)}"
    differing = [
        f"round {row['round']} {key}: {row.get(key)!r}, not {other.get(key)!r}"
        for row, other in zip(rows, others, strict=True)
        for key in sorted({*row, *other})
        if row.get(key) != other.get(key)
    ]
    return "; ".join(differing)[:500]
