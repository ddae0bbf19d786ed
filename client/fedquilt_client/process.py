"""Runs an agent or a site's relay as a process: logging, the connection, signals, and notifications to systemd."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import Protocol

from fedquilt_client.participant import Participant, ParticipantSettings
from fedquilt_common.process.malloc import return_freed_memory
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.process.watchdog import CountedStop, measure_own_time, report_liveness
from fedquilt_common.wire.broker_url import BROKER_PASSWORD, BrokerAddress, parse_broker_url
from fedquilt_common.wire.client_id import agent_client_id, keep_suffix
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.transport import Deliver, MakeTransport, Transport, Will

MakeParticipant = Callable[[MakeTransport, Callable[[], bool]], Participant]
"""Makes a participant from what makes its connection, and what returns whether the process stops."""


class BrokerKeys(Protocol):
    """The keys of a configuration that describe the broker."""

    @property
    def broker(self) -> str:
        """Its URL."""

    @property
    def ca(self) -> str:
        """File with the certificates to verify it with; empty: those of the system."""

    @property
    def cert(self) -> str:
        """File with the client's certificate; empty without."""

    @property
    def key(self) -> str:
        """File with the certificate's key; empty without."""


def begin_process(config: BrokerKeys) -> BrokerAddress:
    """Log to stderr; returns the broker's address.

    Raises:
        ExperimentError: the broker's URL or files are not valid.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    address = parse_broker_url(config.broker).with_files(config.ca, config.cert, config.key)
    return address.with_password(os.environ.get(BROKER_PASSWORD, ""))


def run_participant(settings: ParticipantSettings, address: BrokerAddress, make: MakeParticipant) -> int:
    """Run a participant until a signal or the end of its run; returns the exit code.

    Args:
        settings: who it is.
        address: of the broker.
        make: makes the participant.
    """

    def connect(deliver: Deliver, will: Will) -> Transport:
        client_id = agent_client_id(settings.federation, settings.name, keep_suffix(settings.state))
        return MqttTransport(address, client_id, deliver, will=will, should_stop=stop)

    return_freed_memory()
    stop = StopSignal()
    turns = CountedStop(stop)
    worked = measure_own_time()
    with report_liveness(lambda: (turns.count, worked())):
        make(connect, stop).execute(turns)
    return stop.exit_code
