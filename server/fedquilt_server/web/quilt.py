"""The page's view of the coverage: which boards trained which channels, thinned to what a screen can show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field

from fedquilt_server.status.coverage import Coverage, LayerCoverage
from fedquilt_server.status.units import number, percent


class ThinLayer(LayerCoverage):
    """One layer with means of adjacent channels as ``counts`` and ``latest``, and what all its channels have."""

    channels: int = Field(description="output channels of the layer")
    trained: float | None = Field(description="share of the channels that a reply has trained; null without channels")
    trained_latest: float | None = Field(description="share of the channels that the last round trained")
    least: int | None = Field(description="the fewest replies that trained a channel")
    most: int | None = Field(description="the most replies that trained a channel")


class ThinCoverage(BaseModel):
    """The coverage of all layers with a limited number of counts."""

    model_config = ConfigDict(frozen=True)

    rounds: int = Field(description="rounds that are counted")
    replies: dict[str, int] = Field(description="agent -> its replies that are counted")
    layers: list[ThinLayer]


def thin_coverage(coverage: Coverage, channels: int) -> ThinCoverage:
    """Return the coverage with at most ``channels`` numbers per layer: the means of adjacent channels, rounded."""
    layers = [_thin_layer(layer, channels) for layer in coverage.layers]
    return ThinCoverage(rounds=coverage.rounds, replies=coverage.replies, layers=layers)


def _thin_layer(layer: LayerCoverage, channels: int) -> ThinLayer:
    return ThinLayer(
        name=layer.name,
        counts=_means(layer.counts, channels),
        latest=_means(layer.latest, channels),
        boards={agent: round(share, 6) for agent, share in layer.boards.items()},
        channels=len(layer.counts),
        trained=_trained_share(layer.counts),
        trained_latest=_trained_share(layer.latest),
        least=min(layer.counts, default=None),
        most=max(layer.counts, default=None),
    )


def _trained_share(counts: Sequence[int]) -> float | None:
    return sum(count > 0 for count in counts) / len(counts) if counts else None


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
    shares = list(layer.boards.values())
    return CoverageRow(
        name=layer.name,
        channels=str(len(layer.counts)),
        trained=percent(_trained_share(layer.counts), 0),
        least=number(min(layer.counts, default=None), 0),
        most=number(max(layer.counts, default=None), 0),
        latest=percent(_trained_share(layer.latest), 0),
        share=percent(sum(shares) / len(shares) if shares else None, 0),
    )


def has_sub_models(coverage: Coverage | None) -> bool:
    """Return whether any board trained less than a whole layer, so that the quilt shows more than one colour."""
    return coverage is not None and any(share < 1 for layer in coverage.layers for share in layer.boards.values())
