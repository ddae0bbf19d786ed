"""A board's power from a topic of its owner's meter, with a real broker."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from fedquilt_client.power import PowerSample
from fedquilt_client.power_programs import ProgramError
from fedquilt_client.power_topic import FRESH_SECONDS, TopicMeter, read_watts
from fedquilt_common.errors import ExperimentError, FedquiltError
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.meter_topic import MeterTopic, parse_meter_topic
from fedquilt_common.wire.transport import Crashed

if TYPE_CHECKING:
    from tests.unit.client.conftest import Peer

TASMOTA = json.dumps({"Time": "2026-11-22T23:00:00", "ENERGY": {"Total": 1.5, "Power": 4.25, "Phases": [1.0, 3.25]}})


@pytest.mark.parametrize(
    ("url", "host", "port", "topic", "keys"),
    [
        ("mqtt://home/plug/watts", "home", 1883, "plug/watts", ()),
        ("mqtt://home:1884/tele/plug/SENSOR#ENERGY.Power", "home", 1884, "tele/plug/SENSOR", ("ENERGY", "Power")),
        ("mqtts://me:secret@[::1]/a%20plug", "::1", 8883, "a plug", ()),
        ("mqtt://home//leading/", "home", 1883, "/leading/", ()),
    ],
)
def test_a_topic_is_a_url(url: str, host: str, port: int, topic: str, keys: tuple[str, ...]) -> None:
    found = parse_meter_topic(url)
    assert (found.address.host, found.address.port, found.topic, found.keys) == (host, port, topic, keys)


@pytest.mark.parametrize(
    "url", ["", "plug", "mqtt://home", "mqtt://home/", "mqtt://home/plug/#.a", "mqtt://home/+/x", "http://home/plug",
            "mqtt://home/x?y", "mqtt://home:0/x", "mqtt://me:secret@home/"],
)  # fmt: skip
def test_another_text_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ExperimentError, match=r"power-topic .* write mqtt://") as raised:
        parse_meter_topic(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("payload", "keys", "watts"),
    [("4.2", "", 4.2), (" 4.2 W\n", "", 4.2), (TASMOTA, "ENERGY.Power", 4.25), (TASMOTA, "ENERGY.Phases.1", 3.25)],
)
def test_watts_in_a_message(payload: str, keys: str, watts: float) -> None:
    assert read_watts(payload.encode(), keys.split(".") if keys else ()) == watts


@pytest.mark.parametrize(
    ("payload", "keys"),
    [(b"", ""), (b"on", ""), (b"-1", ""), (b"nan", ""), (b"9999", ""), (b"\xff", ""), (b"{}", "a"), (b"[1]", "7"),
     (b"{", "a"), (b"[" * 100_000, "a"), (b'{"a": true}', "a"), (b'{"a": null}', "a"), (b"7", "a")],
)  # fmt: skip
def test_a_message_without_watts_is_no_figure(payload: bytes, keys: str) -> None:
    with pytest.raises(ProgramError):
        read_watts(payload, keys.split(".") if keys else ())


def test_the_newest_figure_counts_until_it_is_old(
    peer: Peer, wait_for: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    topic = f"plug/{peer.topics.federation}"
    meter = TopicMeter(MeterTopic(BrokerAddress("127.0.0.1", peer.port), topic, ("P",)), lambda: now[0])
    assert meter.read() is None
    with caplog.at_level(logging.WARNING):
        meter.start()
        peer.publish(topic, b'{"P": 4.5}')
        assert wait_for(meter.read, "a figure") == PowerSample(4.5)
        for payload in (b"broken", b"{}", b'{"P": 5.5}'):
            peer.publish(topic, payload, retain=False)
        wait_for(lambda: meter.read() == PowerSample(5.5), "the next figure")
        now[0] += FRESH_SECONDS
        assert meter.read() == PowerSample(5.5)
        now[0] += 1
        assert meter.read() is None
        meter.close()
    assert [record.message for record in caplog.records if "no power figure" in record.message] == [
        f"no power figure from the topic {topic} at mqtt://127.0.0.1:{peer.port}: "
        "P is no power in watts from 0 to 5000 in 'broken'"
    ]


def test_the_end_of_the_network_thread_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    meter = TopicMeter(MeterTopic(BrokerAddress("127.0.0.1", 1), "plug"))
    meter._take(Crashed(FedquiltError("the connection ended because of an unforeseen error")))
    assert "no power figure from the topic plug at mqtt://127.0.0.1:1: the connection ended" in caplog.text
