"""The state of a run as a pure machine: events in, commands out; no clock, no I/O, no threads.

    waiting --all clients joined--> open exchange --all replied, or deadline with quorum--+
                                     ^       ^                                            |
                                     |       +------- next exchange of the round ---------+
                                     |                                                    | last exchange
                                     +-- next round -- proceed <-- Checkpoint is durable--+--> finished

The same events in the same order give the same commands, so a journal of events is all that recovery needs.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace

from fedquilt_common.algorithm_api import Algorithm, Reply, Round, ServerContext, State, Task
from fedquilt_common.types import Arrays, ClientId, ExchangeId, Profile
from fedquilt_common.wire.messages import Outcome
from fedquilt_server.round.events import (
    Checkpoint,
    Command,
    Event,
    Finish,
    Joined,
    Left,
    Receipt,
    Rejected,
    Replied,
    Resumed,
    Send,
    Stop,
    Tally,
    Ticked,
)
from fedquilt_server.round.policy import Exchange, KnownAgent, Policy, same_question

ContextFactory = Callable[[int, Mapping[ClientId, Profile]], ServerContext]
Load = Callable[[Replied], Arrays]


class Machine:
    """One run.

    Args:
        algorithm: the server half that is driven round by round.
        policy: rounds, quorum and deadline.
        state: the state before round ``done + 1``.
        lab_for: makes the lab of a round from its number and the clients that may be asked.
        load: the arrays of an accepted reply; read only when the algorithm touches them.
        done: rounds that are finished.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        policy: Policy,
        state: State,
        context_for: ContextFactory,
        load: Load,
        done: int = 0,
    ) -> None:
        self.policy = policy
        self.state = state
        self.done = done
        self.agents: dict[str, KnownAgent] = {}
        self.host_of: dict[ClientId, str] = {}
        """Which agent hosts each client that is there; who claimed a client first has it."""
        self.exchange: Exchange | None = None
        self.finished = done >= policy.rounds
        self._algorithm = algorithm
        self._lab_for = context_for
        self._load = load
        self._round: Round | None = None
        self._silent: set[ClientId] = set()
        self._first_joined: float | None = None
        self._waited = False
        self._opened_at = 0.0
        self._accepted: set[tuple[ClientId, int, int]] = set()
        self._counted: dict[ClientId, ExchangeId] = {}
        self._since: dict[ClientId, ExchangeId] = {}
        self._first_exchange = (0, 0)
        self._counts: dict[str, int] = defaultdict(int)
        self._train: dict[str, list[float]] = {}

    # -- what the driver may ask ---------------------------------------------------------------

    @property
    def round(self) -> int:
        """The open round, or the one that comes next."""
        return self.done + 1

    @property
    def awaited(self) -> list[ClientId]:
        """Clients that were asked and have not replied; before a round, those that are not there. A quorum may do."""
        if self.exchange is not None:
            return sorted(set(self.exchange.tasks) - set(self.exchange.replies))
        fleet = self._fleet()
        return [] if self.finished else [client for client in range(self.policy.clients) if client not in fleet]

    @property
    def wake_at(self) -> float | None:
        """When a ``Ticked`` is wanted; None when time changes nothing."""
        if self.finished:
            return None
        if self.exchange is not None:
            return self.exchange.deadline
        if self.done or self._waited or self._first_joined is None or self.policy.deadline is None:
            return None
        return self._first_joined + self.policy.deadline

    def agent_of(self, event: Joined) -> KnownAgent:
        """What the machine will know of an agent after this event."""
        known = tuple(c for c in event.clients if c < self.policy.clients)
        return KnownAgent(event.boot, known, event.workers, event.profile)

    def evaluate(self, state: State) -> dict[str, float]:
        """The algorithm's scores of a state."""
        return self._algorithm.evaluate(state, self._lab_for(self.done, self._fleet()))

    def snapshot(self) -> str:
        """What must survive besides the state, as JSON; see ``restore``."""
        agents = {name: asdict(agent) for name, agent in self.agents.items()}
        accepted = sorted(key for key in self._accepted if key[1] >= self.done)
        kept = {
            "agents": agents,
            "hosts": list(self.host_of.items()),
            "silent": sorted(self._silent),
            "accepted": accepted,
            "counted": [(client, *moment) for client, moment in self._counted.items()],
        }
        return json.dumps(kept)

    def restore(self, snapshot: str, at: float) -> list[Command]:
        """Go on from a snapshot taken at a checkpoint, as ``proceed`` did with the same ``at``."""
        kept = json.loads(snapshot)
        self.agents = {
            name: KnownAgent(a["boot"], tuple(a["clients"]), a["workers"], Profile(**a["profile"]))
            for name, a in kept["agents"].items()
        }
        self.host_of = dict(kept["hosts"])
        self._silent = set(kept["silent"])
        self._accepted = {(client, number, exchange) for client, number, exchange in kept["accepted"]}
        self._counted = {client: (number, exchange) for client, number, exchange in kept.get("counted", [])}
        return self._next_round(at)

    def proceed(self, state: State, at: float) -> list[Command]:
        """The last checkpoint is durable since ``at``, ``state`` is how it is read back: open the next round."""
        self.state = state
        return self._next_round(at)

    # -- events --------------------------------------------------------------------------------

    def handle(self, event: Event) -> list[Command]:
        """Take one event in; returns what is to be done, in order."""
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
            case Resumed():
                return self._resume(event.at)
            case Ticked():
                return self._tick(event.at)

    def _join(self, event: Joined) -> None:
        agent = self.agents[event.agent] = self.agent_of(event)
        self._release(event.agent, keep=agent.clients)
        for client in agent.clients:
            self.host_of.setdefault(client, event.agent)
        self._silent.difference_update(agent.clients)
        if self._first_joined is None:
            self._first_joined = event.at

    def _leave(self, event: Left) -> None:
        agent = self.agents.get(event.agent)
        if agent is not None and agent.boot <= event.boot:
            del self.agents[event.agent]
            self._release(event.agent)

    def _release(self, agent: str, keep: Collection[ClientId] = ()) -> None:
        """An agent's clients, but for ``keep``, go to whoever else claims them, in the order of joining."""
        for client in {c for c, host in self.host_of.items() if host == agent} - set(keep):
            others = [name for name, other in self.agents.items() if name != agent and client in other.clients]
            if others:
                self.host_of[client] = others[0]
            else:
                del self.host_of[client]

    def _start_if_ready(self, at: float) -> list[Command]:
        """Round 1 waits for every client, or for a quorum once the deadline has passed; later rounds for a quorum."""
        if self.exchange is not None or self.finished:
            return []
        self._waited = self._waited or self.done > 0 or (self.wake_at is not None and at >= self.wake_at)
        enough = self.policy.quorum if self._waited else self.policy.clients
        if len(self._fleet()) < enough:
            self._silent.clear()  # nobody asks them, so nobody would ever hear of them again
        return self._open_round(at, at) if len(self._fleet()) >= enough else []

    def _reply(self, event: Replied) -> list[Command]:
        self._silent.discard(event.client)
        verdict, reason = self.judge(event.client, event.round, event.exchange)
        receipt = Receipt(
            event.agent, event.client, event.round, event.exchange, event.digest, verdict, reason
        )  # fmt: skip
        if verdict != "accepted" or self.exchange is None:
            self._counts[verdict] += 1
            return [receipt]
        self._counts[verdict] += 1
        self.exchange.replies[event.client] = event
        self._accepted.add((event.client, event.round, event.exchange))
        self._note_training(event)
        return [receipt, *self._close_if_complete(event.at)]

    def _note_training(self, event: Replied) -> None:
        said = event.metrics.get("train_seconds", 0.0)
        seconds = max(0.0, min(said, event.at - self._opened_at))
        self._train.setdefault(event.agent, []).append(seconds)

    def would_close(self, event: Event) -> bool:
        """Whether taking this event in means averaging; the driver shows it before."""
        exchange = self.exchange
        if not isinstance(event, Replied) or exchange is None:
            return False
        return len(exchange.replies) + 1 == len(exchange.tasks) and event.client in exchange.tasks

    def _refuse(self, event: Rejected) -> list[Command]:
        self._counts[event.outcome] += 1
        if event.client is None or self.host_of.get(event.client) != event.agent:
            return []
        self._silent.discard(event.client)  # it cannot count, but it is a sign of life
        return self._start_if_ready(event.at)

    def judge(self, client: ClientId, round: int, exchange: int) -> tuple[Outcome, str]:
        """What a whole and sound reply would be now, and why."""
        number = self.exchange.number if self.exchange else 0
        if (client, round, exchange) in self._accepted:
            return "duplicate", "a reply of this client has been counted"
        if self.finished or (round, exchange) < (self.round, number):
            return "late", f"round {round}, exchange {exchange} is closed"
        if self.exchange is None or (round, exchange) != (self.round, number):
            return "rejected", f"round {round}, exchange {exchange} is not open"
        if client not in self.exchange.tasks:
            return "rejected", f"client {client} was not asked in round {round}"
        return "accepted", ""

    def _tick(self, at: float) -> list[Command]:
        if self.exchange is None:
            return self._start_if_ready(at)
        return self._close_if_complete(at)

    def _resume(self, at: float) -> list[Command]:
        """Nobody could reply while the coordinator was away, so that time does not count."""
        exchange = self.exchange
        if exchange is None:
            self._first_joined = None if self._first_joined is None else at
            return []
        if exchange.deadline is not None and self.policy.deadline is not None:
            exchange.deadline = at + self.policy.deadline
        return [self._send(exchange)]

    # -- rounds and exchanges ------------------------------------------------------------------

    def _fleet(self) -> dict[ClientId, Profile]:
        hosts = self.host_of
        return {c: self.agents[hosts[c]].profile for c in sorted(hosts) if c not in self._silent}

    def _next_round(self, at: float) -> list[Command]:
        self._opened_at = at
        self._counts.clear()
        self._train.clear()
        self._accepted = {key for key in self._accepted if key[1] >= self.done}
        if self.done >= self.policy.rounds:
            self.finished = True
            return [Finish("all rounds are done")]
        return self._start_if_ready(at)

    def _open_round(self, at: float, opened_at: float) -> list[Command]:
        self._opened_at = opened_at
        self._since = dict(self._counted)
        self._round = self._algorithm.round(self.state, self._lab_for(self.round, self._fleet()))
        return self._open_exchange(0, next(self._round), at)

    def _open_exchange(self, number: int, tasks: Mapping[ClientId, Task], at: float) -> list[Command]:
        deadline = None if self.policy.deadline is None else at + self.policy.deadline
        self.exchange = Exchange(number, tasks, deadline)
        return [self._send(self.exchange)]

    def _send(self, exchange: Exchange) -> Send:
        since = {client: self._since[client] for client in exchange.tasks if client in self._since}
        return Send(self.round, exchange.number, exchange.tasks, exchange.deadline, since)

    def _close_if_complete(self, at: float) -> list[Command]:
        exchange = self.exchange
        if exchange is None:
            return []
        passed = exchange.deadline is not None and at >= exchange.deadline
        exchange.overdue = exchange.overdue or passed
        enough = min(self.policy.quorum, len(exchange.tasks)) if exchange.overdue else len(exchange.tasks)
        if len(exchange.replies) >= enough:
            return self._close(exchange, at)
        return self._shortfall(exchange, at) if passed else []

    def _close(self, exchange: Exchange, at: float) -> list[Command]:
        assert self._round is not None  # noqa: S101 - an exchange is open
        replies = {c: self._read(exchange.replies[c]) for c in sorted(exchange.replies)}
        stop = self._stop_the_others(exchange)
        self._since |= dict.fromkeys(replies, (self.round, exchange.number))
        if exchange.number == 0:
            self._first_exchange = len(replies), len(exchange.tasks)
        try:
            tasks = self._round.send(replies)
        except StopIteration as done:
            return [*stop, *self._finish_round(done.value, at)]
        return [*stop, *self._open_exchange(exchange.number + 1, tasks, at)]

    def _stop_the_others(self, exchange: Exchange) -> list[Command]:
        late = tuple(sorted(set(exchange.tasks) - set(exchange.replies)))
        return [Stop(self.round, exchange.number, late)] if late else []

    def _read(self, event: Replied) -> Reply:
        return Reply(self._load(event), event.weight, event.metrics)

    def _finish_round(self, state: State, at: float) -> list[Command]:
        tally = self._tally(*self._first_exchange)
        self._counted = self._since
        self.state, self.done, self.exchange, self._round = state, self.done + 1, None, None
        return [Checkpoint(self.done, state, tally, self.snapshot(), at)]

    def _tally(self, clients: int, asked: int) -> Tally:
        workers = {name: agent.workers for name, agent in self.agents.items()}
        # an agent's workers share its tasks, but one task is not done faster by several
        train = max((max(max(s), sum(s) / workers.get(name, 1)) for name, s in self._train.items()), default=0.0)
        counts = self._counts
        return Tally(
            clients, asked, counts["late"], counts["rejected"], counts["duplicate"], train, self._opened_at,
            counts["accepted"],
        )  # fmt: skip

    def _shortfall(self, exchange: Exchange, at: float) -> list[Command]:
        """The deadline passed without the quorum: wait on, or begin the round again with other clients."""
        silent = set(exchange.tasks) - set(exchange.replies)
        if self.policy.shortfall == "wait" or self.policy.deadline is None:
            exchange.deadline = None
        elif len(set(self._fleet()) - silent) < self.policy.quorum:
            exchange.deadline = at + self.policy.deadline
        else:
            self._silent |= silent
            return self._begin_again(exchange, at)
        return []

    def _begin_again(self, before: Exchange, at: float) -> list[Command]:
        """Open the round anew; replies to exactly the same question are kept."""
        if self._round is not None:
            self._round.close()
        commands = self._open_round(at, self._opened_at)
        now = self.exchange
        self._accepted = {key for key in self._accepted if key[1] != self.round}
        self._train.clear()
        if now is not None and before.number == now.number:
            same = {c for c, t in now.tasks.items() if c in before.replies and same_question(t, before.tasks[c])}
            self.exchange = replace(now, replies={c: before.replies[c] for c in same})
            self._accepted |= {(c, self.round, now.number) for c in same}
            for client in sorted(same):
                self._note_training(before.replies[client])
        return [*commands, *self._close_if_complete(at)]
