"""The agent: the process on a board that hosts clients. It gives the board's jobs what concerns them."""

from __future__ import annotations

import time
from typing import Final

from fedquilt_client import hardware
from fedquilt_client.energy import EnergyMeter, EnergyReading
from fedquilt_client.jobs import Jobs
from fedquilt_client.participant import AT_ONCE, STEP_SECONDS, Participant
from fedquilt_client.power import PowerSensor
from fedquilt_client.power_choice import choose_sensor
from fedquilt_client.power_programs import CommandMeter, Stopped
from fedquilt_client.power_topic import TopicMeter
from fedquilt_client.reports import NoticeLimit, failure_message, notice_message, telemetry_message
from fedquilt_client.settings import AgentSettings
from fedquilt_common import __version__
from fedquilt_common.training_jobs import Job
from fedquilt_common.types import ExchangeId
from fedquilt_common.wire.messages import (
    IDLE_TELEMETRY_SECONDS,
    AgentPresence,
    MissingMessage,
    ReceiptMessage,
    RunMessage,
    StopMessage,
    Telemetry,
)
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_common.wire.topics import Address
from fedquilt_common.wire.transport import MakeTransport, MqttMessage

TELEMETRY_SECONDS: Final = 2.0
"""Pause between two telemetry messages during training."""
FAILURE_SECONDS: Final = 30.0
"""Pause between two reports of the same failure."""


class Agent(Participant):
    """One agent.

    Args:
        settings: what the agent hosts, and where it keeps its state.
        make_transport: makes the connection to the broker.
    """

    def __init__(self, settings: AgentSettings, make_transport: MakeTransport) -> None:
        super().__init__(settings, make_transport)
        self.settings = settings
        self._meter = None if settings.private else EnergyMeter(self._find_sensor)
        topic = None if settings.private else settings.power_topic
        self._topic_meter = None if topic is None else TopicMeter(topic)
        self._jobs = Jobs(
            settings, self._store, self._transport, self.topics, self._events.put,
            self._report_failure, self._report_notice, self._meter,
        )  # fmt: skip
        self._notices = NoticeLimit()
        self._repair_at = self._failures_due = AT_ONCE
        self._jobs_seen = 0

    def _start(self) -> None:
        if self._topic_meter is not None:
            self._topic_meter.start()
        if self._meter is not None:
            self._meter.start()

    def _end_work(self) -> None:
        self._jobs.close()

    def _stop(self) -> None:
        if self._meter is not None:
            self._meter.stop()
        if self._topic_meter is not None:
            self._topic_meter.close()

    def _find_sensor(self, stopped: Stopped) -> PowerSensor:
        settings = self.settings
        command = settings.power_command
        meter = self._topic_meter if command is None else CommandMeter(command, stopped)
        return choose_sensor(settings.kind, meter, stopped, agents=settings.machine_agents)

    def _advance(self, now: float) -> None:
        if now >= self._repair_at + STEP_SECONDS:
            self._repair_at = now
            self._jobs.repair(connected=self._connected)
        if self._jobs_seen != self._jobs.started:  # report soon that training has started
            self._jobs_seen = self._jobs.started
            self._telemetry_due = min(self._telemetry_due, now + TELEMETRY_SECONDS)
        if self._connected and self._coordinator_epoch >= 0 and now >= self._failures_due:
            self._failures_due = now + FAILURE_SECONDS
            self._jobs.report_failures()

    # -- what the agent publishes --------------------------------------------------------------

    def _make_presence(self) -> AgentPresence:
        settings = self.settings
        return AgentPresence(
            agent=settings.name,
            online=True,
            boot=self._boot,
            clients=list(settings.clients),
            workers=settings.workers,
            profile=hardware.board_profile(settings.kind, settings.memory, private=settings.private),
            version=__version__,
            instance=self._instance,
            site=settings.site,
        )

    def _make_telemetry(self) -> Telemetry:
        interval = TELEMETRY_SECONDS if self._jobs.busy else IDLE_TELEMETRY_SECONDS
        vitals = hardware.NO_VITALS if self.settings.private else hardware.read_vitals(self._jobs.processes)
        energy = EnergyReading() if self._meter is None else self._meter.reading
        return telemetry_message(self.settings.name, self._boot, vitals, energy, self._jobs.progress, interval)

    def _report_failure(self, run: str, client: int, exchange: ExchangeId, reason: str, declined: bool) -> None:
        message = failure_message(self.settings.name, run, client, exchange, reason, declined=declined)
        self._transport.publish(self.topics.telemetry(self.settings.name), message.encode())

    def _report_notice(self, kind: str, text: str, job: Job, run: str) -> None:
        if self._notices.allows(time.monotonic()):
            message = notice_message(self.settings.name, self._boot, kind, text, job, run)
            self._transport.publish(self.topics.telemetry(self.settings.name), message.encode())

    # -- what the agent receives ---------------------------------------------------------------

    def _take_content(self, address: Address, message: MqttMessage) -> bool:
        if address.kind in ("slices", "soft-labels"):
            self._jobs.take_chunk(address, message)
        elif address.kind == "data":
            self._jobs.take_samples(message)
        else:
            return False
        return True

    def _run_id(self) -> str | None:
        return self._jobs.run

    def _enter_run(self, message: RunMessage) -> None:
        self._jobs.enter_run(message)

    def _leave_run(self) -> None:
        self._jobs.leave_run()

    def _open_round(self, message: RoundMessage, *, retained: bool) -> None:
        self._jobs.open_round(message, retained=retained)

    def _take_inbox(self, message: ReceiptMessage | MissingMessage | StopMessage) -> None:
        self._jobs.take_inbox(message)

    def _reconnect(self, *, session_present: bool) -> None:
        self._jobs.reconnect(session_present)

    def _greet_coordinator(self) -> None:
        self._failures_due = time.monotonic() + FAILURE_SECONDS  # its manifest, which retries what has failed, follows
        self._jobs.greet_coordinator()
