"""What an audit found: the separation of members and non-members for each attacked model, and what privacy allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedquilt_common.terminal import make_console
from fedquilt_common.wide_tables import print_whole
from fedquilt_server.status.units import percent

AttackName = Literal["loss threshold", "likelihood ratio"]


class AttackResult(BaseModel):
    """One attack on one model, or on all clients' own models together."""

    model_config = ConfigDict(frozen=True)

    attack: AttackName
    client: int | None = Field(description="whose own model it is; null: the global model, or all clients together")
    members: int = Field(description="compared samples that were trained on")
    non_members: int = Field(description="compared samples that no client trained on")
    auc: float = Field(description="probability that a member looks more like a member than a non-member does")
    auc_low: float = Field(description="lower end of the 95 % confidence interval, by bootstrap")
    auc_high: float = Field(description="its upper end")
    tpr: float = Field(description="part of the members that the attack finds, at the report's `fpr`")
    least_tpr: float = Field(description="lower end of its 95 % confidence interval")
    most_fpr: float = Field(description="upper end of the 95 % confidence interval of `fpr`")
    auc_bound: float | None = Field(description="largest AUC that the spent epsilon allows; null: it bounds nothing")
    tpr_bound: float | None = Field(description="largest `tpr` that the spent epsilon allows")
    most_tpr: float | None = Field(description="largest `tpr` that the spent epsilon allows at `most_fpr`")

    @property
    def exceeds(self) -> bool:
        """Whether the attack does better than the guarantee allows, beyond what chance explains."""
        return bool(list(self.excesses()))

    def excesses(self) -> Iterator[str]:
        """Yield what exceeds the guarantee. A leak of few samples shows in TPR alone."""
        if self.auc_bound is not None and self.auc_low > self.auc_bound:
            yield f"AUC {self.auc:.3f} instead of at most {self.auc_bound:.3f}"
        if self.most_tpr is not None and self.least_tpr > self.most_tpr:
            yield f"TPR {self.tpr:.3f} instead of at most {self.tpr_bound:.3f}"


class AuditReport(BaseModel):
    """The outcome of an audit."""

    model_config = ConfigDict(frozen=True)

    run: str
    algorithm: str
    dataset: str
    models: Literal["global", "own"] = Field(description="what was attacked: the global model, or the clients' own")
    seed: int = Field(description="of the audit")
    shadows: int = Field(description="shadow models for each attacked model")
    fpr: float = Field(description="part of the non-members that the attack takes for members, for `tpr`")
    unused: int = Field(
        description="compared non-members that are unused training samples; the others are test samples"
    )
    epsilon: float | None = Field(description="largest epsilon spent on a member; null: one has no guarantee")
    delta: float | None
    attacks: list[AttackResult]

    @property
    def exceeded(self) -> list[AttackResult]:
        """The attacks that do better than the guarantee allows."""
        return [attack for attack in self.attacks if attack.exceeds]


def print_report(report: AuditReport) -> None:
    """Print the table of the attacks and what it means to standard output."""
    kind = "the global model" if report.models == "global" else "the clients' own models"
    table = Table(title=f"{report.run}: attacks on {kind}", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("attack")
    for name in ("client", "members", "non-members", "AUC", "95 % interval", f"TPR at {percent(report.fpr, 0)} FPR"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("allowed AUC, TPR", justify="right", no_wrap=True)
    for row in report.attacks:
        whose = "all" if row.client is None else str(row.client)
        allowed = "-" if row.auc_bound is None else f"{row.auc_bound:.3f}, {row.tpr_bound:.3f}"
        interval = f"{row.auc_low:.3f} to {row.auc_high:.3f}"
        counts = (whose, str(row.members), str(row.non_members))
        table.add_row(row.attack, *counts, f"{row.auc:.3f}", interval, f"{row.tpr:.3f}", allowed)
    print_whole(table)
    for line in _explain(report):
        make_console().print(line, highlight=False, markup=False, soft_wrap=True)


_NO_BOUND: Final = {
    "global": "No epsilon bounds the attacks: a client of the run has trained without differential privacy.",
    "own": (
        "No epsilon bounds the attacks: a client has trained without noise of its own; noise of the coordinator "
        "would be in the global model only."
    ),
}


def _explain(report: AuditReport) -> Iterator[str]:
    yield "An AUC of 0.5 is chance: the model does not tell members from non-members."
    if report.epsilon is None:
        yield _NO_BOUND[report.models]
    else:
        spent = f"epsilon {report.epsilon:.4g} at delta {report.delta:g}"
        yield f"Allowed: the most that any attack can reach with {spent}."
    for row in report.exceeded:
        whose = "" if row.client is None else f" on client {row.client}"
        yield (
            f"The {row.attack}{whose} exceeds the guarantee: {', '.join(row.excesses())}. "
            "The samples may be in other runs too, or the accounting is wrong: please report it"
        )
