"""``fedquilt privacy``: what training has spent of the privacy of the samples on this board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fedquilt_client.kept_memories import Damaged
from fedquilt_client.memory_cli import IdOption, StateOption, find_state
from fedquilt_client.owner_lists import JsonOption, add_texts, exit_with, make_table, print_json
from fedquilt_client.store import LEDGERS
from fedquilt_common.cli import add_parts
from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.privacy.accountant import epsilon_of
from fedquilt_common.privacy.ledger import LedgerEntry, ledger_file, read_ledger
from fedquilt_common.privacy.samples_spent import list_ledgers, relate_ledgers
from fedquilt_common.wide_tables import print_whole

SHOWN: Final = 12
"""Characters of a ledger's name that a table shows."""

app = CommandApp()
privacy_app = CommandApp(
    help="See what training has spent of the privacy of the samples on this board, and audit a run on the workstation.",
)
app.add_typer(privacy_app, name="privacy")


@app.callback()
def group() -> None:
    """Keep ``privacy`` a sub-command."""


@privacy_app.command()
def show(
    state: StateOption = None,
    id: IdOption = None,
    json_: JsonOption = False,
) -> None:
    """List the samples that were trained on with differential privacy, and what that has spent in all runs."""
    damages: list[RunFolderError] = []
    folder = find_state(state, id) / LEDGERS
    ledgers = _read_ledgers(folder, damages.append)
    related = _relate(folder, damages.append)
    rows = [_describe(name, ledgers, related) for name, entries in ledgers.items() if entries]
    if json_:
        print_json(rows)
    else:
        _print(rows)
    exit_with(damages)


def _read_ledgers(folder: Path, damaged: Damaged) -> dict[str, list[LedgerEntry]]:
    """Return the entries of each intact ledger, by its name."""
    found: dict[str, list[LedgerEntry]] = {}
    for name in list_ledgers(folder):
        try:
            with report_disk_errors(folder):
                found[name] = read_ledger(ledger_file(folder, name))
        except RunFolderError as error:
            damaged(error)
    return found


def _relate(folder: Path, damaged: Damaged) -> Mapping[str, list[str]] | None:
    """Return for each ledger the others that it counts; None if the samples of one are unknown."""
    try:
        with report_disk_errors(folder):
            every = relate_ledgers(folder)
            return {one: [o for o in others if ledger_file(folder, o).exists()] for one, others in every.items()}
    except RunFolderError as error:
        damaged(error)
        return None


def _describe(
    name: str, ledgers: Mapping[str, list[LedgerEntry]], related: Mapping[str, list[str]] | None
) -> dict[str, Any]:
    entries = ledgers[name]
    others = None if related is None else related[name]
    known = others is not None and all(other in ledgers for other in others)  # a damaged one is unknown
    return {
        "samples": name,
        "clients": sorted({entry.client for entry in entries}),
        "runs": list(dict.fromkeys(entry.run for entry in entries)),
        "trainings": len(entries),
        "steps": sum(entry.charge.steps for entry in entries),
        "epsilon": _total(entries, [ledgers[other] for other in others or ()]) if known else None,
        "delta": entries[-1].delta,
        "related": others,
    }


def _total(entries: list[LedgerEntry], others: Sequence[list[LedgerEntry]]) -> float:
    """Return what a ledger and the related ones have spent together.

    Alone, a ledger names it. A total is computed with the accountant ``rdp``, whose bound holds for all
    of them.
    """
    last = entries[-1]
    if not others:
        return last.epsilon
    charges = {entry.training: entry.charge for ledger in (entries, *others) for entry in ledger}
    return epsilon_of(list(charges.values()), last.delta, "rdp")


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        print("No training with differential privacy has used samples of this board.")
        return
    numbers = ("trainings", "steps", "epsilon", "delta")
    table = make_table(("samples", "clients", "runs", *numbers, "related"), numbers)
    for row in rows:
        epsilon = "unknown" if row["epsilon"] is None else f"{row['epsilon']:.4f}"
        add_texts(
            table, row["samples"][:SHOWN], ", ".join(map(str, row["clients"])), ", ".join(row["runs"]),
            str(row["trainings"]), str(row["steps"]), epsilon, f"{row['delta']:g}",
            ", ".join(one[:SHOWN] for one in row["related"] or ()),
        )  # fmt: skip
    print_whole(table)
    if any(row["related"] for row in rows):
        print(
            "Related samples have some in common, or only one set is the board's own (own/): an epsilon counts what "
            "the related ones have spent, too."
        )


add_parts("privacy", privacy_app)


def run(arguments: list[str]) -> None:
    """Entry of ``fedquilt privacy``."""
    app(arguments, prog_name="fedquilt")
