"""A federation in this process, without a broker: its clients, and a coordinator that can crash."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.contract.cases import Case, check_reply

from fedquilt_common.algorithm_api import Algorithm, Learner, Reply, State, Task
from fedquilt_common.algorithms import make_algorithm
from fedquilt_common.datasets import load_dataset
from fedquilt_common.datasets.shares import shares
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.learning_tasks import LearningTask
from fedquilt_common.models import build_model
from fedquilt_common.seeds import derive_seed
from fedquilt_common.submodels.slices import Anatomy, Slice, cut, full_slice
from fedquilt_common.tracing.trace import Blueprint
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


@dataclass(frozen=True)
class Done:
    """A task on which a client has worked, its memory before and after, and its reply."""

    task: Task
    before: dict[str, NDArray[Any]]
    after: dict[str, NDArray[Any]]
    reply: Reply

    def answers(self, task: Task, memory: Mapping[str, NDArray[Any]]) -> bool:
        """Whether the client would begin with the same task and the same memory, to the bit."""
        same = replace(task, arrays={}) == replace(self.task, arrays={})
        return same and raw(task.arrays) == raw(self.task.arrays) and raw(memory) == raw(self.before)


@functools.cache
def workbench(experiment: str) -> Workbench:
    """Return what a coordinator derives from an experiment, given as JSON."""
    return Workbench(Experiment.model_validate_json(experiment))


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
    epochs: int = 2
    memories: dict[tuple[int, ExchangeId], dict[str, NDArray[Any]]] = field(default_factory=dict)
    """Each client's memory after each of its replies."""
    tasks_done: int = 0
    done: dict[tuple[int, ExchangeId], Done] = field(default_factory=dict)
    """The work of another fleet with the same settings; where a task is the same, so is the reply."""

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
            "training": {"epochs": self.epochs, "batch": self.batch, "lr": self.lr, "momentum": 0.9},
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
        return self.bench.blueprint

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
        return workbench(self.experiment.model_dump_json())

    def first_state(self) -> State:
        return self.server_half.init(self._first_model(), self.ctx(0, {}))

    @cached_property
    def server_half(self) -> CheckedAlgorithm:
        """The algorithm as a coordinator runs it."""
        return CheckedAlgorithm(self.algorithm, "contract", self.bench.global_models, "")

    def _first_model(self) -> Arrays:
        return self.learner.init(derive_seed(self.experiment.seed, "model"))

    def do(self, client: int, task: Task, send: Send) -> tuple[Replied, Arrays]:
        """Do one task as a board does it; the memory is stored with the reply."""
        self.tasks_done += 1
        since = send.since.get(client)
        memory = dict(self.memories[client, since]) if since else {}
        if task.slice is not None:
            task = replace(task, arrays=cut(task.arrays, task.slice))
        place = (client, (send.round, send.exchange))
        if place not in self.done or not self.done[place].answers(task, memory):
            self.done[place] = self.work(client, task, (send.round, send.exchange), memory)
        reply, memory = self.done[place].reply, dict(self.done[place].after)
        check_reply(task, reply)
        self.memories[place] = memory
        digest = f"{client}-{send.round}.{send.exchange}"
        event = Replied(
            1.0, f"board-{client}", client, send.round, send.exchange, digest, reply.weight, dict(reply.metrics)
        )
        return event, kept(reply.arrays)

    def work(self, client: int, task: Task, exchange: ExchangeId, memory: dict[str, NDArray[Any]]) -> Done:
        """Let a client work on a task; this changes its memory."""
        before = dict(memory)
        train, test = self.data[client]
        ctx = ClientContext(
            client,
            exchange[0],
            derive_seed(self.experiment.seed, *exchange, client),
            train,
            self.learner,
            memory,
            self.blueprint.anatomy,
            test,
            self.public,
            cramped=self.cramped,
            classes=self.dataset.classes,
            learning_task=self.bench.learning_task,
        )
        return Done(task, before, memory, self.algorithm.work(task, ctx))


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
    return [raw(part) for part in (state.arrays, state.extra)]


def raw(arrays: Arrays) -> dict[str, bytes]:
    return {name: x.tobytes() for name, x in sorted(arrays.items())}
