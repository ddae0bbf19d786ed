"""The section ``privacy`` of an experiment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedquilt_common.experiment.section import Section, validation_error
from fedquilt_common.rejections import Problem


class AdaptiveClip(Section):
    """A clipping norm that follows the clients' updates (Andrew et al., NeurIPS 2021).

    Args:
        quantile: target fraction of updates that stay unclipped (gamma of Andrew et al.).
        rate: how fast the norm follows; after a round it is at most exp(rate) times larger or smaller.
    """

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    rate: Annotated[float, Field(gt=0)] = 0.2


class Privacy(Section):
    """Differential privacy, of the clients' samples or of whole clients.

    Args:
        mode: `local`: training on the board clips each sample's gradient and adds noise (DP-SGD). `central`: the
            coordinator, which is trusted, clips each client's update and adds noise to their mean (DP-FedAvg).
        epsilon: the budget. `local`: what all tasks of a client may spend on its samples together, in any run.
            `central`: what the run may spend on each client.
        delta: probability with which the guarantee may fail; below 1/n for each client's n samples, or for n clients.
        clip: largest L2 norm of the gradient of one sample, or of the update of one client.
        accountant: how spending adds up: `rdp` (Renyi differential privacy) or `prv` (privacy loss random variables),
            which is tighter and slower, and for `local` only.
        adaptive: `central`: `clip` is the norm of round 1 only, and then follows the updates; null: it stays.
        combined: `central`: lines of `fleet` may have `mode: local`, too. Both budgets then hold.
    """

    mode: Literal["local", "central"] = "local"
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    clip: Annotated[float, Field(gt=0)] = 1.0
    accountant: Literal["rdp", "prv"] = "rdp"
    adaptive: AdaptiveClip | None = None
    combined: bool = False

    @model_validator(mode="after")
    def _check_mode(self) -> Privacy:
        problems = [*self._find_contradictions()]
        if problems:
            raise validation_error(problems)
        return self

    def _find_contradictions(self) -> Iterator[Problem]:
        if self.mode == "local":
            if self.adaptive is not None:
                yield Problem("adaptive", "given", "only privacy.mode = central adapts the norm; remove it")
            if self.combined:
                yield Problem("combined", True, "it belongs to privacy.mode = central; remove it")
        elif self.accountant != "rdp":
            yield Problem("accountant", self.accountant, "privacy.mode = central counts with rdp; remove it")
