"""Drives the machine: journals each event, passes it to the machine, and executes the commands."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from fedquilt_common.errors import FedquiltError, PayloadError, RunFailedError, SpoiledSumError
from fedquilt_common.wire.transport import Transport
from fedquilt_server.coordinator.display import StatusUpdater
from fedquilt_server.coordinator.downlink import Downlink
from fedquilt_server.coordinator.earlier_tasks import EarlierTasks
from fedquilt_server.coordinator.expected_replies import expected_replies, largest_reply_units, task_layouts
from fedquilt_server.coordinator.ledger import Ledger
from fedquilt_server.coordinator.publications import plan_publications
from fedquilt_server.coordinator.rate_limit import RateLimit
from fedquilt_server.coordinator.receipts import ReceiptPublisher
from fedquilt_server.coordinator.uplink import Uplink
from fedquilt_server.history.event_book import describe_deadline, describe_skip
from fedquilt_server.round.events import (
    Checkpoint,
    Command,
    Event,
    Finish,
    Joined,
    Receipt,
    Replied,
    Send,
    Stop,
    Ticked,
    skip_dropped,
)
from fedquilt_server.runs import clock
from fedquilt_server.runs.blob_store import DamagedReplyError
from fedquilt_server.runs.evaluation import EvaluationCall, OverlappedEvaluation, evaluate
from fedquilt_server.runs.run import ActiveRun
from fedquilt_server.status.results import RoundResult

log = logging.getLogger(__name__)

Damage = DamagedReplyError | SpoiledSumError
"""Why a round starts again."""

DRAIN_SECONDS: Final = 60.0
"""How long the coordinator waits for the broker to take what it published."""


class Driver:
    """The only caller of ``Machine.handle`` and ``Machine.proceed`` in a coordinator.

    ``ActiveRun`` calls ``Machine.restore``, and ``Uplink`` asks ``Machine.judge`` about replies that cannot count.

    Args:
        uplink: receives the expected replies of each exchange; it records the replies with ``record``.
    """

    def __init__(
        self,
        run: ActiveRun,
        transport: Transport,
        downlink: Downlink,
        uplink: Uplink,
        receipts: ReceiptPublisher,
        display: StatusUpdater,
        limit: RateLimit,
        ledger: Ledger,
    ) -> None:
        self._run = run
        self._machine = run.machine
        self._transport = transport
        self._downlink = downlink
        self._uplink = uplink
        self._receipts = receipts
        self._display = display
        self._limit = limit
        self._ledger = ledger
        self._earlier = EarlierTasks(run.folder.journal)
        self._evaluation = OverlappedEvaluation()
        self._needs_cleaning = True  # an earlier process may have ended before it deleted anything

    def record(self, *events: Event) -> None:
        """Journal events together; then pass each to the machine, and execute its commands, in this order.

        If a reply turns out to be damaged on disk when the exchange closes, or what clients sent spoils a masked sum,
        the round starts again. The replies that came with it are dropped, as a recovery drops them; agents send them
        again.

        Args:
            events: one, or several replies.

        Raises:
            RunFailedError: the algorithm cannot close the round.
        """
        waiting = deque(self._run.append_all(events))
        while waiting:
            seq, event = waiting.popleft()
            self._run.history.take(seq, event)  # an event before it may have closed the round of the history
            try:
                commands = self._handle(seq, event)
            except (DamagedReplyError, SpoiledSumError) as damage:
                for dropped in waiting:
                    self._run.history.take(*dropped)
                return self._restart_round(damage)
            if isinstance(event, Replied):
                self._uplink.settle(event)
            elif isinstance(event, Joined):
                self._run.note_kind(event.profile.kind)
            self._carry_out(seq, commands)
        self._receipts.flush()
        return self._display.show_waiting(self._machine)

    def recover(self) -> None:
        """Handle the journal's events since the last checkpoint again, then reopen an open exchange."""
        commands = self._run.restore()
        self._display.show_restored(self._machine, clock.now())
        self._evaluate_again()
        self._replay(self._run.checkpoints.last.seq, self._count_sends(commands))
        damage = self._replay_events()
        if damage is not None:
            self._restart_round(damage, replaying=True)
        self._display.show_waiting(self._machine)
        if self._run.folder.epoch > 1 and not self._machine.finished:
            self.record(self._run.resumed_event())

    def _evaluate_again(self) -> None:
        """Evaluate the last finished round if an earlier process ended before it had."""
        last = self._run.checkpoints.last
        if last.result is not None and last.result.awaits_scores:
            evaluation = self._machine.evaluation_of(self._run.checkpoints.read(), last.round)
            self._publish_row(self._run.add_scores(evaluate(evaluation)))

    def _replay_events(self) -> Damage | None:
        """Handle the events again; returns the first damage, after which no reply and no tick is handled."""
        damage: Damage | None = None
        for seq, event in skip_dropped(list(self._run.events_since_checkpoint())):
            if damage is not None and isinstance(event, Replied | Ticked):
                continue
            try:
                self._verify(event)
                self._replay(seq, self._handle(seq, event))
            except (DamagedReplyError, SpoiledSumError) as found:
                damage = found
        return damage or self._find_torn_sum()

    def _find_torn_sum(self) -> DamagedReplyError | None:
        """Return a partial sum of the open exchange if the journal has lost some of its members; None without one."""
        exchange = self._machine.exchange
        try:
            self._run.folder.blobs.check_sums(exchange.replies.values() if exchange is not None else ())
        except DamagedReplyError as found:
            return found
        return None

    def _verify(self, event: Event) -> None:
        """Verify the file of a reply that the machine will accept.

        Raises:
            DamagedReplyError: it is damaged or missing.
        """
        if isinstance(event, Replied) and not event.more:  # the last member of a sum stands for all
            outcome, _ = self._machine.judge(event.client, event.round, event.exchange)
            if outcome == "accepted":
                self._run.folder.blobs.verify(event)

    def _restart_round(self, damage: Damage, *, replaying: bool = False) -> None:
        """Journal that the open round starts again because of a damaged reply or a spoiled sum, and open it.

        Raises:
            RunFailedError: a sum is spoiled, and the run cannot go on without those who did it.
        """
        log.warning("round %d starts again: %s", self._machine.round, damage)
        self._receipts.drop_sums()
        if isinstance(damage, DamagedReplyError):
            self._run.folder.blobs.discard(damage)
        guilty = damage.clients if isinstance(damage, SpoiledSumError) else ()
        event = self._machine.restart_event(clock.now(), str(damage), guilty)
        is_lost = not self._machine.policy.can_lose(event.declined)
        if is_lost:
            event = self._machine.restart_event(clock.now(), str(damage))
        if replaying:
            ((seq, _),) = self._run.append_all([event])
            self._run.history.take(seq, event)
            self._replay(seq, self._handle(seq, event))
        else:
            self.record(event)
        if isinstance(damage, SpoiledSumError) and (is_lost or not guilty):
            raise RunFailedError(
                f"round {event.round} cannot be closed: {damage}. Find the board, and revoke or repair it. Then resume "
                "the run: it does the round again"
            )

    def _handle(self, seq: int, event: Event) -> list[Command]:
        """Pass an event to the machine. The time of a step that closes an exchange counts as averaging."""
        before = self._machine.exchange
        was_overdue = before is not None and before.overdue
        closes = self._machine.would_close(event)
        if closes:
            self._receipts.flush()  # evaluation and averaging take a while
        if closes or not isinstance(event, Replied):
            self.take_scores()  # the algorithm may go on with its round, so it must not evaluate
        if closes:
            self._display.show_averaging()
        if isinstance(event, Replied):
            self._run.watch.labels.count_reply(event)
        started = time.perf_counter()
        try:
            commands = self._machine.handle(event)
        except SpoiledSumError:
            raise
        except (PayloadError, ValueError, ArithmeticError) as error:
            raise RunFailedError(f"round {self._machine.round} cannot be closed: {error}") from error
        if goes_on := any(isinstance(command, Checkpoint | Send) for command in commands):
            self._run.watch.averaging += time.perf_counter() - started
        if isinstance(event, Ticked) and before is not None and (goes_on or not was_overdue):
            text = describe_deadline(before, waits=not goes_on)
            self._run.history.add("deadline", event.at, text, seq=seq, exchange=before.number)
        elif closes and before is not None and before.closes_without_failed(self._machine.policy):
            self._run.history.add("skipped", event.at, describe_skip(before), seq=seq, exchange=before.number)
        self._display.show_event(event, self._machine)
        return self._count_sends(commands)

    def _count_sends(self, commands: list[Command]) -> list[Command]:
        """Count the label bytes of each task, whether it is published now or was before a crash."""
        for command in commands:
            if isinstance(command, Send):
                self._run.watch.labels.count_send(command, self._run.experiment.wire.down)
        return commands

    def _replay(self, seq: int, commands: list[Command]) -> None:
        """Execute commands that a crash may have prevented: checkpoints and the end. Messages are sent again later."""
        self._carry_out(seq, commands, replaying=True)

    def _carry_out(self, seq: int, commands: list[Command], *, replaying: bool = False) -> None:
        waiting = deque(commands)
        while waiting:  # not by recursion: many rounds may ask nobody, and each leads to the next one
            command = waiting.popleft()
            if replaying and not self._is_owed(command):
                continue
            if not isinstance(command, Receipt):
                self._receipts.flush()
            match command:
                case Receipt():
                    self._receipts.collect(command)
                case Send():
                    self._send(command)
                case Stop():
                    self._receipts.send_stops(command, self._machine.host_of)
                case Checkpoint():
                    waiting.extendleft(reversed(self._checkpoint(seq, command)))
                case Finish():
                    self.take_scores()
                    self._display.judge_boards(clock.now())
                    self._run.finish(self._display.boards)
                    self._display.show_boards()
        self._clean()

    def _is_owed(self, command: Command) -> bool:
        """Whether a recovery carries out a command of the crashed process; what is not kept, it publishes again later.

        Tasks that go on are published with their exchange, which may have closed with replies of the same commit.
        """
        is_missing = isinstance(command, Send) and command.until is not None and not self._earlier.has(command)
        return is_missing or isinstance(command, Checkpoint | Finish)

    def _send(self, send: Send) -> None:
        run = self._run
        self._limit.reset()
        self._display.show_exchange(send, self._machine)
        with run.watch.time("sending"), report_unsendable(send.round):
            layouts = task_layouts(send.tasks, run.experiment.wire.up)
            self._ledger.open(largest_reply_units(layouts, run.experiment.chunk))
            earlier = self._earlier.select(send.earlier)
            plan, manifests = plan_publications(send.tasks), [one.message for one in earlier]
            message = self._downlink.publish(run.folder.run, send, plan, manifests)
            expected = expected_replies(message, send.tasks, layouts, run.public_digest)
            if send.until is not None:
                self._earlier.add(message, expected)
            for one in earlier:
                expected |= one.expected
            awaited = set(self._machine.awaited)
            self._uplink.open({client: reply for client, reply in expected.items() if client in awaited})
            if self._transport.drain(DRAIN_SECONDS):
                self._downlink.confirm()
        run.traffic.save()
        self._display.show_training()

    def _checkpoint(self, seq: int, done: Checkpoint) -> list[Command]:
        run = self._run
        self._clean()
        self._uplink.close(self._machine.working)
        self.take_scores()  # those of the round before, if this one asked nobody
        with report_unsendable(done.round):
            written = run.write_state(done.state, self._downlink.find_blob(done.state.arrays))
        evaluation = self._machine.evaluation_of(written.state, done.round)
        scores = self._evaluate(done, evaluation)
        saved = run.save_round(seq, done, written, scores, self._display.take_energy())
        self._needs_cleaning = True
        self._earlier.keep(self._machine.working, done.round)
        self._downlink.remember(written.state.arrays, written.travelling)
        if not saved.row.awaits_scores:
            self._publish_row(saved.row)
        commands = self._count_sends(self._machine.proceed(written.state, saved.at))
        if saved.row.awaits_scores:
            self._evaluation.start(evaluation)  # now that the next round is open: both use the algorithm
        return commands

    def _evaluate(self, done: Checkpoint, evaluation: EvaluationCall) -> Mapping[str, float] | None:
        """Return the scores of a finished round; None if they are measured while the next one is open."""
        if not self._run.needs_evaluation(done):
            return done.state.scores
        if self._run.may_overlap(done):
            return None
        self._display.show_evaluating()
        with self._run.watch.time("evaluating"):
            return evaluation()

    def take_scores(self, *, wait: bool = True) -> None:
        """Add the scores that were measured while the open round began to the row of the round before.

        Args:
            wait: wait for the evaluation, if one runs.
        """
        if (found := self._evaluation.take(wait=wait)) is not None:
            self._publish_row(self._run.add_scores(found))

    def _clean(self) -> None:
        """Delete what the last saved round no longer needs, while boards work on the next one: it takes a while."""
        if self._needs_cleaning:
            keep = {*self._downlink.digests, *self._earlier.digests}
            self._run.checkpoints.clean(keep, reuse=not self._machine.finished)
            self._needs_cleaning = False

    def leave(self) -> None:
        """Write what the result files lack, because this process ends; an error loses only one step, and is logged."""
        with log_loss("the last round may lack its scores, which the next start measures then"):
            self.take_scores()
        with log_loss("the health of the boards is that of before"):
            self._display.judge_boards(clock.now())
        with log_loss("the result files lack rounds, and the next start writes them"):
            self._run.result_files.catch_up(self._display.boards)

    def _publish_row(self, row: RoundResult) -> None:
        """Write and show a finished round. Report training that diverges; end the run with ``on_divergence: stop``.

        Raises:
            RunFailedError: the training has diverged, and ``on_divergence`` is ``stop``.
        """
        self._run.result_files.note_round(self._display.boards)
        divergence = self._run.divergence
        if divergence.take(row):
            log.warning("%s", divergence.warning)
            self._run.history.add("diverged", clock.now(), divergence.warning, round=row.round)
        self._display.show_round(row, divergence.warning, self._run.budget.uses)
        self.stop_if_diverged()

    def stop_if_diverged(self) -> None:
        """End a run that has diverged, with ``on_divergence: stop``.

        Raises:
            RunFailedError: the training has diverged, and ``on_divergence`` is ``stop``.
        """
        if self._run.divergence.warning and self._run.experiment.on_divergence == "stop":
            self._clean()
            raise RunFailedError(f"{self._run.divergence.warning}. The experiment has on_divergence: stop")


@contextmanager
def log_loss(loss: str) -> Iterator[None]:
    """Log what an error of the block has lost; whatever the error is, it must not hide why the run ends."""
    try:
        yield
    except Exception as error:
        log.warning("%s: %s", loss, error, exc_info=not isinstance(error, FedquiltError))


@contextmanager
def report_unsendable(round: int) -> Iterator[None]:
    """Report arrays that the experiment's precision cannot hold as a failed run: a restart would repeat it.

    Raises:
        RunFailedError: an array cannot be stored or sent.
    """
    try:
        yield
    except PayloadError as error:
        raise RunFailedError(
            f"round {round}: what the algorithm gives away cannot be sent with the experiment's `wire`: {error}"
        ) from error
