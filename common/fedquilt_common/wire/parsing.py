"""Parse and check the control messages that arrive: their size, their version and their fields."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from fedquilt_common.errors import PayloadError, ProtocolVersionError
from fedquilt_common.rejections import first_problem
from fedquilt_common.terminal_text import printable
from fedquilt_common.wire.message_base import PROTOCOL, WireMessage
from fedquilt_common.wire.messages import (
    FailedMessage,
    MissingMessage,
    NoticeMessage,
    ReceiptMessage,
    StopMessage,
    Telemetry,
)
from fedquilt_common.wire.texts import shorten_text

MAX_MESSAGE: Final = 8 * 1024 * 1024
"""Largest control message in bytes; a round with 10,000 clients is smaller."""

InboxMessage = Annotated[ReceiptMessage | MissingMessage | StopMessage, Field(discriminator="type")]
_INBOX: TypeAdapter[ReceiptMessage | MissingMessage | StopMessage] = TypeAdapter(InboxMessage)
_M = TypeVar("_M", bound=WireMessage)


def parse(model: type[_M], payload: bytes, topic: str) -> _M:
    """Parse a message of type ``model``.

    Args:
        model: the message's class.
        payload: JSON.
        topic: where it was received, for messages.

    Raises:
        ProtocolVersionError: the sender uses a newer protocol.
        PayloadError: the bytes are not such a message; the text names the topic and the field.
    """
    _read_object(payload, topic)
    try:
        return model.model_validate_json(payload)
    except ValidationError as error:
        raise PayloadError(_explain(error, topic)) from None


def parse_inbox(payload: bytes, topic: str) -> ReceiptMessage | MissingMessage | StopMessage:
    """Parse one of the three inbox messages; raises the errors of ``parse``."""
    _read_object(payload, topic)
    try:
        return _INBOX.validate_json(payload)
    except ValidationError as error:
        raise PayloadError(_explain(error, topic)) from None


def parse_telemetry(payload: bytes, topic: str) -> Telemetry | FailedMessage | NoticeMessage:
    """Parse one of the three messages on a telemetry topic; raises the errors of ``parse``."""
    kind = _read_object(payload, topic).get("type")
    if kind == "failed":
        return parse(FailedMessage, payload, topic)
    return parse(NoticeMessage, payload, topic) if kind == "notice" else parse(Telemetry, payload, topic)


def _read_object(payload: bytes, topic: str) -> dict[str, Any]:
    if len(payload) > MAX_MESSAGE:
        raise PayloadError(f"message on {topic} has {len(payload)} bytes; the limit is {MAX_MESSAGE}")
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError):
        raise PayloadError(f"message on {topic} is not JSON") from None
    if not isinstance(body, dict):
        raise PayloadError(f"message on {topic} is not a JSON object")
    version = body.get("v")
    if isinstance(version, int) and version > PROTOCOL:
        raise ProtocolVersionError(
            f"message on {topic} has protocol version {version}, this program supports {PROTOCOL}: "
            "install the same fedquilt version on coordinator and boards"
        )
    if type(version) is not int or version < 1:
        raise PayloadError(f"message on {topic} has no valid protocol version 'v'")
    return body


def _explain(error: ValidationError, topic: str) -> str:
    return printable(shorten_text(f"message on {topic}: {first_problem(error, 'message')}"))  # a key can be any text
