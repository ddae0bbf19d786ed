"""The contract of every published algorithm: both halves run in this process, without a broker.

A new algorithm needs one entry in ``cases.py``; a test fails until it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.contract.cases import CASES, Case, check_reply
from tests.support.tables import each

from fedquilt_common.algorithm_api import Algorithm, Learner, State, Task, declaration_of
from fedquilt_common.algorithms import ALGORITHMS, make_algorithm
from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.shares import shares
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.learning_tasks import LearningTask
from fedquilt_common.models import build_model
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.slices import Anatomy, Slice, cut, full_slice
from fedquilt_common.tracing.trace import Blueprint, blueprint_for
from fedquilt_common.training.learner import TorchLearner
from fedquilt_common.training.torch_setup import set_up_torch
from fedquilt_common.types import Arrays, Dataset, Examples, ExchangeId, Profile
from fedquilt_server.lab.checked_algorithm import CheckedAlgorithm
from fedquilt_server.lab.context import RoundContext
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.round.events import Checkpoint, Command, Event, Finish, Joined, Replied, Resumed, Send
from fedquilt_server.round.machine import Machine
from fedquilt_server.round.policy import Policy

CLIENTS = 4
FEW = 40
"""Samples that each client trains on where no accuracy matters."""
KINDS = ("strong", "strong", "medium", "weak")
"""Kind of each client's board."""
NAMES = pytest.mark.parametrize("name", sorted(ALGORITHMS))


@dataclass(frozen=True)
class ClientContext:
    """One client's context for one task."""

    client: int
    round: int
    seed: int
    data: Examples
    learner: Learner
    memory: dict[str, NDArray[Any]]
    anatomy: Anatomy
    test: Examples
    public: NDArray[Any]
    lasting_seed: int = 5
    cramped: bool = True
    classes: int = 10
    learning_task: LearningTask = field(kw_only=True)

    def first_model(self) -> Arrays:
        return self.learner.init(derive_seed(3, "model"))

    def fits(self, part: Slice) -> bool:
        """If boards are cramped, half of them have memory for half of the model at most."""
        return not self.cramped or self.client < CLIENTS // 2 or 2 * part.entries <= full_slice(self.anatomy).entries


@dataclass
class Fleet:
    """All clients of an experiment on digits, with their memories."""

    algorithm: Algorithm
    clients: int = CLIENTS
    model: dict[str, Any] = field(default_factory=lambda: Case().model)
    cramped: bool = True
    measures: bool = False
    measures_after: int = 1
    """The first round at whose end the clients evaluate, if they do."""
    public_samples: int | None = None
    data_set: str = "digits"
    lr: float = 0.1
    batch: int = 32
    most: int | None = None
    """Samples that each client trains on at most; None: all of its own."""
    memories: dict[tuple[int, ExchangeId], dict[str, NDArray[Any]]] = field(default_factory=dict)
    """Each client's memory after each of its replies."""
    tasks_done: int = 0

    @cached_property
    def experiment(self) -> Experiment:
        scheme = {"scheme": "dirichlet", "alpha": 0.5} if self.data_set == "digits" else {"scheme": "uniform"}
        raw: dict[str, Any] = {
            "name": "contract",
            "seed": 3,
            "data": {
                "set": self.data_set,
                "clients": self.clients,
                "partition": scheme,
                "public": {"samples": self.public_samples} if self.public_samples else None,
            },
            "model": self.model,
            "algorithm": {"name": "fedavg"},
            "training": {"epochs": 2, "batch": self.batch, "lr": self.lr, "momentum": 0.9},
        }
        return Experiment.model_validate(raw)

    @cached_property
    def dataset(self) -> Dataset:
        return load_dataset(self.data_set, None, ("*",))

    @cached_property
    def learner(self) -> TorchLearner:
        set_up_torch()
        return TorchLearner(
            self.build, self.experiment.training, self.bench.learning_task, blueprint=lambda: self.blueprint
        )  # fmt: skip

    @property
    def build(self) -> Callable[[], Any]:
        data, model = self.dataset, self.experiment.model
        return build_model(model.name, model.params, data.input_shape, data.classes, ("*",))

    @cached_property
    def blueprint(self) -> Blueprint:
        return blueprint_for(self.build, self.dataset.train.x)

    @cached_property
    def data(self) -> list[tuple[Examples, Examples]]:
        """Each client's samples for training and for testing."""
        cut = shares(self.experiment, self.dataset, 0.25)
        train = self.dataset.train
        return [(train.take(share.train[: self.most]), train.take(share.test[: self.most])) for share in cut]

    def ctx(
        self,
        round: int,
        fleet: Mapping[int, Profile],
        opened: float = 0.0,
        working: Mapping[int, tuple[int, int]] | None = None,
    ) -> RoundContext:
        count, measures = self.clients, self.measures and round >= self.measures_after
        return RoundContext(
            round, fleet, self.experiment.seed, 99, count, count, self.bench, measures, working=working or {}
        )

    @property
    def public(self) -> NDArray[Any]:
        """The public samples; empty if the experiment has none."""
        return self.bench.public if self.experiment.data.public else np.zeros(0, np.float32)

    @cached_property
    def bench(self) -> Workbench:
        return Workbench(self.experiment)

    def first_state(self) -> State:
        return self.server_half.init(self._first_model(), self.ctx(0, {}))

    @cached_property
    def server_half(self) -> CheckedAlgorithm:
        """The algorithm as a coordinator runs it."""
        return CheckedAlgorithm(self.algorithm, "contract", self._first_model, "")

    def _first_model(self) -> Arrays:
        return self.learner.init(derive_seed(self.experiment.seed, "model"))

    def do(self, client: int, task: Task, send: Send) -> tuple[Replied, Arrays]:
        """Do one task as a board does it; the memory is stored with the reply."""
        self.tasks_done += 1
        since = send.since.get(client)
        memory = dict(self.memories[client, since]) if since else {}
        seed = derive_seed(self.experiment.seed, send.round, send.exchange, client)
        if task.slice is not None:
            task = replace(task, arrays=cut(task.arrays, task.slice))
        anatomy = self.blueprint.anatomy
        train, test = self.data[client]
        public = self.public
        ctx = ClientContext(
            client,
            send.round,
            seed,
            train,
            self.learner,
            memory,
            anatomy,
            test,
            public,
            cramped=self.cramped,
            classes=self.dataset.classes,
            learning_task=self.bench.learning_task,
        )
        reply = self.algorithm.work(task, ctx)
        check_reply(task, reply)
        self.memories[client, (send.round, send.exchange)] = memory
        digest = f"{client}-{send.round}.{send.exchange}"
        event = Replied(
            1.0, f"board-{client}", client, send.round, send.exchange, digest, reply.weight, dict(reply.metrics)
        )
        return event, kept(reply.arrays)


def kept(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Copy the arrays, as if they were read back from disk."""
    return {name: np.array(x) for name, x in arrays.items()}


@dataclass
class Driver:
    """A coordinator without a broker: journal and checkpoint are in memory, and it can crash."""

    fleet: Fleet
    rounds: int
    pick: Callable[[Iterable[int]], int] = min
    journal: list[Event] = field(default_factory=list)
    replies: dict[str, Arrays] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    finished: bool = False

    def __post_init__(self) -> None:
        self.machine = self._new_machine(self.fleet.first_state(), 0)
        self._sent: dict[ExchangeId, Send] = {}

    def _new_machine(self, state: State, done: int) -> Machine:
        policy = Policy(self.rounds, self.fleet.clients, self.fleet.clients)
        return Machine(self.fleet.server_half, policy, state, self.fleet.ctx, self._load, done, validates=True)

    def _load(self, events: Sequence[Replied]) -> list[Arrays]:
        return [self.replies[event.digest] for event in events]

    def happen(self, event: Event) -> None:
        self.journal.append(event)
        self._carry_out(self.machine.handle(event))

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, Send):
                self._sent[command.round, command.exchange] = command
            elif isinstance(command, Checkpoint):
                state = State(kept(command.state.arrays), kept(command.state.extra))
                self.checkpoint, self.scores = replace(command, state=state), command.state.scores
                self.journal.clear()
                self._carry_out(self.machine.proceed(state, command.at))
            elif isinstance(command, Finish):
                self.finished = True

    def crash(self) -> None:
        """Drop everything except checkpoint and journal, and resume from those."""
        last, events = self.checkpoint, list(self.journal)
        if last is None:
            self.machine = self._new_machine(self.fleet.first_state(), 0)
        else:
            self.machine = self._new_machine(last.state, last.round)
            self.machine.restore(last.snapshot, last.at)
        for event in events:
            self.machine.handle(event)
        self._carry_out(self.machine.handle(Resumed(0.0)))

    def steps(self) -> Iterator[int]:
        """Run to the end; yield a number before each reply."""
        for client in range(self.fleet.clients):
            self.happen(Joined(0.0, f"board-{client}", 1, (client,), profile=Profile(KINDS[client])))
        number = 0
        while not self.finished:
            yield (number := number + 1)
            if self.finished:
                return
            exchange = self.machine.exchange
            assert exchange is not None
            client = self.pick(exchange.missing)
            send = self._sent[exchange.earlier.get(client, exchange.id)]
            event, arrays = self.fleet.do(client, send.tasks[client], send)
            self.replies[event.digest] = arrays
            self.happen(event)

    def run(self, crash_at: Callable[[int], bool] = lambda _: False) -> State:
        for number in self.steps():
            if crash_at(number):
                self.crash()
        return self.machine.state


def make(name: str, fields: Mapping[str, Any]) -> Algorithm:
    return make_algorithm(name, fields, ())


def bits(state: State) -> list[dict[str, bytes]]:
    return [{name: x.tobytes() for name, x in sorted(part.items())} for part in (state.arrays, state.extra)]


def test_every_algorithm_has_its_case() -> None:
    assert CASES.keys() == ALGORITHMS.keys()


@pytest.mark.long
@NAMES
def test_it_learns(name: str) -> None:
    case = CASES[name]
    training: dict[str, Any] = {"batch": case.batch, "lr": case.batch / 320}
    fleet = Fleet(make(name, case.fields), model=case.model, public_samples=case.public, **training)
    fleet.measures, fleet.measures_after = declaration_of(fleet.algorithm).holdout is not None, case.rounds
    before = fleet.algorithm.evaluate(fleet.first_state(), fleet.ctx(0, {})).get("accuracy", 0.0)
    driver = Driver(fleet, case.rounds)
    state = driver.run()
    after = driver.scores or fleet.algorithm.evaluate(state, fleet.ctx(case.rounds, {}))
    assert before < 0.3
    if fleet.measures:
        assert after.get("local_accuracy", 1.0) > case.accuracy - 0.1  # other samples of the same data set
        assert after.get("personal_accuracy", 1.0) > case.personal
        assert after["tested_samples"] == sum(len(test) for _, test in fleet.data)
    if "global_accuracy" not in after:  # there is no global model
        assert "accuracy" not in after or after["accuracy"] == after.get("personal_accuracy", after["accuracy"])
    is_global = {"global_accuracy", "local_accuracy"} & after.keys() or not fleet.measures
    assert after["accuracy"] > (case.accuracy if is_global else case.personal)
    assert any(fleet.memories.values()) == declaration_of(fleet.algorithm).private_memory
    if "global_accuracy" in after:
        assert after["global_accuracy"] == after["accuracy"]
        central = fleet.algorithm.evaluate(state, fleet.ctx(case.rounds, {}))["accuracy"]
        assert abs(after["global_accuracy"] - central) < 0.1  # other samples of the same data set


@NAMES
def test_it_replays_to_the_same_bits_after_a_crash(name: str) -> None:
    """After any event: before the first reply of an exchange, between two, after the last; in any order of arrival."""
    case = CASES[name]
    public = FEW if case.public else None
    settings: dict[str, Any] = {"model": case.model, "measures": True, "public_samples": public, "most": FEW}
    fleet = Fleet(make(name, case.fields), **settings)
    undisturbed = bits(Driver(fleet, 2, max if case.ordered else min).run())
    tasks = fleet.tasks_done
    assert tasks >= CLIENTS
    for crashes in (lambda _: True, lambda number: number % 3 == 0):
        again = Fleet(fleet.algorithm, **settings)
        assert bits(Driver(again, 2, max).run(crashes)) == undisturbed
        assert again.tasks_done == tasks  # no journaled task runs again


@each(ALGORITHMS)
def test_its_case_has_a_degenerate_case_or_states_why_not(name: str) -> None:
    assert (CASES[name].degenerate is None) == bool(CASES[name].why)


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if case.degenerate is not None))
def test_its_degenerate_case_is_fedavg(name: str) -> None:
    case = CASES[name]
    assert case.degenerate is not None
    clients = 1 if case.alone else CLIENTS

    def trained(name: str, fields: Mapping[str, Any]) -> dict[str, bytes]:
        model = {"name": "mlp", "hidden": [32, 32, 32]}
        fleet = Fleet(make(name, fields), clients, model, cramped=False, public_samples=case.public, most=FEW)
        return bits(Driver(fleet, 2).run())[0]

    plain = trained("fedavg", {})
    for fields in (case.degenerate, *case.also_degenerate):
        assert trained(name, fields) == plain
    if case.different is not None:
        assert trained(name, case.different) != plain


def test_fedavg_is_the_mean_weighted_by_samples() -> None:
    fleet = Fleet(make("fedavg", {}))
    driver = Driver(fleet, 1)
    state = driver.run()
    sizes = [len(train) for train, _ in fleet.data]
    assert len(set(sizes)) > 1
    for name, x in state.arrays.items():
        parts = [driver.replies[f"{client}-1.0"][name] for client in range(CLIENTS)]
        np.testing.assert_allclose(x, np.average(parts, axis=0, weights=sizes), rtol=1e-5, atol=1e-7)


def test_fedavg_of_one_client_is_plain_training() -> None:
    fleet = Fleet(make("fedavg", {}), clients=1)
    arrays: Arrays = fleet.first_state().arrays
    for round in (1, 2):
        seed = derive_seed(fleet.experiment.seed, round, 0, 0)
        arrays = kept(fleet.learner.train(arrays, fleet.data[0][0], seed=seed).arrays)
    assert bits(Driver(fleet, 2).run()) == bits(State(arrays))


@each([(name, fields, word) for name, case in CASES.items() for fields, word in case.refused])
def test_it_refuses_senseless_fields(name: str, fields: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word) as error:
        make(name, fields)
    assert next(iter(fields)).removesuffix("_") in str(error.value)
