"""The state machine of a run, without clock, I/O or threads: it handles events and returns commands.

``states.py`` defines its states and legal transitions. The same events in the same order give the same commands, so
recovery needs only the journal of events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from fedquilt_common.algorithm_api import Algorithm, Ask, Reply, Round, State, advance_round
from fedquilt_common.types import ClientId, ExchangeId, Profile
from fedquilt_common.wire.messages import Outcome
from fedquilt_server.round.events import (
    Checkpoint,
    Command,
    Continued,
    CutOff,
    Event,
    Finish,
    Joined,
    Left,
    Paused,
    Rejected,
    Replied,
    Resumed,
    RoundRestarted,
    Send,
    Stop,
    Ticked,
)
from fedquilt_server.round.exchange import AcceptedReplies, Exchange, judge_reply, read_replies
from fedquilt_server.round.invariants import MachineView, validate
from fedquilt_server.round.policy import KnownAgent, Policy, move_clients
from fedquilt_server.round.ports import ContextFactory, Load
from fedquilt_server.round.round_counts import RoundCounts
from fedquilt_server.round.snapshots import MachineSnapshot, Standing
from fedquilt_server.round.states import PROCEED, IllegalTransitionError, RunState, check_transition


class Machine:
    """The machine of one run.

    Args:
        algorithm: its server half is driven round by round.
        policy: rounds, quorum and deadline.
        state: the state before round ``done + 1``.
        context_for: makes the context of a round from its number, the clients that may be asked, and the time.
        load: returns the arrays of accepted replies; they are read when the algorithm uses them.
        done: rounds that are finished.
        validates: check the invariants after every event (``validate``).

    Attributes:
        agents: the connected agents, in the order in which they joined.
        host_of: the agent that hosts each connected client: the first one that claimed it.
        exchange: the open exchange.
        finished: whether no further round opens: rounds or budget are used up, or too few clients have not declined.
        paused: whether a person holds the next round back; ``Continued`` lets it open.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        policy: Policy,
        state: State,
        context_for: ContextFactory,
        load: Load,
        done: int = 0,
        *,
        validates: bool = False,
    ) -> None:
        self.policy, self.state, self.done = policy, state, done
        self.agents: dict[str, KnownAgent] = {}
        self.host_of: dict[ClientId, str] = {}
        self.exchange: Exchange | None = None
        self.finished = done >= policy.rounds
        self.paused = self._closed = self._waited = False
        self._algorithm, self._context_for, self._load, self._validates = algorithm, context_for, load, validates
        self._round: Round | None = None
        self._silent: set[ClientId] = set()
        self._declined: set[ClientId] = set()
        self._first_joined: float | None = None
        self._accepted, self._counts = AcceptedReplies(), RoundCounts()
        self._before = self._now = Standing()
        self._asked_fleet: Mapping[ClientId, Profile] = {}

    # -- properties and queries ----------------------------------------------------------------

    @property
    def run_state(self) -> RunState:
        """The state of the run."""
        if self._closed:
            return RunState.CLOSED
        if self.exchange is not None:
            return RunState.OPEN
        return RunState.FINISHED if self.finished else RunState.WAITING

    @property
    def round(self) -> int:
        """Number of the open round, or of the next one."""
        return self.done + 1

    @property
    def working(self) -> Mapping[ClientId, ExchangeId]:
        """The clients that went on with their tasks at the last checkpoint, with round and exchange."""
        return self._before.working

    @property
    def awaited(self) -> list[ClientId]:
        """The clients that were asked and have not replied; before a round, those that are not connected."""
        if self.exchange is not None:
            return self.exchange.missing
        return [] if self.finished else sorted({*range(self.policy.clients)} - self._fleet().keys() - self._declined)

    @property
    def wake_at(self) -> float | None:
        """Unix time in seconds at which a ``Ticked`` is due; None if time changes nothing."""
        if self.exchange is not None:
            return self.exchange.deadline
        starts_alone = not (self.finished or self.paused or self.done or self._waited)
        if not starts_alone or self._first_joined is None or self.policy.deadline is None:
            return None
        return self._first_joined + self.policy.deadline

    def evaluation_of(self, state: State, round: int) -> Callable[[], dict[str, float]]:
        """Return a call that evaluates the state of a finished round. It may run in another thread, and later."""
        context = self._context_for(round, self._fleet(), 0.0, {})
        return partial(self._algorithm.evaluate, State(state.arrays, state.extra), context)

    def restart_event(self, at: float, reason: str, left_out: Collection[ClientId] = ()) -> RoundRestarted:
        """Return the event that starts the open round again for the clients for which it opened, ``left_out`` aside."""
        counts, fleet, declined = self._counts, self._asked_fleet, tuple(sorted({*self._declined, *left_out}))
        return RoundRestarted(at, self.round, reason, counts.opened_at, fleet, counts.not_accepted(), declined)

    def snapshot(self) -> str:
        """Return as JSON what a checkpoint must keep besides the state; see ``restore``."""
        out = frozenset(self._silent), frozenset(self._declined)
        counting = self._accepted.since(self.done), self._before
        return MachineSnapshot(self.agents, self.host_of, *out, *counting, self.paused).encode()

    def restore(self, snapshot: str, at: float) -> list[Command]:
        """Continue from a snapshot taken at a checkpoint, as ``proceed`` did with the same ``at``."""
        kept = MachineSnapshot.decode(snapshot)
        self.agents, self.host_of = dict(kept.agents), dict(kept.host_of)
        self._silent, self._accepted, self._before = set(kept.silent), kept.accepted, kept.standing
        self._closed, self.paused, self._declined = True, kept.paused, set(kept.declined)
        return self._leave_checkpoint(at)

    def proceed(self, state: State, at: float) -> list[Command]:
        """Open the next round after a checkpoint.

        Args:
            state: the state of the checkpoint, as read back from disk.
            at: Unix time in seconds at which the checkpoint became durable.
        """
        self.state = state
        return self._leave_checkpoint(at)

    def _leave_checkpoint(self, at: float) -> list[Command]:
        source, self._closed = self.run_state, False
        commands = self._next_round(at)
        self._check_step(source, PROCEED)
        return commands

    def validate(self) -> None:
        """Check the invariants; an AssertionError names the one that does not hold."""
        validate(MachineView(
            self.policy, self.run_state, self.done, self.agents, self.host_of, self.exchange,
            self._accepted, self._silent, self._round is not None,
        ))  # fmt: skip

    def _check_step(self, source: RunState, cause: str) -> None:
        check_transition(source, cause, self.run_state)
        if self._validates:
            self.validate()

    # -- events --------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        """Handle one event; returns the commands for the driver, in order.

        Raises:
            IllegalTransitionError: a checkpoint waits for ``proceed``.
        """
        source, cause = self.run_state, type(event).__name__
        if source is RunState.CLOSED:
            raise IllegalTransitionError(f"{cause} in state {source.value}: call proceed first")
        commands = self._dispatch(event)
        self._check_step(source, cause)
        return commands

    def _dispatch(self, event: Event) -> list[Command]:
        match event:
            case Joined():
                self._join(event)
                return self._start_if_ready(event.at)
            case Left():
                self._leave(event)
                return []
            case Replied():
                return self._reply(event)
            case Rejected():
                return self._refuse(event)
            case Resumed() | CutOff():
                return self._postpone(event)
            case Ticked():
                return self._close_if_complete(event.at) if self.exchange else self._start_if_ready(event.at)
            case RoundRestarted():
                return self._start_over(event)
            case Paused() | Continued():
                self.paused = isinstance(event, Paused)
                return self._start_if_ready(event.at)

    def _join(self, event: Joined) -> None:
        agent = self.agents[event.agent] = self.policy.agent_of(event)
        moved = move_clients(event.agent, agent.clients, self.host_of, self.agents)
        self._silent.difference_update(agent.clients)
        self._declined.difference_update(agent.clients)  # it is asked again, as after any failure
        if self.exchange is not None:
            self.exchange.failed.difference_update(agent.clients, moved)  # each tries its task again
        self._first_joined = event.at if self._first_joined is None else self._first_joined

    def _leave(self, event: Left) -> None:
        if (agent := self.agents.get(event.agent)) is not None and agent.boot <= event.boot:
            del self.agents[event.agent]
            moved = move_clients(event.agent, (), self.host_of, self.agents)
            if self.exchange is not None:
                self.exchange.failed.difference_update(moved)

    def _start_if_ready(self, at: float) -> list[Command]:
        """Open a round with all clients that have not declined, or a quorum after round 1 or a deadline; or end."""
        if self.exchange is not None or self.finished or self.paused:
            return []
        able = self.policy.clients - len(self._declined)
        if not self.policy.can_lose(self._declined):
            self.policy, self.finished = self.policy.end_after(self.done), True
            return [Finish(self.policy.no_budget)]
        self._waited = self._waited or self.done > 0 or (self.wake_at is not None and at >= self.wake_at)
        enough = self.policy.least(able) if self._waited else able
        if len(self._fleet()) < enough:
            self._silent.clear()  # they get no tasks, so they could never show a sign of life
        return self._open_round(at, at, self._fleet()) if len(self._fleet()) >= enough else []

    def _reply(self, event: Replied) -> list[Command]:
        self._silent.discard(event.client)
        receipt = event.receipt(*self.judge(event.client, event.round, event.exchange))
        self._counts.outcomes[receipt.outcome] += 1
        if receipt.outcome != "accepted" or self.exchange is None:
            return [receipt]
        self._count(event, self.exchange)
        return [receipt] if event.more else [receipt, *self._close_if_complete(event.at)]  # a sum counts as a whole

    def _count(self, event: Replied, exchange: Exchange) -> None:
        exchange.accept(event)
        self._accepted.add(event, exchange)
        self._counts.note_training(event)

    def would_close(self, event: Event) -> bool:
        """Whether this event completes the open exchange, so that handling it includes the averaging."""
        if isinstance(event, Rejected) and (event.client is None or self.host_of.get(event.client) != event.agent):
            return False
        return self.exchange is not None and self.exchange.closes_with(event, self.policy)

    def _refuse(self, event: Rejected) -> list[Command]:
        self._counts.outcomes[event.outcome] += 1
        if event.client is None or self.host_of.get(event.client) != event.agent:
            return []
        self._silent.discard(event.client)  # a sign of life, although it cannot count
        if event.declined:
            return self._decline(event.client, event.at)
        if event.failed and self.exchange is not None:
            self.exchange.fail(event.client)
            return self._close_if_complete(event.at) if self.policy.skips_failed else []
        return self._start_if_ready(event.at)

    def _decline(self, client: ClientId, at: float) -> list[Command]:
        """Go on without a client; if nobody else can reply to the exchange, the round starts again with others."""
        self._declined.add(client)
        if self.exchange is not None:
            self.exchange.decline(client)
            if self.exchange.can_close(self.policy):
                return self._close_if_complete(at)
            self._abandon_round()
        return self._start_if_ready(at)

    def judge(self, client: ClientId, round: int, exchange: int) -> tuple[Outcome, str]:
        """Return the outcome that a complete and valid reply would have now, and the reason if it does not count."""
        reply, working = (client, round, exchange), self._before.working
        return judge_reply(reply, self._accepted, self.round, self.exchange, self.finished, working)

    def _postpone(self, event: Resumed | CutOff) -> list[Command]:
        """Move the deadline: before this event no client could reply."""
        self._counts.note_gap(event)
        whole = self.policy.deadline
        if self.exchange is not None:
            self.exchange.postpone(event, whole)
            return [self._send(self.exchange)]
        if self._first_joined is not None and whole is not None:
            self._first_joined = event.postpone(self._first_joined + whole, whole) - whole
        return []

    # -- rounds and exchanges ------------------------------------------------------------------

    def _fleet(self) -> dict[ClientId, Profile]:
        hosts = self.host_of
        return {c: self.agents[hosts[c]].profile for c in sorted(hosts.keys() - self._silent - self._declined)}

    def _next_round(self, at: float) -> list[Command]:
        self._counts.restart(at)
        self._accepted = self._accepted.since(self.done)
        if self.done >= self.policy.rounds:
            self.finished = True
            return [Finish("all rounds are done")]
        return self._start_if_ready(at)

    def _open_round(self, at: float, opened_at: float, fleet: Mapping[ClientId, Profile]) -> list[Command]:
        self._counts.opened_at, self._asked_fleet, self._now = opened_at, fleet, self._before
        context = self._context_for(self.round, fleet, at, self._now.working)
        self._round = self._algorithm.round(self.state, context)
        return self._advance(0, None, at)

    def _advance(self, number: int, replies: Mapping[ClientId, Reply] | None, at: float) -> list[Command]:
        """Let the round continue: open its exchange ``number``, or finish it."""
        assert self._round is not None  # noqa: S101 - a round is under way
        tasks = advance_round(self._round, replies, self._now.working)
        if isinstance(tasks, State):
            return self._finish_round(tasks, at)
        deadline = None if self.policy.deadline is None else at + self.policy.deadline
        until = tasks.until if isinstance(tasks, Ask) else None
        earlier = {} if until is None else self._now.working_except(tasks.keys() | self._declined)
        hosts = {client: self.host_of.get(client, "") for client in (*tasks, *earlier)}
        self.exchange = Exchange((self.round, number), tasks, deadline, hosts, until=until, earlier=earlier)
        return [self._send(self.exchange)]

    def _send(self, exchange: Exchange) -> Send:
        since = self._now.counted_of(exchange.tasks)
        return Send(*exchange.id, exchange.tasks, exchange.deadline, since, exchange.until, exchange.earlier)

    def _close_if_complete(self, at: float) -> list[Command]:
        if (exchange := self.exchange) is None:
            return []
        exchange.note_time(at)
        if exchange.is_complete(self.policy):
            return self._close(exchange, at)
        return self._shortfall(exchange, at) if exchange.is_late(at) else []

    def _close(self, exchange: Exchange, at: float) -> list[Command]:
        replies = read_replies(exchange, self._load)
        stop = [Stop(*exchange.id, tuple(exchange.left_out))] if exchange.left_out else []
        self._counts.note_closed(exchange)
        self._now = self._now.after(exchange.answers, exchange.going_on)
        return [*stop, *self._advance(exchange.number + 1, replies, at)]

    def _finish_round(self, state: State, at: float) -> list[Command]:
        tally = self._counts.tally(self.agents, self._accepted.split(self.round)[0])
        self._before, self._closed = self._now, True
        self.state, self.done, self.exchange, self._round = state, self.done + 1, None, None
        return [Checkpoint(self.done, state, tally, self.snapshot(), at)]

    def _shortfall(self, exchange: Exchange, at: float) -> list[Command]:
        """Handle a deadline that passed without a quorum: keep waiting, or restart the round with other clients."""
        missing = set(exchange.missing)
        if self.policy.shortfall == "wait" or self.policy.deadline is None or exchange.lasting:
            exchange.deadline = None
            return []
        enough = self.policy.least(exchange.able)
        stuck = len(exchange.replies) + len(missing & set(self.host_of)) < enough  # so the silent clients are needed
        others = set(self.host_of if stuck else self._fleet()) - missing - self._declined
        if len(others) < self.policy.least(self.policy.clients - len(self._declined)):
            exchange.deadline = at + self.policy.deadline
            return []
        self._silent = missing if stuck else self._silent | missing
        return self._restart_round(exchange, at)

    def _restart_round(self, before: Exchange, at: float) -> list[Command]:
        """Start the round again; replies to exactly the same task still count."""
        self._abandon_round()
        commands = self._open_round(at, self._counts.opened_at, self._fleet())
        if self.exchange is not None:
            for event in self.exchange.same_replies(before):
                self._count(event, self.exchange)
        return [*commands, *self._close_if_complete(at)]

    def _abandon_round(self) -> None:
        if self._round is not None:
            self._round.close()
        self.exchange = self._round = None
        dropped, self._accepted = self._accepted.split(self.round)
        self._counts.drop(dropped)

    def _start_over(self, event: RoundRestarted) -> list[Command]:
        """Start the round again with no reply accepted; each client may be asked in the rounds that follow."""
        self._abandon_round()
        self._silent, self._declined = set(), set(event.declined)
        self._counts.restart(event.opened_at, event.outcomes)
        fleet = {client: profile for client, profile in event.fleet.items() if client not in self._declined}
        if len(fleet) < max(1, self.policy.least(len(fleet))):  # without those who spoiled a sum
            return self._start_if_ready(event.at)
        return self._open_round(event.at, event.opened_at, fleet)
