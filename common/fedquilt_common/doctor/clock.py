"""Compare this machine's clock with that of the coordinator, or of another machine."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Final

from fedquilt_common.doctor.check import Check, grade
from fedquilt_common.errors import ProtocolError
from fedquilt_common.wire.messages import CoordinatorPresence
from fedquilt_common.wire.mqtt_limits import RETAINED_EXPIRY
from fedquilt_common.wire.parsing import parse
from fedquilt_common.wire.transport import MqttMessage

WARN_SKEW: Final = 5.0
"""Seconds. Clocks that NTP sets differ by less, and the coordinator's time is known to a second or two."""
SET_CLOCK: Final = "Let NTP set the clock: `sudo timedatectl set-ntp true`"
_LONG: Final = 100.0


def grade_skew(name: str, skew: float, whose: str) -> Check:
    """Grade the seconds by which this machine's clock is ahead of another one.

    A difference is no failure, because a run needs no common time: it only makes the logs hard to compare. TLS needs a
    clock within the validity of the certificates, which other checks test.
    """
    span = f"{abs(skew):.1f} s" if abs(skew) < _LONG else str(timedelta(seconds=round(abs(skew))))
    said = f"this machine's clock is {span} {'ahead of' if skew > 0 else 'behind'} that of {whose}"
    advice = f"The times in the logs of this machine and of the coordinator do not match. {SET_CLOCK}"
    return grade(name, -abs(skew), -WARN_SKEW, -math.inf, said, advice)


def coordinator_time(message: MqttMessage) -> float | None:
    """Return the coordinator's time at the arrival of its presence, in seconds since 1970.

    The presence holds the time of its publication. The broker counts down its Message Expiry Interval, which shows how
    long the broker has retained it.

    Returns:
        None if the message does not hold the time: the coordinator is not connected, or is of an earlier version.
    """
    try:
        presence = parse(CoordinatorPresence, message.payload, message.topic)
    except ProtocolError:
        return None
    if presence.time is None or presence.started is None or message.expires_in is None:
        return None
    return presence.time + (RETAINED_EXPIRY - message.expires_in)
