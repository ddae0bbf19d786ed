"""Text tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fedquilt_common.data_tools.summaries import QUANTILES, PartSummary, SetSummary, TargetGroup, TargetGroups
from fedquilt_common.terminal_text import printable

MOST_COLUMNS: Final = 12
"""Classes up to which each has a column with numbers; more classes are drawn as bars."""
_BARS: Final = " ▁▂▃▄▅▆▇█"
_WIDEST_BARS: Final = 64
_FULL: Final = 30


def plain_text(text: str, style: str = "") -> Text:
    """Return a text without markup and without characters that control a terminal: files and data sets have both."""
    return Text(printable(text), style)


def draw_set(summary: SetSummary) -> Iterator[RenderableType]:
    """Describe a data set: its parts, its classes, and its natural clients in one line."""
    classes = f", {summary.classes} classes" if summary.classes else ""
    yield plain_text(f"{summary.name}: {summary.task}{classes}", style="bold")
    for name, part in summary.parts.items():
        yield Text(f"  {name:<6}{_describe_part(part)}")
    if summary.natural is not None:
        yield Text(f"  natural clients: {describe_sizes(summary.natural)}")
    if summary.note:
        yield plain_text(f"  note: {summary.note}")
    if summary.targets.kind == "classes":
        yield _class_table(summary.targets)
    elif summary.targets.kind == "values":
        yield draw_groups(summary.targets, "part")


def describe_sizes(groups: TargetGroups) -> str:
    """Return how many groups there are, and how many samples they have."""
    sizes = sorted(group.samples for group in groups.groups)
    if not sizes:
        return "none"
    return f"{len(sizes)}, with {sizes[0]:,} to {sizes[-1]:,} samples, median {sizes[len(sizes) // 2]:,}"


def draw_groups(groups: TargetGroups, what: str, width: int | None = None) -> Table:
    """Draw a row for each group: samples, then numbers or bars for classes, or quantiles and bars for values.

    Args:
        groups: of a data set.
        what: heading of the groups' names, such as ``client``.
        width: of the terminal in characters; where the numbers do not fit, classes are bars, the greatest of each
            group at full height. None: unlimited.
    """
    table = _draw_groups(groups, what, as_bars=False)
    if width is not None and groups.kind == "classes" and _measure_width(table) > width:
        return _draw_groups(groups, what, as_bars=True)
    return table


def _measure_width(table: Table) -> int:
    """Return the number of characters that a row takes."""
    return sum(max(map(len, [str(column.header), *map(str, column.cells)])) + 2 for column in table.columns) - 2


def _draw_groups(groups: TargetGroups, what: str, *, as_bars: bool) -> Table:
    table = _plain_table()
    table.add_column(what, justify="right")
    table.add_column("samples", justify="right")
    if keeps := any(group.kept for group in groups.groups):
        table.add_column("test", justify="right")
    draw = {"classes": _add_bars if as_bars else _add_classes, "values": _add_values, "samples": _add_nothing}[
        groups.kind
    ]
    cells = draw(table, groups)
    for group, more in zip(groups.groups, cells, strict=True):
        kept = [f"{group.kept:,}"] if keeps else []
        table.add_row(plain_text(group.name), f"{group.samples:,}", *kept, *more)
    return table


def _add_nothing(table: Table, groups: TargetGroups) -> list[list[str]]:
    return [[] for _ in groups.groups]


def _add_classes(table: Table, groups: TargetGroups) -> list[list[str]]:
    classes = max((len(group.counts) for group in groups.groups), default=0)
    if classes > MOST_COLUMNS:
        return _add_bars(table, groups)
    table.add_column("classes", justify="right")
    for kind in range(classes):
        table.add_column(str(kind), justify="right")
    return [[str(group.classes), *(f"{count:,}" if count else "·" for count in group.counts)]
            for group in groups.groups]  # fmt: skip


def _add_bars(table: Table, groups: TargetGroups) -> list[list[str]]:
    classes = max((len(group.counts) for group in groups.groups), default=0)
    table.add_column("classes", justify="right")
    table.add_column(f"{groups.counted} of the classes 0 to {classes - 1}", no_wrap=True)
    return [[str(group.classes), draw_bars(group.counts, max(group.counts))] for group in groups.groups]


def _add_values(table: Table, groups: TargetGroups) -> list[list[str]]:
    for share in QUANTILES:
        table.add_column(_name_quantile(share), justify="right")
    if groups.edges:
        table.add_column(f"{groups.edges[0]:.4g} to {groups.edges[-1]:.4g}", no_wrap=True)
    return [_value_cells(group) for group in groups.groups]


def _value_cells(group: TargetGroup) -> list[str]:
    if not group.quantiles:
        return []
    return [*(f"{value:.4g}" for value in group.quantiles), draw_bars(group.counts, max(group.counts))]


def _name_quantile(share: float) -> str:
    return {0.0: "min", 0.5: "median", 1.0: "max"}.get(share, f"{share:.0%}")


def draw_bars(counts: Sequence[int], most: int) -> str:
    """Return a letter for each count, as high as its share of ``most``; empty counts are blank, others never.

    More than 64 counts are drawn in groups of neighbours.
    """
    width = -(-len(counts) // _WIDEST_BARS)
    tops = [max(counts[start : start + width]) for start in range(0, len(counts), width)]
    return "".join(_BARS[0 if not top else max(1, round(top / max(1, most) * (len(_BARS) - 1)))] for top in tops)


def _class_table(targets: TargetGroups) -> Table:
    """Draw a row for each class: its samples for training and for testing."""
    table = _plain_table()
    table.add_column("class", justify="right")
    suffix = "" if targets.counted == "samples" else f" {targets.counted}"
    for group in targets.groups:
        table.add_column(f"{group.name}{suffix}", justify="right")
    table.add_column("")
    most = max((max(group.counts) for group in targets.groups if group.counts), default=0)
    for kind, counts in enumerate(zip(*(group.counts for group in targets.groups), strict=True)):
        bar = "█" * round(_FULL * counts[0] / most) if most else ""
        table.add_row(str(kind), *(f"{count:,}" for count in counts), bar)
    return table


def _describe_part(part: PartSummary) -> str:
    span = "" if part.least is None else f" from {part.least:.4g} to {part.greatest:.4g}"
    strange = f"; NaN or infinite inputs: {part.not_finite:,}" if part.not_finite else ""
    targets = f"; targets {part.target_dtype} {_shape(part.target_shape)}" if part.target_shape else ""
    return f"{part.samples:>9,} samples of {_shape(part.shape)}, {part.dtype}{span}{strange}{targets}"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def _plain_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
