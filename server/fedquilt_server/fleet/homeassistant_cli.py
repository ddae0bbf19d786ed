"""The command ``fedquilt homeassistant``: show the boards' sensors in Home Assistant."""

from __future__ import annotations

import logging
import os
import queue
import secrets
import sys
import time
from collections.abc import Mapping
from typing import Annotated, Final

import typer

from fedquilt_common.command_app import CommandApp
from fedquilt_common.errors import BrokerUnreachableError
from fedquilt_common.plurals import counted
from fedquilt_common.process.signals import StopSignal
from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url
from fedquilt_common.wire.client_id import agent_client_id
from fedquilt_common.wire.connection_log import ConnectionLog
from fedquilt_common.wire.mqtt import MqttTransport
from fedquilt_common.wire.topics import HOME_ASSISTANT
from fedquilt_common.wire.transport import Connected, Crashed, Disconnected, Incoming, MqttMessage, Will
from fedquilt_server.fleet.health import BoardHealth
from fedquilt_server.fleet.homeassistant import (
    OFFLINE,
    ONLINE,
    allowed_topics,
    board_messages,
    boards_of,
    bridge_topic,
    own_filters,
)
from fedquilt_server.fleet.listener import FleetListener, user_address
from fedquilt_server.provisioning.cli import HERE, Folder
from fedquilt_server.provisioning.federation import Federation

log = logging.getLogger(__name__)

app = CommandApp()
PASSWORD: Final = "FEDQUILT_HOMEASSISTANT_PASSWORD"  # noqa: S105 - the name of an environment variable
STEP_SECONDS: Final = 0.25
RECORD_SECONDS: Final = 5.0
"""Pause between two looks at all boards and at the federation's record, for boards that were revoked."""
CLEAR_SECONDS: Final = 3.0
"""Seconds that ``--remove`` waits for what the broker had stored."""


class HomeAssistantBridge:
    """Publishes the boards of a federation for Home Assistant, and clears what it published for boards that left it.

    Args:
        federation: the federation.
        address: Home Assistant's broker.

    Raises:
        ExperimentError: the address's files cannot be used.
    """

    def __init__(self, federation: Federation, address: BrokerAddress) -> None:
        self._federation = federation
        self._name = federation.record.name
        self._broker = str(address)
        self._published: dict[str, bytes] = {}
        self._active: set[str] = set()
        self._shown: set[str] | None = None
        self._farewell = OFFLINE
        self._record_due = 0.0
        self._connected = self._ever_connected = False
        self._connection_log = ConnectionLog(log)
        self._events: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
        client_id = agent_client_id(self._name, HOME_ASSISTANT, secrets.token_hex(16))
        will = Will(bridge_topic(self._name), OFFLINE)
        self._transport = MqttTransport(address, client_id, self._events.put, will=will, session_expiry=0)

    def __enter__(self) -> HomeAssistantBridge:
        self._transport.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close((bridge_topic(self._name), self._farewell), end_session=True)

    def update(self, listener: FleetListener, changed: BoardHealth | None, now: float) -> None:
        """Publish a board that has changed; from time to time all boards, and clear what belongs to none any more.

        Args:
            listener: the boards.
            changed: the board that has just changed, if any.
            now: monotonic seconds.

        Raises:
            BrokerUnreachableError: the first connection failed.
        """
        self._take_events()
        if not self._connected or not listener.complete:
            self._record_due = now
        elif now >= self._record_due:
            self._record_due = now + RECORD_SECONDS
            self._publish_all(listener.boards)
        elif changed is not None and changed.board in self._active:
            self._publish_board(changed)

    def _publish_all(self, boards: Mapping[str, BoardHealth]) -> None:
        records = self._federation.record.boards
        self._active = {name for name, record in records.items() if record.revoked is None}
        shown = self._active & set(boards)
        for name in sorted(shown):
            self._publish_board(boards[name])
        self._log_changes(shown, self._clear(allowed_topics(self._name, self._active)))

    def _log_changes(self, shown: set[str], removed: set[str]) -> None:
        """Log which boards are shown, and then each that is added or removed."""
        if self._shown is None:
            log.info("showing %s of %s at %s", describe_boards(shown), self._name, self._broker)
        else:
            for name in sorted(shown - self._shown):
                log.info("added %s", name)
        for name in sorted(removed | (self._shown or set()) - shown):
            log.info("removed %s", name)
        self._shown = shown

    def remove(self, seconds: float) -> set[str]:
        """Clear everything that was published for the federation, and return the boards that were removed.

        Args:
            seconds: how long to wait for what the broker had stored, once connected.

        Raises:
            BrokerUnreachableError: the connection failed.
        """
        self._farewell = b""
        while not self._connected:
            self._take_events(STEP_SECONDS)
        removed: set[str] = set()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._take_events(STEP_SECONDS)
            removed |= self._clear(set())
        return removed

    def _clear(self, allowed: set[str]) -> set[str]:
        """Clear every other topic, and return the boards of these topics."""
        cleared = [
            topic for topic in set(self._published) - allowed if self._transport.publish(topic, b"", retain=True)
        ]
        for topic in cleared:
            del self._published[topic]
        return boards_of(self._name, cleared)

    def _publish_board(self, board: BoardHealth) -> None:
        for topic, payload in board_messages(self._name, board).items():
            if self._published.get(topic) != payload and self._transport.publish(topic, payload, retain=True):
                self._published[topic] = payload

    def _take_events(self, timeout: float = 0.0) -> None:
        """Take what has arrived; wait for the first event up to ``timeout`` seconds.

        Raises:
            BrokerUnreachableError: the first connection failed.
        """
        try:
            while True:
                self._take(self._events.get(timeout=timeout) if timeout else self._events.get_nowait())
                timeout = 0.0
        except queue.Empty:
            return

    def _take(self, event: Incoming) -> None:
        match event:
            case MqttMessage():
                event.ack()
                if event.retained and event.payload:  # of an earlier start
                    self._published.setdefault(event.topic, event.payload)
            case Connected():
                self._connected = self._ever_connected = True
                self._connection_log.note_connected()
                self._published.clear()  # the broker may have lost it
                self._transport.subscribe(own_filters(self._name))
                self._transport.publish(bridge_topic(self._name), ONLINE, retain=True)
            case Disconnected():
                self._connected = False
                if not self._ever_connected:
                    raise BrokerUnreachableError(f"{event.reason}. {event.advice}")
                self._connection_log.note_lost(event)
            case Crashed():
                raise event.error


def describe_boards(names: set[str]) -> str:
    """Return the number and the names of boards, such as ``2 boards (desk, kitchen)``."""
    number = counted(len(names), "board")
    return f"{number} ({', '.join(sorted(names))})" if names else number


@app.callback()
def group() -> None:
    """Group the commands, so that typer keeps ``homeassistant`` as a sub-command."""


@app.command()
def homeassistant(
    folder: Folder = HERE,
    to: Annotated[
        str, typer.Option(help="Broker of Home Assistant, such as mqtt://user@ha.local.", show_default="--broker")
    ] = "",
    ca: Annotated[str, typer.Option(help="With --to mqtts://...: CA certificates (PEM) to verify it with.")] = "",
    broker: Annotated[
        str, typer.Option(help="The federation's broker.", show_default="the one that the boards use")
    ] = "",
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the federation's boards from Home Assistant, and end.")
    ] = False,
) -> None:
    """Show the boards and their sensors in Home Assistant, through its MQTT discovery. Press Ctrl-C to stop.

    You can give the password of --to in FEDQUILT_HOMEASSISTANT_PASSWORD instead of the URL.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    federation, stop = Federation(folder), StopSignal()
    with HomeAssistantBridge(federation, _target(federation, to, ca, broker)) as bridge:
        if remove:
            removed = bridge.remove(CLEAR_SECONDS)
            typer.echo(f"Removed {describe_boards(removed)}." if removed else "There was no board to remove.")
            return
        with FleetListener(federation, broker) as listener:
            while not stop():
                changed = listener.take(STEP_SECONDS, time.time())
                bridge.update(listener, changed, time.monotonic())
    raise typer.Exit(stop.exit_code)


def _target(federation: Federation, to: str, ca: str, broker: str) -> BrokerAddress:
    """Return the broker of Home Assistant: another one, or the federation's with the identity ``homeassistant``."""
    if not to:
        return user_address(federation, HOME_ASSISTANT, broker)
    return parse_broker_url(to).with_files(ca, "", "").with_password(os.environ.get(PASSWORD, ""))


def run(arguments: list[str]) -> None:
    """Run ``fedquilt homeassistant`` with these arguments."""
    app(arguments, prog_name="fedquilt")
