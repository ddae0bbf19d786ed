"""Central differential privacy: an algorithm whose rounds see only the noisy mean of the clients' clipped updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.noisy_mean import clip_factors, next_clip, noisy_mean, split_noise, update_norm
from fedquilt_common.algorithm_api import Reply, Round, ServerContext, State, Task, advance_full_round
from fedquilt_common.algorithm_api.wrapper import AlgorithmWrapper
from fedquilt_common.errors import PrivacyBudgetError, RunFailedError
from fedquilt_common.experiment.privacy_section import Privacy
from fedquilt_common.privacy.central_accountant import NoisyRounds, central_epsilon, solve_central_noise
from fedquilt_common.privacy.secret_noise import open_secret
from fedquilt_common.types import Arrays, ClientId
from fedquilt_server.lab.context import RoundContext

REPORT: Final = "central_privacy"
"""Name of what has been spent in ``State.report``."""
_ACCOUNT: Final = "central_privacy/account"
"""Name, in ``State.extra``, of the rounds that are paid for: noise, clients asked, drawn from, next clipping norm."""
_ASKED: Final = "central_privacy/asked"
"""Name of the rounds in which each client was asked, uint8 of shape (rounds, clients)."""


@dataclass(frozen=True)
class CentralPrivacy(AlgorithmWrapper):
    """An algorithm with DP-FedAvg around it; the clients do not notice.

    Clients are drawn, and noise is added, from a key that only the coordinator knows: the experiment's seed is known to
    the boards. What the rounds have spent is a part of the state, so a restart loses nothing.

    Attributes:
        inner: it reads of the replies only their mean.
        privacy: the budget, and the clipping norm of round 1.
        key: of the coordinator, in hex.
        experiment: digest of the experiment: noise that two experiments shared would tell their difference.
        remembers: what clients send may depend on the rounds in which they were asked before. The models then tell who
            took part, so sampling does not amplify: the noise is for a client that is asked in every round, and
            ``epsilon`` is ``epsilon_known``.
    """

    privacy: Privacy
    key: str
    experiment: str
    remembers: bool = False

    def evaluate(self, state: State, ctx: ServerContext) -> dict[str, float]:
        return self.inner.evaluate(_without_account(state), ctx)

    def round(self, state: State, ctx: ServerContext) -> Round:
        """Run the algorithm's round with the noisy mean as the reply of each client that was asked.

        Raises:
            RunFailedError: the budget does not pay for the rounds that are left, or the algorithm has a second
                exchange, which would reveal the mean before it is accounted.
        """
        account = _read_account(state)
        own = open_secret(self.key, [self.experiment, "selection", ctx.round, sorted(ctx.fleet)])[1]
        assert isinstance(ctx, RoundContext)  # noqa: S101 - the coordinator makes no other
        inner = self.inner.round(_without_account(state), replace(ctx, seed=int(own.integers(1 << 62))))
        tasks = advance_full_round(inner, None)
        if isinstance(tasks, State):  # nobody was asked, so nothing is spent
            return _keep_account(tasks, state)
        noise = self._noise(account, len(tasks), ctx)  # a budget that does not last is noticed before anybody trains
        replies = yield tasks
        clip = float(account[-1, 3]) if len(account) else self.privacy.clip
        mean, clip_after = self._add_noise(tasks, replies, ctx.round, clip, noise)
        done = advance_full_round(inner, _equal_replies(tasks, mean))
        if not isinstance(done, State):
            raise RunFailedError("privacy.mode = central: the algorithm asks the clients again; choose another one")
        spent = np.vstack([account, [noise, len(tasks), self._drawn_from(len(tasks), ctx), clip_after]])
        asked = np.vstack([_read_asked(state, ctx.clients), np.isin(np.arange(ctx.clients), sorted(tasks))])
        return self._with_account(done, spent, asked.astype(np.uint8), clip)

    def _noise(self, account: NDArray[np.float64], asked: int, ctx: ServerContext) -> float:
        """Return the noise of this round: that of the last one, unless the budget then pays for fewer rounds."""
        privacy, spent = self.privacy, _charges(account)
        last, drawn_from = spent[-1].noise if spent else 0.0, self._drawn_from(asked, ctx)
        ahead = NoisyRounds(last, asked, drawn_from, ctx.rounds - ctx.round + 1)
        if spent and central_epsilon([*spent, ahead], privacy.delta) <= privacy.epsilon:
            return ahead.noise
        try:
            return solve_central_noise(spent, privacy.epsilon, privacy.delta, ahead)
        except PrivacyBudgetError as error:
            raise RunFailedError(f"round {ctx.round}: {error}") from None

    def _drawn_from(self, asked: int, ctx: ServerContext) -> int:
        """Return the number of clients among which the accountant assumes that those asked are drawn."""
        return asked if self.remembers else len(ctx.fleet)

    def _add_noise(
        self, tasks: Mapping[ClientId, Task], replies: Mapping[ClientId, Reply], round: int, clip: float, noise: float
    ) -> tuple[Arrays, float]:
        """Return the noisy mean of the clipped updates, and the clipping norm of the next round.

        Args:
            tasks: what was asked.
            replies: trained arrays in the shapes of the tasks' arrays.
            round: the round's number.
            clip: the clipping norm.
            noise: in clipping norms.
        """
        adaptive, asked = self.privacy.adaptive, len(tasks)
        base = tasks[min(tasks)].arrays
        arrays = [replies[client].arrays for client in sorted(replies)]
        norms = [update_norm(base, each) for each in arrays]
        facts: list[Any] = [round, sorted(tasks), sorted(replies), clip, noise, norms]  # all that the mean depends on
        rng = open_secret(self.key, [self.experiment, *facts])[1]
        split = split_noise(noise, asked, adaptive=adaptive is not None)
        mean = noisy_mean(base, arrays, clip_factors(norms, clip), asked, split.mean * clip, rng)
        if adaptive is None:
            return mean, clip
        return mean, next_clip(clip, norms, asked, split.count, rng, adaptive.quantile, adaptive.rate)

    def _with_account(self, state: State, account: NDArray[np.float64], asked: NDArray[np.uint8], clip: float) -> State:
        """Return the state with what is spent, in its arrays and its report.

        Args:
            state: of the algorithm.
            account: as ``_read_account`` returns it.
            asked: as ``_read_asked`` returns it.
            clip: the clipping norm of the round.
        """
        privacy = self.privacy
        epsilon_known = max(central_epsilon(rounds, privacy.delta) for rounds in _known_rounds(account[:, 0], asked))
        spent = {
            "epsilon": epsilon_known if self.remembers else central_epsilon(_charges(account), privacy.delta),
            "epsilon_known": epsilon_known,
            "budget": privacy.epsilon,
            "delta": privacy.delta,
            "noise": float(account[-1, 0]),
            "clip": clip,
        }
        extra = {**state.extra, _ACCOUNT: account.view(np.int64), _ASKED: asked}  # whole numbers stay to the bit
        return replace(state, extra=extra, report={**state.report, REPORT: spent})


def _equal_replies(tasks: Mapping[ClientId, Task], mean: Arrays) -> dict[ClientId, Reply]:
    """Return the noisy mean as the reply to each task, with 1 for each metric that the task requires."""
    return {client: Reply(mean, metrics=dict.fromkeys(task.metrics, 1.0)) for client, task in tasks.items()}


def _read_account(state: State) -> NDArray[np.float64]:
    """Return the account, one row for each round: noise, asked, drawn from, and the clipping norm after it."""
    if _ACCOUNT not in state.extra:
        return np.zeros((0, 4))
    return np.ascontiguousarray(state.extra[_ACCOUNT]).view(np.float64)


def _read_asked(state: State, clients: int) -> NDArray[np.uint8]:
    """Return 1 for each client that a round asked, shape (rounds, clients)."""
    return np.asarray(state.extra[_ASKED]) if _ASKED in state.extra else np.zeros((0, clients), np.uint8)


def _keep_account(state: State, before: State) -> State:
    """Return a state with the account of the one before."""
    kept = {name: before.extra[name] for name in before.extra if name in (_ACCOUNT, _ASKED)}
    return replace(state, extra={**state.extra, **kept})


def _without_account(state: State) -> State:
    return replace(state, extra={name: state.extra[name] for name in state.extra if name not in (_ACCOUNT, _ASKED)})


def _known_rounds(noises: NDArray[np.float64], asked: NDArray[np.uint8]) -> list[list[NoisyRounds]]:
    """Return what the rounds spend that asked a client, for clients asked equally often with equal noise once.

    Args:
        noises: of the rounds, shape (rounds,).
        asked: as ``_read_asked`` returns it.
    """
    kinds = np.unique(noises)
    counts = np.unique([asked[noises == kind].sum(axis=0, dtype=np.int64) for kind in kinds], axis=1)
    return [
        [NoisyRounds(float(kind), 1, 1, int(count)) for kind, count in zip(kinds, case, strict=True) if count]
        for case in counts.T
    ]


def _charges(account: NDArray[np.float64]) -> list[NoisyRounds]:
    return [NoisyRounds(float(row[0]), int(row[1]), int(row[2])) for row in account]
