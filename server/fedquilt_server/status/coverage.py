"""How often each part of the model was trained, and by which boards: the page's quilt."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class LayerCoverage(BaseModel):
    """How often the output channels of one layer were trained by replies that count."""

    model_config = ConfigDict(frozen=True)

    name: str
    counts: list[int] = Field(description="for each output channel, replies of all rounds that trained it")
    latest: list[int] = Field(description="for each output channel, replies of the last round that trained it")
    boards: dict[str, float] = Field(
        default_factory=dict, description="agent -> share of the layer that it trains, mean over its replies"
    )


class Coverage(BaseModel):
    """The coverage of all layers, in the model's order."""

    model_config = ConfigDict(frozen=True)

    rounds: int = Field(description="rounds that are counted")
    replies: dict[str, int] = Field(default_factory=dict, description="agent -> its replies that are counted")
    layers: list[LayerCoverage]
