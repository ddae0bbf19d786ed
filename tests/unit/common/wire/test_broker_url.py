"""Broker addresses: which are valid, and how they are printed."""

# ruff: noqa: S105, S106 - the passwords are of the test
from __future__ import annotations

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_common.wire.broker_url import BrokerAddress, parse_broker_url

GOOD = {
    "mqtt://pi": BrokerAddress("pi", 1883),
    "mqtt://pi/": BrokerAddress("pi", 1883),
    "mqtts://pi": BrokerAddress("pi", 8883, tls=True),
    "mqtt://10.0.0.2:11883": BrokerAddress("10.0.0.2", 11883),
    "mqtts://pi:1": BrokerAddress("pi", 1, tls=True),
    "pi": BrokerAddress("pi", 1883),
    "pi.local:1884": BrokerAddress("pi.local", 1884),
    "MQTTS://Pi.Local": BrokerAddress("pi.local", 8883, tls=True),
    "mqtt://[::1]:1884": BrokerAddress("::1", 1884),
    "mqtt://[fe80::1]": BrokerAddress("fe80::1", 1883),
    "mqtt://ann@pi": BrokerAddress("pi", 1883, username="ann"),
    "mqtt://ann:secret@pi:9": BrokerAddress("pi", 9, username="ann", password="secret"),
    "mqtt://a%40b:p%3A%2F%23w@pi": BrokerAddress("pi", 1883, username="a@b", password="p:/#w"),
    "mqtt://ann:p@ss@pi": BrokerAddress("pi", 1883, username="ann", password="p@ss"),
}


@pytest.mark.parametrize("url", GOOD)
def test_what_is_understood(url: str) -> None:
    assert parse_broker_url(url) == GOOD[url]


BAD = [
    "",
    "mqtt://",
    "mqtt://:1883",
    "mqtt://ann@",
    "http://pi",
    "tcp://pi:1883",
    "ws://pi",
    "mqtt://pi:0",
    "mqtt://pi:65536",
    "mqtt://pi:-1",
    "mqtt://pi:port",
    "mqtt://pi/topic",
    "mqtt://pi?x=1",
    "mqtt://pi#x",
    "mqtt://ann:12#34@pi",  # read as host 'ann', port 12 by a careless parser
    "mqtt://[::1",
]


@pytest.mark.parametrize("url", BAD)
def test_what_is_not(url: str) -> None:
    with pytest.raises(ExperimentError, match=r"write mqtt://host\[:1883\]"):
        parse_broker_url(url)


@pytest.mark.parametrize("url", ["mqtt://pi:1883", "mqtts://pi:8883", "mqtt://[::1]:1884"])
def test_an_address_prints_as_a_url(url: str) -> None:
    address = parse_broker_url(url)
    assert str(address) == url
    assert parse_broker_url(str(address)) == address


def test_the_password_is_never_printed() -> None:
    address = parse_broker_url("mqtts://ann:tell-nobody@pi")
    assert "tell-nobody" not in f"{address} {address!r} {address.with_files('ca', '', '')!r}"


def test_files_need_tls() -> None:
    secure = parse_broker_url("mqtts://pi").with_files("ca.pem", "me.pem", "me.key")
    assert (secure.ca, secure.cert, secure.key) == ("ca.pem", "me.pem", "me.key")
    plain = parse_broker_url("mqtt://pi")
    assert plain.with_files("", "", "") == plain
    for files in [("a", "", ""), ("", "a", ""), ("", "", "a")]:
        with pytest.raises(ExperimentError, match=r"need an mqtts:// address, not mqtt://pi:1883"):
            plain.with_files(*files)


def test_a_password_from_elsewhere_fills_a_gap_only() -> None:
    assert parse_broker_url("mqtt://ann@pi").with_password("x").password == "x"
    assert parse_broker_url("mqtt://ann:own@pi").with_password("x").password == "own"
    assert parse_broker_url("mqtt://pi").with_password("x").password == ""
