"""What a run reports: one row a round, the same row in ``result.json``, ``rounds.csv``, the page and the metrics."""

from __future__ import annotations

from collections import Counter

from pydantic import BaseModel, ConfigDict, Field


class RoundResult(BaseModel):
    """One finished round. Seconds are wall clock; bytes cross the coordinator's socket, MQTT framing included.

    ``seconds`` runs from the opening of the round to the opening of the next; ``train_seconds`` is the part that the
    busiest agent spent training; ``overhead_seconds`` is the rest. ``sending`` ends when the broker has acknowledged
    the last chunk, ``receiving`` runs from the first chunk of a reply to the last reply on disk. When the coordinator
    was started again during the round, its absence is part of ``seconds`` and ``overhead_seconds``; ``sending``,
    ``receiving`` and ``averaging`` are those since that start.
    """

    model_config = ConfigDict(frozen=True)

    round: int
    accuracy: float | None = None
    r2: float | None = None
    loss: float | None = None
    global_accuracy: float | None = Field(None, description="of the global model on the clients' own test samples")
    personal_accuracy: float | None = Field(None, description="of the clients' own models, pooled over the clients")
    seconds: float
    train_seconds: float
    overhead_seconds: float
    sending_seconds: float
    receiving_seconds: float
    averaging_seconds: float
    evaluate_seconds: float
    bytes_down: int
    bytes_up: int
    model_bytes: int
    clients: int = Field(description="clients whose reply counts, in the round's first exchange")
    asked: int = Field(description="clients that were asked in it")
    replies: int = Field(0, description="replies that count, in all exchanges")
    late: int = Field(description="replies that came in this round for an exchange that had closed")
    rejected: int = Field(description="what was refused in this round: bad replies, failed clients, vain claims")
    duplicates: int = Field(description="replies that came in this round though they had been counted")
    waste_rate: float | None = Field(None, description="1 - numbers sent back / numbers sent (AdaptiveFL, section 4.4)")
    trained: dict[str, float | str] = Field(default_factory=dict, description="per client the width or level trained")
    label_bytes_down: int | None = Field(None, description="soft labels for all clients; their numbers, nothing else")
    label_bytes_up: int | None = Field(None, description="soft labels of all clients, repeated payloads included")
    label_bytes: dict[str, dict[str, int]] = Field(
        default_factory=dict, description="the same in bytes for each client: down and up"
    )
    client_accuracy: dict[str, float] = Field(
        default_factory=dict, description="of each client's own model on the samples on which it tests"
    )
    scores: dict[str, float] = Field(default_factory=dict, description="what else the algorithm evaluates")

    @property
    def has_both(self) -> bool:
        """Whether there is a global model's accuracy beside that of the clients' own."""
        return self.global_accuracy is not None and self.personal_accuracy is not None

    @property
    def sizes(self) -> dict[str, int]:
        """How many clients trained each width or level: widths from the greatest, names in their order."""
        widths = sorted((size for size in self.trained.values() if not isinstance(size, str)), reverse=True)
        names = sorted(size for size in self.trained.values() if isinstance(size, str))
        return dict(Counter(map(str, (*widths, *names))))

    @property
    def average(self) -> float | None:
        """The mean score of the levels' sub-models; None where there are none."""
        return self.scores.get("average_accuracy", self.scores.get("average_r2"))


class OwnMemory(BaseModel):
    """Resident memory of the coordinator process in bytes: before its first round, and at its highest."""

    model_config = ConfigDict(frozen=True)

    idle: int = 0
    peak: int = 0


class Result(BaseModel):
    """``result.json``: the whole run."""

    model_config = ConfigDict(frozen=True)

    name: str
    run: str
    algorithm: str
    dataset: str
    note: str = ""
    """What must be known of the data, such as that the official test samples are not there."""
    seed: int
    rounds: list[RoundResult]
    coordinator_memory: OwnMemory = OwnMemory()
    final: dict[str, float | int | str] = Field(default_factory=dict)
