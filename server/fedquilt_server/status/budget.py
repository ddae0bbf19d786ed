"""Follow what a run spends, and report when a limit of its budget is used up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedquilt_common.experiment.sections import Budget
from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.units import duration, energy, traffic

BudgetQuantity = Literal["bytes", "joules", "hours"]
_COSTS: Final[dict[BudgetQuantity, Callable[[RoundResult], float]]] = {
    "bytes": lambda row: row.bytes_down + row.bytes_up,
    "joules": lambda row: row.joules or 0.0,
    "hours": lambda row: row.running_seconds / 3600,
}
_FORMATS: Final[dict[BudgetQuantity, Callable[[float], str]]] = {
    "bytes": traffic,
    "joules": energy,
    "hours": lambda hours: duration(3600 * hours),
}


class BudgetUse(BaseModel):
    """How much of one limit is used: bytes in both directions, joules of all boards, or hours of the rounds in
    which the coordinator ran.
    """

    model_config = ConfigDict(frozen=True)

    quantity: BudgetQuantity
    used: float
    limit: float = Field(gt=0)

    @property
    def text(self) -> str:
        """``1.2 GB of 2.0 GB``."""
        show = _FORMATS[self.quantity]
        return f"{show(self.used)} of {show(self.limit)}"


class BudgetMeter:
    """Adds up what the rounds of a run spend, one after the other.

    Args:
        budget: the experiment's limits.

    Attributes:
        reason: which limit is used up, and after which round; empty while none is.
    """

    def __init__(self, budget: Budget) -> None:
        limits = {name: getattr(budget, name) for name in _COSTS}
        self._limits = {name: float(limit) for name, limit in limits.items() if limit is not None}
        self._used: Counter[BudgetQuantity] = Counter()
        self.reason = ""

    @property
    def uses(self) -> list[BudgetUse]:
        """What is used of each limit."""
        used = self._used
        return [BudgetUse(quantity=name, used=used[name], limit=limit) for name, limit in self._limits.items()]

    def take(self, row: RoundResult) -> None:
        """Take the next round's results."""
        self._used.update({name: _COSTS[name](row) for name in self._limits})
        spent = [use for use in self.uses if use.used >= use.limit]
        if spent and not self.reason:
            self.reason = (
                f"the budget of {_FORMATS[spent[0].quantity](spent[0].limit)} is used up after round {row.round}"
            )
