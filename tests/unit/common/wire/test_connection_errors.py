"""A lost connection in words: each answer of a broker names its cause and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url
from fedquilt_common.wire.connection_errors import NO_FAREWELL, explain_answer, explain_loss, explain_other_protocol

PLAIN = parse_broker_url("mqtt://lab:1883")
ANN = parse_broker_url("mqtt://ann:secret@lab:1883")
BOARD = parse_broker_url("mqtts://lab").with_files("ca.crt", "tls.crt", "tls.key")


@pytest.mark.parametrize(
    ("code", "refused", "advice"),
    [
        (0x80, True, "Look at the broker's log"),
        (0x84, True, "Use a broker that speaks MQTT 5"),
        (0x85, True, "begin with `fedquilt-`"),
        (0x86, True, "FEDQUILT_BROKER_PASSWORD"),
        (0x87, True, "FEDQUILT_BROKER_PASSWORD"),
        (0x88, False, "overloaded or not ready yet"),
        (0x89, False, "overloaded or not ready yet"),
        (0x8A, True, "banned"),
        (0x8C, True, "no other way to authenticate"),
        (0x95, True, "max_packet_size"),
        (0x97, False, "overloaded"),
        (0x9A, True, "retain_available"),
        (0x9B, True, "max_qos"),
        (0x9C, True, "address of the broker that serves"),
        (0x9D, True, "address of the broker that serves"),
        (0x9F, False, "overloaded"),
    ],
)
def test_each_answer_has_an_advice_and_is_final_or_not(code: int, refused: bool, advice: str) -> None:
    lost = explain_answer(ANN, code, "Name of the code")
    assert lost.reason == "mqtt://lab:1883 refused the connection: Name of the code"
    assert (lost.refused, advice in lost.advice) == (refused, True), lost.advice
    assert "secret" not in lost.reason + lost.advice


@pytest.mark.parametrize(
    ("address", "advice"),
    [
        (PLAIN, "Give a user in the broker's address (mqtt://USER@lab:1883), and its password in"),
        (replace(ANN, password=""), "Give the password of the user 'ann' in FEDQUILT_BROKER_PASSWORD"),
        (ANN, "Correct the user 'ann' in the broker's address, or the password (FEDQUILT_BROKER_PASSWORD)"),
        (BOARD, "Check that the broker knows the user of the certificate tls.crt"),
    ],
)
def test_refused_credentials_are_those_that_were_given(address: BrokerAddress, advice: str) -> None:
    assert explain_answer(address, 0x87, "Not authorized").advice.startswith(advice)


@pytest.mark.parametrize(
    ("address", "reason", "advice"),
    [
        (PLAIN, "mqtt://lab:1883 requires TLS", "Write mqtts://lab:1883, and name the broker's CA with --ca"),
        (BOARD, "mqtts://lab:8883 does not use TLS", "write mqtt://lab:8883, without --ca, --cert and --key"),
    ],
)
def test_the_other_protocol_is_named_with_the_address_to_write(
    address: BrokerAddress, reason: str, advice: str
) -> None:
    lost = explain_other_protocol(address)
    assert (lost.reason, lost.refused) == (reason, True)
    assert advice in lost.advice


def test_a_connection_that_ends_without_an_answer_may_end_otherwise_the_next_time() -> None:
    lost = explain_loss(PLAIN, NO_FAREWELL, "Unspecified error", was_accepted=False, tls_error=None)
    assert (lost.refused, "MQTT 5" in lost.advice) == (False, True)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (0x87, "Correct the user 'ann'"),
        (0x8B, "It may restart"),
        (0x8E, "a copy of this one's state or run folder"),
        (0x95, "max_packet_size"),
        (0x98, "ended it at the broker"),
        (0x8D, "Check that the broker runs"),
    ],
)
def test_the_broker_may_say_why_it_ends_a_connection(code: int, advice: str) -> None:
    lost = explain_loss(ANN, code, "Name of the code", was_accepted=True, tls_error=None)
    assert lost.reason == "connection to mqtt://lab:1883 lost: Name of the code"
    assert advice in lost.advice


@pytest.mark.parametrize("code", [NO_FAREWELL, 0x82])
def test_connections_that_end_at_once_have_other_causes_than_a_restart(code: int) -> None:
    lost = explain_loss(ANN, code, "Protocol error", was_accepted=True, tls_error=None, repeated=True)
    assert "a copy of this one's state or run folder" in lost.advice
    assert "message_size_limit" in lost.advice
