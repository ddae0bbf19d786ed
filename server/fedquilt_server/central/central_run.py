"""Trains a model in one place, and records it in a run folder as a run with one client that has all samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np

from fedquilt_common.aggregation.norm_statistics import use_statistics
from fedquilt_common.algorithm_api import State
from fedquilt_common.datasets.shares import take_samples
from fedquilt_common.errors import ExperimentError, RunFailedError
from fedquilt_common.models.norms import has_static_norm
from fedquilt_common.process.process_memory import gpu_peak_bytes, peak_bytes, reset_gpu_peak, reset_peak
from fedquilt_common.seeds import derive_seed
from fedquilt_common.stored_samples import join_samples
from fedquilt_common.tracing.building import build_on_meta
from fedquilt_common.training.lasting_optimisers import LastingOptimisers
from fedquilt_common.types import Examples
from fedquilt_server.central.plan import CENTRAL, CentralPlan
from fedquilt_server.history.history import History
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.round.events import Event, Replied, Resumed
from fedquilt_server.runs import clock
from fedquilt_server.runs.checkpoints import Checkpoints
from fedquilt_server.runs.journal import StoredCheckpoint, Traffic
from fedquilt_server.runs.result_files import ResultFiles, score_fields, write_model
from fedquilt_server.runs.run_folder import RunFolder
from fedquilt_server.runs.run_results import make_result
from fedquilt_server.status.divergence import DivergenceDetector
from fedquilt_server.status.results import FINISHED, RUNNING, Ending, Result, RoundResult

_EVERYBODY: Final = 0
"""Number of the client that stands for all of them."""
_NO_TRAFFIC: Final = Traffic()


def _check_test_samples(bench: Workbench) -> None:
    """Check that there are samples to test on.

    Raises:
        ExperimentError: there are none, or only the boards have the samples.
    """
    bench.require_samples()
    data = bench.experiment.data
    lack = bench.learning_task.find_lack(bench.dataset.test.y)
    if lack and not data.mixed:
        raise ExperimentError(
            f"data.set = {data.set}: it has no {lack}, on which a training in one place tests; give it some, or "
            "set data.holdout, such as 0.25, and data.mixed to true: it then tests on what the clients keep"
        )


class CentralStoppedError(Exception):
    """A signal has stopped the training; the next start continues after the last finished round."""


class CentralRun:
    """A central training in a folder, created there or resumed.

    A round is a pass over the samples, or several. Its checkpoint has the model and the optimiser's state, and the
    next round starts from there, so a resumed training gives the same bits.

    Args:
        plan: the experiment and its rounds.
        path: the run folder.
        threads: CPU threads of torch; another number gives other bits.

    Attributes:
        folder: lock, journal, blobs, identity.
        ending: how the run ended; it runs until then.
        divergence: follows the rounds' results.

    Raises:
        RunFolderError: the folder holds another experiment's run, or is damaged or cannot be written.
        ExperimentError: the experiment cannot start.
    """

    def __init__(self, plan: CentralPlan, path: Path, threads: int = 1) -> None:
        self.plan, self._threads = plan, threads
        self._bench = Workbench(plan.source)
        _check_test_samples(self._bench)
        self.folder = RunFolder(plan.recorded, path, resume=True)
        with ExitStack() as undo:
            undo.callback(self.folder.release)
            self._checkpoints = Checkpoints(self.folder, self._first_state)
            self.folder.claim()
            self.folder.begin()
            self.ending = FINISHED if self.folder.finished else RUNNING
            if self.done and not self.folder.finished:
                self.folder.continue_clock()
                self.folder.journal.append(Resumed(clock.now()), _NO_TRAFFIC)
            stored = [one for one in self.folder.journal.checkpoints() if one.result]
            finished = [(one.seq, one.at, one.result) for one in stored if one.result]
            self._history = History(path, finished, self.folder.journal.events_after(0))
            self._files = ResultFiles(path, self.result, stale=self.done > 0)
            self.divergence = DivergenceDetector(None if self.folder.finished else self._bench.classes)
            for row in self.rounds:
                self.divergence.take(row)
            undo.pop_all()

    @property
    def done(self) -> int:
        """Number of finished rounds."""
        return self._checkpoints.last.round

    @property
    def rounds(self) -> list[RoundResult]:
        """The finished rounds."""
        return self.folder.journal.results()

    def result(self) -> Result:
        """Return the content of ``result.json`` after the finished rounds."""
        warnings = [self.divergence.warning] if self.divergence.warning else []
        return make_result(self.folder, self._checkpoints.last, self._history, self.ending, warnings)

    def execute(self, should_stop: Callable[[], bool], show: Callable[[RoundResult], None]) -> None:
        """Train the rounds that are left, and write the results.

        Args:
            should_stop: asked between two steps of the training, not while statistics of norms are measured.
            show: called after each round.

        Raises:
            CentralStoppedError: ``should_stop`` has returned True.
            RunFailedError: the training has diverged, and ``on_divergence`` is ``stop``.
            TrainingDivergedError: the loss, a trained number or a statistic of a norm is not finite.
        """
        dropped = "trained without the experiment's privacy" if self.plan.drops_privacy else ""
        self.folder.journal.set_meta("note", "; ".join(text for text in (self._bench.note, dropped) if text))
        self._stop_if_diverged()
        while self.done < self.plan.recorded.rounds:
            show(self._train_round(self.done + 1, should_stop))
            self._stop_if_diverged()
        write_model(self.folder.path, self.folder.blobs.blob(self._checkpoints.last.arrays))
        self.end(FINISHED)
        self.folder.finish()

    def _stop_if_diverged(self) -> None:
        if self.divergence.warning and self.plan.source.on_divergence == "stop":
            raise RunFailedError(f"{self.divergence.warning}. The experiment has on_divergence: stop")

    def end(self, ending: Ending) -> None:
        """Record how the run ended.

        Raises:
            RunFolderError: the disk is full or read-only.
        """
        self.ending = ending
        if ending.status in ("finished", "failed", "stopped"):
            text = ending.reason or "All rounds are done"
            self._history.add(ending.status, clock.now(), text, round=self.done)
        self._history.flush(force=True)
        self._files.write([])

    def release(self) -> None:
        """Unlock the folder for other processes."""
        self.folder.release()

    @cached_property
    def _data(self) -> Examples:
        """The training samples of all clients, in client order, with the experiment's noise."""
        bench, data = self._bench, self.plan.source.data
        if data.sensor_noise is None and not data.mixed:  # the samples can stay in their file
            index = np.concatenate([share.train for share in bench.shares])
            clean = take_samples(bench.dataset, index)
            return Examples(clean.x, bench.changed_labels.apply(index, clean.y))
        parts = [bench.training_samples(client) for client in range(data.clients)]
        return Examples(join_samples([part.x for part in parts]), np.concatenate([part.y for part in parts]))

    @cached_property
    def _test(self) -> Examples:
        """The official test samples; those that the clients keep if the official ones are divided among them."""
        if not self.plan.source.data.mixed:
            return self._bench.dataset.test
        return take_samples(self._bench.dataset, np.concatenate([share.test for share in self._bench.shares]))

    def _first_state(self) -> State:
        self._bench.check()
        return State(self._bench.first_model())

    def _train_round(self, number: int, should_stop: Callable[[], bool]) -> RoundResult:
        """Train one round, evaluate it if that is due, and make it durable."""
        samples, began = len(self._data), clock.now()  # in this order: the data may take long to load
        trained = self._train(number, should_stop)
        seq = self._note(_reply(number, trained, samples))
        started = time.perf_counter()
        state = self._measure(trained.state)
        scores = self._evaluate(state, number)
        evaluated = time.perf_counter() - started
        model, extra = self._checkpoints.write(state)
        now = clock.now()
        row = _row(number, trained.seconds, model.size, max(now - began, 0.0), evaluated, scores)
        stored = StoredCheckpoint(number, seq, model.digest, extra, now, "", row, _NO_TRAFFIC)
        self._checkpoints.save(stored)
        self._checkpoints.clean(())
        self.folder.note_round(number)
        self._history.close_round(row, now)
        if self.divergence.take(row):
            self._history.add("diverged", now, self.divergence.warning, round=number)
        self._files.note_round([])
        return row

    def _train(self, number: int, should_stop: Callable[[], bool]) -> _TrainedRound:
        """Train the passes of a round, from the last checkpoint."""

        def check_stop(_: float) -> None:
            if should_stop():
                raise CentralStoppedError

        check_stop(0.0)
        source, state = self.plan.source, self._checkpoints.read()
        optimiser = {name: np.array(array) for name, array in state.extra.items()}
        learner = self._bench.make_learner(
            source.model, source.training.at_round(number), threads=self._threads, on_progress=check_stop
        )
        data, seed = self._data, derive_seed(source.seed, CENTRAL, number)
        has_peak = reset_peak()
        reset_gpu_peak()
        passes = self.plan.count_passes(number)
        found = replace(learner, lasting=LastingOptimisers(optimiser)).train(
            state.arrays, data, seed=seed, epochs=passes
        )
        peaks = {"memory_peak": peak_bytes() if has_peak else None, "gpu_memory_peak": gpu_peak_bytes()}
        measured = {name: float(peak) for name, peak in peaks.items() if peak is not None}
        return _TrainedRound(State(found.arrays, optimiser), found.seconds, {"loss": found.loss, **measured})

    @cached_property
    def _has_static_norms(self) -> bool:
        return has_static_norm(build_on_meta(self._bench.model_builder(self.plan.source.model)))

    def _measure(self, state: State) -> State:
        """Return a trained state with the statistics of static norms, which training leaves as they were."""
        if not self._has_static_norms:
            return state
        measured = use_statistics(self._bench.learner.statistics(state.arrays, self._data))
        return replace(state, arrays={**state.arrays, **measured})

    def _evaluate(self, state: State, number: int) -> Mapping[str, float]:
        due = self.plan.recorded.evaluates_after(number)
        return self._bench.learner.evaluate(state.arrays, self._test) if due else {}

    def _note(self, event: Event) -> int:
        seq = self.folder.journal.append(event, _NO_TRAFFIC)
        self._history.take(seq, event)
        return seq


@dataclass(frozen=True)
class _TrainedRound:
    """A trained round: the model with the optimiser's state, the seconds of training, and what was measured."""

    state: State
    seconds: float
    metrics: Mapping[str, float]


def _reply(number: int, trained: _TrainedRound, samples: int) -> Replied:
    """Return the event that records a round's training as the reply of the only client."""
    metrics, now = {**trained.metrics, "train_seconds": trained.seconds}, clock.now()
    return Replied(now, CENTRAL, _EVERYBODY, number, 0, "", float(samples), metrics, 0, now)


def _row(
    number: int, training: float, size: int, seconds: float, evaluated: float, scores: Mapping[str, float]
) -> RoundResult:
    """Return the row of a round: one client that sends nothing.

    Args:
        number: the round's number.
        training: seconds of training.
        size: bytes of the model.
        seconds: seconds of the whole round.
        evaluated: seconds of the evaluation.
        scores: what it found.
    """
    training = min(training, seconds)
    return RoundResult(
        round=number, seconds=seconds, train_seconds=training, overhead_seconds=seconds - training,
        sending_seconds=0.0, receiving_seconds=0.0, averaging_seconds=0.0, evaluate_seconds=evaluated,
        bytes_down=0, bytes_up=0, model_bytes=size, clients=1, asked=1, replies=1, late=0, rejected=0, duplicates=0,
        **score_fields(scores),
    )  # fmt: skip
