"""The page's view of the coverage: which boards trained which channels, thinned to what a screen can show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedquilt_server.status.coverage import Coverage, LayerCoverage
from fedquilt_server.status.units import number, percent


def thin_coverage(coverage: Coverage, channels: int) -> Coverage:
    """Return the coverage with at most ``channels`` numbers per layer: the means of adjacent channels, rounded."""
    return coverage.model_copy(update={"layers": [_thin_layer(layer, channels) for layer in coverage.layers]})


def _thin_layer(layer: LayerCoverage, channels: int) -> LayerCoverage:
    thinned = {"counts": _means(layer.counts, channels), "latest": _means(layer.latest, channels)}
    shares = {agent: round(share, 3) for agent, share in layer.boards.items()}
    return layer.model_copy(update={**thinned, "boards": shares})


def _means(values: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` means. A mean above 0 becomes 1 at least, so that no trained channel looks untrained."""
    return [_mean(part) for part in _split(values, most)]


def _split(values: Sequence[int], most: int) -> Iterator[Sequence[int]]:
    parts = min(len(values), most)
    bounds = [len(values) * i // parts for i in range(parts + 1)] if parts else []
    return (values[a:b] for a, b in pairwise(bounds))


def _mean(values: Sequence[int]) -> int:
    total = sum(values)
    return max(1, round(total / len(values))) if total > 0 else 0


@dataclass(frozen=True)
class CoverageRow:
    """One layer in the table beside the quilt; all values are texts."""

    name: str
    channels: str
    trained: str
    least: str
    most: str
    latest: str
    share: str


def coverage_rows(coverage: Coverage | None) -> list[CoverageRow]:
    """Return a row for each layer."""
    return [_row(layer) for layer in coverage.layers] if coverage else []


def _row(layer: LayerCoverage) -> CoverageRow:
    size, shares = len(layer.counts), list(layer.boards.values())
    return CoverageRow(
        name=layer.name,
        channels=str(size),
        trained=percent(sum(n > 0 for n in layer.counts) / size if size else None, 0),
        least=number(min(layer.counts, default=None), 0),
        most=number(max(layer.counts, default=None), 0),
        latest=percent(sum(n > 0 for n in layer.latest) / size if size else None, 0),
        share=percent(sum(shares) / len(shares) if shares else None, 0),
    )


def has_sub_models(coverage: Coverage | None) -> bool:
    """Return whether any board trained less than a whole layer, so that the quilt shows more than one colour."""
    return coverage is not None and any(share < 1 for layer in coverage.layers for share in layer.boards.values())
