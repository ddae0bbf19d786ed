"""Results of a run: one row per round, the same in ``result.json``, ``rounds.csv``, the page and the metrics.

``docs/machine.md`` defines every field.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from fedquilt_common.learning_tasks.class_scores import CLASS_ACCURACY
from fedquilt_common.learning_tasks.metrics import MAIN_METRICS
from fedquilt_common.terminal_text import printable
from fedquilt_server.status.training_memory import TrainingMemory
from fedquilt_server.status.units import percent

FORMAT: Final = 2
"""Version of ``result.json``, ``events.jsonl`` and the tables of a run folder. It grows if a field changes."""
NEWER: Final = "newer_format"
"""Type of the validation error of a newer format."""
SCORE_COLUMNS: Final = ("accuracy", "r2", "loss", "global_accuracy", "personal_accuracy")
"""Scores that have a field of their own in ``RoundResult``."""
OneLine = Annotated[str, AfterValidator(printable)]
"""One line that shows nothing else than it holds, whoever wrote the file."""
Paragraph = Annotated[str, AfterValidator(lambda text: printable(text, "\n\t"))]
"""The same with line breaks, such as those of a log."""
RunStatus = Literal["unknown", "running", "finished", "failed", "stopped"]


class SubModelCost(BaseModel):
    """What training a sub-model costs."""

    model_config = ConfigDict(frozen=True)

    params: int = Field(description="numbers that are trained")
    flops: int = Field(description="multiply-accumulate operations of one sample's forward pass")


class RoundResult(BaseModel):
    """One finished round. Seconds are wall-clock time. Bytes are those of the coordinator's socket, with MQTT framing.

    ``seconds`` runs from the opening of the round to the opening of the next. ``train_seconds`` is the training time
    of the busiest agent, and ``overhead_seconds`` is the rest. ``sending_seconds`` ends when the broker has
    acknowledged the last chunk. ``receiving_seconds`` runs from the first chunk of the first reply until the last reply
    is verified. If the coordinator was restarted during the round, its downtime is part of ``seconds`` and
    ``overhead_seconds``, and ``away_seconds`` is its length; ``sending_seconds``, ``receiving_seconds`` and
    ``averaging_seconds`` then count from that start.
    """

    model_config = ConfigDict(frozen=True)

    round: int
    accuracy: float | None = None
    r2: float | None = None
    loss: float | None = None
    global_accuracy: float | None = Field(None, description="the global model on the clients' own test samples")
    personal_accuracy: float | None = Field(None, description="the clients' own models, all test samples pooled")
    seconds: float
    train_seconds: float
    overhead_seconds: float
    away_seconds: float = Field(0.0, description="the part of `seconds` in which the coordinator did not run")
    sending_seconds: float
    receiving_seconds: float
    averaging_seconds: float
    evaluate_seconds: float
    evaluated_afterwards: bool = Field(
        False,
        description="whether the coordinator evaluated after the round's end, mostly while the next one was open; "
        "then `seconds` is without `evaluate_seconds`",
    )
    bytes_down: int
    bytes_up: int
    model_bytes: int
    clients: int = Field(description="clients whose reply counts in the round's first exchange")
    asked: int = Field(description="clients with a task in the round's first exchange")
    replies: int = Field(0, description="accepted replies that count, in all exchanges")
    late: int = Field(description="replies that arrived in this round, after their exchange had closed")
    rejected: int = Field(
        description="rejections in this round: bad replies, clients that failed or declined, claims without effect"
    )
    duplicates: int = Field(description="replies that arrived in this round, but had already counted")
    missing: dict[str, dict[int, str]] = Field(
        default_factory=dict, description="clients without a reply that counts: exchange -> client -> its agent"
    )
    discarded: dict[str, list[int]] = Field(
        default_factory=dict,
        description="clients whose accepted reply does not count, because the round started again: exchange -> clients",
    )
    joules: float | None = Field(None, description="energy of all boards in this round; None if none has reported it")
    joules_estimated: bool = Field(False, description="whether a part of `joules` was estimated, not measured")
    joules_measured: bool = Field(False, description="whether a part of `joules` was measured, not estimated")
    joules_boards: int | None = Field(None, description="boards that have reported energy so far")
    joules_boards_missing: int | None = Field(None, description="boards that have reported none, so `joules` lacks it")
    staleness: float | None = Field(
        None, description="mean number of rounds since the tasks of the replies were sent; None if no task goes on"
    )
    most_stale: int | None = Field(None, description="the largest such number")
    waste_rate: float | None = Field(None, description="1 - entries sent back / entries sent (AdaptiveFL, section 4.4)")
    trained: dict[str, float | str] = Field(
        default_factory=dict, description="for each client, the width or level that it trained"
    )
    sub_models: dict[str, SubModelCost] = Field(
        default_factory=dict, description="for each width or level of `trained`, the size of its sub-model"
    )
    label_bytes_down: int | None = Field(None, description="soft labels to all clients; only their numbers count")
    label_bytes_up: int | None = Field(None, description="soft labels from all clients, repeated payloads included")
    label_bytes: dict[str, dict[str, int]] = Field(
        default_factory=dict, description="bytes of soft labels for each client: down and up"
    )
    client_accuracy: dict[str, float] = Field(
        default_factory=dict,
        description="each client's own model on its test samples; the global model if the coordinator evaluates, too",
    )
    client_scores: dict[str, float] = Field(
        default_factory=dict, description="the same by the task's main metric, such as `r2`, if that is not accuracy"
    )
    class_accuracy: dict[int, float] = Field(
        default_factory=dict, description="class -> share of its test samples that the model of `accuracy` names right"
    )
    scores: dict[str, float] = Field(default_factory=dict, description="other results of the evaluation; finite")
    report: dict[str, Any] = Field(
        default_factory=dict, description="other facts that the algorithm reports (`State.report`), as JSON values"
    )
    central_privacy: CentralSpent | None = Field(None, description="privacy that is spent with `privacy.mode: central`")

    @property
    def named_scores(self) -> dict[str, float | None]:
        """All scores of the round under the names that the evaluation gave them."""
        own = {name: getattr(self, name) for name in SCORE_COLUMNS}
        return own | {f"{CLASS_ACCURACY}{k}": value for k, value in self.class_accuracy.items()} | self.scores

    def value(self, name: str) -> Any:
        """Return a field of the row, or another score; None if the row does not have it."""
        found = self.__dict__.get(name)  # pydantic's own lookup of an attribute that is missing is slow
        return self.scores.get(name) if found is None else found

    @property
    def running_seconds(self) -> float:
        """``seconds`` without the time in which the coordinator did not run."""
        return self.seconds - self.away_seconds

    @property
    def running_overhead_seconds(self) -> float:
        """``running_seconds`` without the training; 0 if the training took longer, because agents train on alone."""
        return max(0.0, self.running_seconds - self.train_seconds)

    @property
    def awaits_scores(self) -> bool:
        """Whether the round is durable, but its evaluation has not ended."""
        return self.evaluated_afterwards and not self.evaluate_seconds

    @property
    def has_both(self) -> bool:
        """Whether the row has the main metric twice: the global model's, and that of the clients' own models."""
        return any(
            self.value(f"global_{metric.name}") is not None and self.value(f"personal_{metric.name}") is not None
            for metric in MAIN_METRICS
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Count the clients for each trained width or level: largest width first, then names in alphabetical order."""
        widths = sorted((size for size in self.trained.values() if not isinstance(size, str)), reverse=True)
        names = sorted(size for size in self.trained.values() if isinstance(size, str))
        return dict(Counter(map(str, (*widths, *names))))

    @property
    def average(self) -> float | None:
        """The mean score of the levels' sub-models; None without sub-models."""
        names = (f"average_{metric.name}" for metric in MAIN_METRICS)
        return next((self.scores[name] for name in names if name in self.scores), None)


class OwnMemory(BaseModel):
    """Resident memory of the coordinator process in bytes: ``idle`` before its first round, and at its ``peak``."""

    model_config = ConfigDict(frozen=True)

    idle: int = 0
    peak: int = 0


class PrivacySpent(BaseModel):
    """What training has spent on a client's samples, in all runs of its board, by its newest accepted reply."""

    model_config = ConfigDict(frozen=True)

    client: int
    epsilon: float | None = Field(default=None, description="spent up to now; None before the client's first reply")
    budget: float | None = Field(description="`privacy.epsilon` of the client; None without local privacy")
    delta: float | None = Field(description="probability with which the guarantee may fail")
    declined: str = Field(default="", description="why the client does no task any more; empty if it does")


class CentralSpent(BaseModel):
    """What the rounds up to this one have spent on each client's privacy, where the coordinator adds the noise."""

    model_config = ConfigDict(frozen=True)

    epsilon: float = Field(description="spent up to now, against those who do not know which clients took part")
    epsilon_known: float = Field(description="against those who know it, for the client that was asked most often")
    budget: float = Field(description="`privacy.epsilon`")
    delta: float = Field(description="probability with which the guarantee may fail")
    noise: float = Field(description="standard deviation of the noise on the sum of updates, in clipping norms")
    clip: float = Field(description="largest L2 norm of a client's update in this round")


def describe_whole_share(share: float) -> str:
    """Return in words which share of a model's numbers no width cuts."""
    return f"{percent(share)} of the model's numbers belong to no channel group, so every width has them"


class ModelCut(BaseModel):
    """How the experiment's model is cut, where clients may train sub-models."""

    model_config = ConfigDict(frozen=True)

    groups: int = Field(description="channel groups that are cut")
    whole_share: float = Field(
        description="share of the model's numbers that belong to no channel group, so that every width has them"
    )
    kept_whole: dict[str, str] = Field(default_factory=dict, description="array -> what of it is not cut, and why")

    @property
    def summary(self) -> str:
        """One sentence for the log."""
        return f"Sub-models: {self.groups} channel groups are cut, {describe_whole_share(self.whole_share)}"


class Ending(BaseModel):
    """How a run ended, or that it still runs. A run that failed or was stopped can be resumed."""

    model_config = ConfigDict(frozen=True)

    status: RunStatus
    reason: str = ""
    exit_code: int | None = None


RUNNING: Final = Ending(status="running")
FINISHED: Final = Ending(status="finished", exit_code=0)


class Result(BaseModel):
    """The whole run, as ``result.json`` holds it."""

    model_config = ConfigDict(frozen=True)

    format: int = Field(default=1, description="version of the run folder's result files; 1 if it is missing")
    version: OneLine = Field(default="", description="version of fedquilt that wrote the file; empty in earlier ones")
    name: OneLine
    run: OneLine
    algorithm: OneLine
    dataset: OneLine
    status: RunStatus = Field(
        default="unknown", description="running even after a power cut; unknown in files of earlier versions"
    )
    reason: Paragraph = Field(
        default="", description="why the run failed, was stopped, or finished before its last round"
    )
    exit_code: int | None = Field(default=None, description="exit code of the command; None while the run goes on")
    note: Paragraph = ""
    """A remark on the data, for example that the official test samples are missing."""
    warnings: list[Paragraph] = Field(default_factory=list, description="such as that the training has diverged")
    seed: int
    rounds: list[RoundResult]
    coordinator_memory: OwnMemory = OwnMemory()
    memory: list[TrainingMemory] = Field(default_factory=list, description="what training took of each client's board")
    model_cut: ModelCut | None = Field(default=None, description="how the model is cut; None without sub-models")
    privacy: list[PrivacySpent] = Field(default_factory=list, description="of each client with differential privacy")
    final: dict[str, float | int | str] = Field(default_factory=dict)

    @field_validator("format")
    @classmethod
    def _check_format(cls, value: int) -> int:
        """Refuse a newer format: a field of it may have another meaning."""
        if value > FORMAT:
            raise PydanticCustomError(NEWER, f"a newer fedquilt wrote it; this one reads formats up to {FORMAT}")
        return value

    @field_validator("rounds")
    @classmethod
    def _check_order(cls, rounds: list[RoundResult]) -> list[RoundResult]:
        """Refuse rounds that are not 1, 2, 3 and so on: the last score, sums and means would be wrong."""
        for number, row in enumerate(rounds, 1):
            if row.round != number:
                raise ValueError(f"round {row.round} is where round {number} must be")
        return rounds
