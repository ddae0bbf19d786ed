"""A world of claims: the claims with a real machine, and a time that the test sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from fedquilt_common.algorithm_api import State
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.types import Assignments
from fedquilt_common.wire.messages import AgentPresence
from fedquilt_server.coordinator import claims as module
from fedquilt_server.coordinator.claims import Claims
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.refusals import Refusals
from fedquilt_server.round.events import Event, Joined, Left, Rejected
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy


class ClaimsWorld:
    """Claims with a machine, a time that the test sets, and the events that were recorded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.events: list[Event] = []
        self.assignments = Assignments()
        self.cleared: list[str] = []
        monkeypatch.setattr(module, "clock", SimpleNamespace(now=lambda: self.now))
        self.machine = self.new_machine()
        self.limit = RateLimit(lambda: self.now)
        self.claims = self.new_claims()

    @staticmethod
    def new_machine() -> Machine:
        """Return a machine of four clients that never opens a round: the tests do not connect client 3."""
        context = cast(Any, lambda *_: None)
        state = State({"w": np.zeros(1, np.float32)})
        return Machine(FedAvg(), Policy(1, 4, 4), state, context, context, validates=True)

    def new_claims(self) -> Claims:
        refusals = Refusals(self.limit, self.record)
        return Claims(self.machine, self.limit, refusals, self.record, self.cleared.append, lambda: self.assignments)

    def record(self, event: Event) -> None:
        self.events.append(event)
        self.machine.handle(event)

    def say(
        self, agent: str, clients: Iterable[int] = (), boot: int = 1, *, retained: bool = False, instance: str = ""
    ) -> None:
        """Let a presence arrive; without clients that of an agent that leaves."""
        here = AgentPresence(agent=agent, online=bool(clients), boot=boot, clients=list(clients), instance=instance)
        self.claims.take(here, retained=retained)

    def listen(self, seconds: float, *, speaking: Iterable[str] = ()) -> None:
        """Let time pass while the coordinator waits at its inbox; some agents send telemetry."""
        names = list(speaking)
        for _ in range(round(seconds)):
            self.now += 1.0
            for name in names:
                self.claims.note_message(name)
            self.claims.check()

    @property
    def hosts(self) -> Mapping[int, str]:
        return dict(sorted(self.machine.host_of.items()))

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, Rejected)]

    @staticmethod
    def taken(clients: str, holder: str) -> str:
        """Return the reason of a claim that has no effect yet."""
        moves = "A client moves when its agent leaves or is silent for 90 s"
        return f"already hosted by {holder}: {clients}. {moves}; otherwise, give one of the agents other `clients`"

    def kinds(self) -> list[str]:
        """Kind and agent of each event that decides about hosts."""
        return [f"{type(e).__name__} {e.agent}" for e in self.events if isinstance(e, Joined | Left)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ClaimsWorld:
    return ClaimsWorld(monkeypatch)
