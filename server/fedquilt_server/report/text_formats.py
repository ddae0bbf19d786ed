"""Reports as Markdown and LaTeX, and tables as CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from fedquilt_server.report.contents import ONLY_CSV, ReportContents
from fedquilt_server.report.mean_deviation import MeanDeviation
from fedquilt_server.report.summary import describe_runs
from fedquilt_server.report.table import PLUS_MINUS, Cell, ReportTable, flat_columns, flat_rows, headings, texts

_TEX: Final = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "\N{EN DASH}": "--", "\N{MULTIPLICATION SIGN}": r"$\times$", PLUS_MINUS: r"$\pm$",
}  # fmt: skip


def to_markdown(contents: ReportContents) -> str:
    """Return a report as Markdown with tables, as git hosts show it."""
    lines = [f"# {_md(contents.title)}", "", *(f"{_md(line)}" for line in describe_runs(contents))]
    if contents.notes:
        lines += ["", "Notes:", "", *(f"- {_md(note)}" for note in contents.notes)]
    for table in _readable(contents):
        lines += ["", f"## {_md(table.title)}", "", _md(table.meaning), "", *_md_table(table), *_md_meanings(table)]
    if contents.common:
        lines += ["", "## Settings in common", "", *(f"- `{key}`: {_md(v)}" for key, v in contents.common.items())]
    return "\n".join(lines) + "\n"


def _readable(contents: ReportContents) -> Iterator[ReportTable]:
    return (table for name, table in contents.tables.items() if name not in ONLY_CSV)


def _md_table(table: ReportTable) -> Iterator[str]:
    yield _md_row(headings(table))
    yield "|" + "|".join("---:" if column.is_number else "---" for column in table.columns) + "|"
    yield from map(_md_row, texts(table))


def _md_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(_md, cells)) + " |"


def _md_meanings(table: ReportTable) -> Iterator[str]:
    meanings = [f"{column.heading}: {column.meaning}" for column in table.columns if column.meaning]
    if meanings:
        yield ""
        yield _md("; ".join(meanings) + ".")


def _md(text: Any) -> str:
    """Escape a text for one line of Markdown: no markup, no HTML, no end of a table's cell."""
    one_line = re.sub(r"\s+", " ", str(text))
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", one_line)


def to_latex(contents: ReportContents) -> str:
    """Return the tables of a report as LaTeX for ``\\input``; they need the package booktabs."""
    head = ["% Requires \\usepackage{booktabs}.", *(f"% {_comment(line)}" for line in describe_runs(contents))]
    notes = [f"% Note: {_comment(note)}" for note in contents.notes]
    return "\n".join([*head, *notes, *(line for table in _readable(contents) for line in _tex_table(table))]) + "\n"


def _tex_table(table: ReportTable) -> Iterator[str]:
    form = "".join("r" if column.is_number else "l" for column in table.columns)
    yield from ("", r"\begin{table}", r"\centering", rf"\caption{{{_tex(table.title)}. {_tex(table.meaning)}}}")
    yield from (rf"\label{{tab:{table.name}}}", rf"\begin{{tabular}}{{{form}}}", r"\toprule")
    yield _tex_row(headings(table))
    yield r"\midrule"
    yield from map(_tex_row, texts(table))
    yield from (r"\bottomrule", r"\end{tabular}", r"\end{table}")


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_tex, cells)) + r" \\"


def _tex(text: str) -> str:
    """Escape a text for LaTeX."""
    return "".join(_TEX.get(letter, letter) for letter in re.sub(r"\s+", " ", text))


def _comment(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def to_csv(table: ReportTable) -> str:
    """Return a table as CSV: numbers in base units with every digit; a mean has columns for deviation and n."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(flat_columns(table))
    writer.writerows(flat_rows(table))
    return text.getvalue()


def to_json(contents: ReportContents) -> dict[str, Any]:
    """Return a report as plain data for ``--json``: numbers in base units, null for what is unknown."""
    return {
        "title": contents.title,
        "score": contents.score,
        "target": contents.target,
        "groups": [
            {"name": group.name, "seeds": group.seeds, "folders": [str(run.folder) for run in group.runs],
             "settings": dict(group.settings)}
            for group in contents.groups
        ],
        "notes": list(contents.notes),
        "tables": {name: _json_table(table) for name, table in contents.tables.items()},
    }  # fmt: skip


def _json_table(table: ReportTable) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, map(_json_cell, row), strict=True)) for row in table.rows]


def _json_cell(cell: Cell) -> Any:
    if isinstance(cell, MeanDeviation):
        return {"mean": cell.mean, "deviation": cell.deviation, "n": cell.n}
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell
