"""Run one scenario: start the command, inject the faults at their times, start the command again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.soak.disk import small_disk
from tests.soak.evidence import Evidence, collect
from tests.soak.experiments import POLICIES, experiment
from tests.soak.faults import INJECTORS, Injection, excuses
from tests.soak.federation import Federation, federation
from tests.soak.namespace import namespace
from tests.soak.network import INJECTORS as NETWORK_INJECTORS
from tests.soak.network import Network, network
from tests.soak.oracle import Outcome
from tests.soak.peer import attack
from tests.soak.scenario import Fault, Scenario

from fedquilt_server.simulate.process_specs import STALL_SECONDS

PATIENCE: Final = 60.0
"""Seconds that a scenario may take beyond what its parts take."""
RETRY_SECONDS: Final = 1.0
"""Until a start after a full disk: it fails within half a second, so that all starts could be over before the fault."""
TIMES: Final = 6.0
"""How many times the undisturbed run's seconds it may take."""


@dataclass(frozen=True)
class Play:
    """A scenario that was played."""

    scenario: Scenario
    outcome: Outcome
    injections: tuple[Injection, ...]


@dataclass
class _Stage:
    """What the threads of one scenario share."""

    federation: Federation
    net: Network | None
    total: int
    begun: list[Fault] = field(default_factory=list)
    injections: list[Injection] = field(default_factory=list)
    runs: set[str] = field(default_factory=set)


def play_undisturbed(name: str, folder: Path) -> Evidence:
    """Run an experiment without faults."""
    with federation(folder, experiment(name)) as made:
        began = time.monotonic()
        made.start()
        code = made.wait(10 * PATIENCE)
        return collect(made, (code,), time.monotonic() - began, frozenset())


def play(scenario: Scenario, undisturbed: Evidence, folder: Path) -> Play:
    """Play a scenario in ``folder``; nothing runs any more afterwards."""
    raw = experiment(scenario.experiment, scenario.policy, scenario.link)
    with contextlib.ExitStack() as stack:
        net = place = None
        if scenario.theme == "partition":
            place = stack.enter_context(namespace())
        if scenario.theme in ("network", "peer"):
            net = stack.enter_context(network(folder, scenario.weather, scenario.seed))
        if scenario.theme == "disk":
            stack.enter_context(small_disk(folder / "run"))
        made = stack.enter_context(federation(folder, raw, net.url if net else None, place))
        stage = _Stage(made, net, len(undisturbed.replies))
        began = time.monotonic()
        codes = _drive(stage, scenario, began + _limit(scenario, undisturbed))
        evidence = collect(made, codes, time.monotonic() - began, frozenset(stage.runs))
    damaged = tuple(file for injection in stage.injections for file in injection.damaged)
    found = tuple(injection.problem for injection in stage.injections if injection.problem)
    outcome = Outcome(evidence, damaged, found, same_repliers=scenario.policy == "wait")
    return Play(scenario, outcome, tuple(stage.injections))


def _limit(scenario: Scenario, undisturbed: Evidence) -> float:
    lasting = sum(fault.delay + fault.seconds for fault in scenario.faults)
    given_up = _most_starts(scenario.faults) * STALL_SECONDS  # until a run without progress ends, to be started again
    return PATIENCE + TIMES * undisturbed.seconds + lasting + given_up + _deadlines(scenario, undisturbed)


def _most_starts(faults: Sequence[Fault]) -> int:
    """Return how often the command may be started if these faults have begun."""
    return 2 * len(faults) + 2


def _deadlines(scenario: Scenario, undisturbed: Evidence) -> float:
    """Return the seconds of exchanges that go on without a client whose private memory is damaged."""
    if scenario.policy == "wait" or not any((f.kind, f.target) == ("damage", "state") for f in scenario.faults):
        return 0.0
    exchanges = {reply[:2] for reply in undisturbed.replies}
    return len(exchanges) * float(POLICIES[scenario.policy]["deadline"])


def _drive(stage: _Stage, scenario: Scenario, end: float) -> tuple[int | None, ...]:
    """Run the command until it ends without an excuse, or the time is over; returns its exit codes."""
    codes: list[int | None] = []
    stage.federation.start()
    with ThreadPoolExecutor(max(1, len(scenario.faults))) as pool:
        futures = [pool.submit(_inject, stage, fault) for fault in scenario.faults]
        try:
            while _goes_on(stage, codes, end):
                with stage.federation.paused:
                    stage.federation.start()
        finally:
            stage.federation.over.set()
            stage.injections[:] = [future.result() for future in futures]
    return tuple(codes)


def _goes_on(stage: _Stage, codes: list[int | None], end: float) -> bool:
    """Wait until the command ends; returns whether it has to run again."""
    code = stage.federation.wait(end - time.monotonic())
    codes.append(code)
    if run := stage.federation.run_id():
        stage.runs.add(run)
    if code in (None, 0):
        return False
    if any(code in excuses(fault) for fault in stage.begun if fault.kind == "fill"):
        time.sleep(RETRY_SECONDS)
    return any(code in excuses(fault) for fault in stage.begun) and len(codes) < _most_starts(stage.begun)


def _inject(stage: _Stage, fault: Fault) -> Injection:
    """Wait for the fault's time and do it. It is noted before, because it may end the command at once."""
    if not _await_time(stage, fault):
        return Injection(fault, done=False)
    stage.begun.append(fault)
    if stage.net is not None and fault.kind == "peer":
        return Injection(fault, attack(stage.net, stage.federation.run, stage.federation.name, fault) > 0)
    if stage.net is not None and fault.kind in NETWORK_INJECTORS:
        return Injection(fault, NETWORK_INJECTORS[fault.kind](stage.net, fault) > 0)
    return INJECTORS[fault.kind](stage.federation, fault)


def _await_time(stage: _Stage, fault: Fault) -> bool:
    wanted = int(fault.after * stage.total)
    reached = stage.federation.wait_until(
        lambda: wanted == 0 or stage.federation.replies() >= wanted, stage.federation.over.is_set
    )
    return reached and not stage.federation.over.wait(fault.delay)
