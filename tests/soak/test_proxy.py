"""The proxy between clients and broker: what passes it, and what each fault does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest
from tests.contract.conftest import Broker, MqttSide, Peer, running
from tests.support.mqtt_proxy import CALM, HOST, MqttProxy, Weather, client_identifier, topic_of, with_will_delay

from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.transport import Will

Make = Callable[..., tuple[MqttProxy, MqttSide]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def behind(broker: Broker) -> Iterator[Make]:
    """Starts a proxy and makes clients behind it."""
    with contextlib.ExitStack() as stack:

        def make(weather: Weather = CALM, will_delay: int | None = None) -> tuple[MqttProxy, MqttSide]:
            proxy = MqttProxy(broker.port, weather, will_delay, seed=1)
            proxy.start()
            stack.callback(proxy.close)
            return proxy, stack.enter_context(contextlib.closing(MqttSide(BrokerAddress(HOST, proxy.port))))

        yield make


@pytest.fixture
def direct(broker: Broker) -> Iterator[MqttSide]:
    """Makes clients that bypass the proxy."""
    with contextlib.closing(MqttSide(broker.address)) as side:
        yield side


def named(name: str) -> Callable[[str], bool]:
    return lambda other: other == name


def watch(side: MqttSide, name: str, *filters: str) -> Peer:
    peer = side.peer(f"{name}-watch").connect()
    peer.subscribe(*filters)
    return peer


def test_packets_are_read() -> None:
    connect = bytes.fromhex("101c 00044d515454 05 04 001e 00 0002 6162 05 18 00000014 0001 74 0001 78")
    assert client_identifier(connect) == "ab"
    assert with_will_delay(connect, 1) == connect.replace(bytes.fromhex("1800000014"), bytes.fromhex("1800000001"))
    assert with_will_delay(connect[:9] + b"\0" + connect[10:], 1) == connect[:9] + b"\0" + connect[10:]
    assert topic_of(bytes.fromhex("3206 0002 612f 0001")) == b"a/"
    assert topic_of(bytes.fromhex("4002 0001")) == b""


def test_everything_arrives_in_any_weather(behind: Make, direct: MqttSide) -> None:
    _, side = behind(Weather(delay=0.001, duplicates=0.3, swaps=0.5))
    watcher, sender = watch(direct, "all", "all/#"), side.peer("all").connect()
    for number in range(60):
        assert sender.transport.publish(f"all/{number % 3}", b"%d" % number)
    assert sender.transport.drain(60)
    watcher.inbox.wait(lambda: len(set(watcher.payloads)) == 60)
    watcher.settle()
    payloads = [int(payload) for payload in watcher.payloads]
    assert len(payloads) > 60
    assert payloads != sorted(payloads)
    for topic in range(3):  # within a topic the order holds
        own = [number for number in payloads if number % 3 == topic]
        assert own == sorted(own)


def test_a_cut_hits_one_client_and_lasts(behind: Make) -> None:
    proxy, side = behind()
    one, other = side.peer("one").connect(), side.peer("other").connect()
    with proxy.refusing(named("one")) as cut:
        assert cut == 1
        one.inbox.wait(lambda: len(one.losses) > 1)  # it is refused again
        assert len(one.connections) == 1
    one.inbox.wait(lambda: len(one.connections) == 2)
    assert not other.losses
    assert proxy.names == ["one", "other"]


def test_a_stall_only_delays(behind: Make, direct: MqttSide) -> None:
    proxy, side = behind()
    watcher, sender = watch(direct, "stall", "stall"), side.peer("stall").connect()
    with proxy.stalled(named("stall")) as stalled:
        assert stalled == 1
        assert sender.transport.publish("stall", b"x")
        assert not sender.transport.drain(0.2)
        assert watcher.payloads == []
    assert sender.transport.drain(60)
    watcher.inbox.wait(lambda: watcher.payloads == [b"x"])
    assert not sender.losses


def test_a_swallowed_client_is_lost_to_the_broker_only(behind: Make, direct: MqttSide) -> None:
    proxy, side = behind(will_delay=0)
    watcher = watch(direct, "hole", "hole/will")
    silent = side.peer("hole", will=Will("hole/will", b"gone", delay=20)).connect()
    with proxy.swallowing(named("hole")):
        watcher.inbox.wait(lambda: watcher.payloads == [b"gone"])
        time.sleep(0.1)
        assert not silent.losses
    silent.inbox.wait(lambda: len(silent.connections) == 2)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("fault", ["half_close", "cut_after"])
def test_a_cut_direction_makes_the_client_connect_again(behind: Make, direction: str, fault: str) -> None:
    proxy, side = behind()
    peer = side.peer(f"{fault}-{direction}").connect()
    peer.subscribe("echo")
    if fault == "half_close":
        assert proxy.half_close(named(peer.name), direction) == 1  # type: ignore[arg-type]
    else:
        assert proxy.cut_after(named(peer.name), direction, 100) == 1  # type: ignore[arg-type]
        assert peer.transport.publish("echo", b"x" * 200)
    peer.inbox.wait(lambda: len(peer.connections) == 2)
    peer.publish("echo", b"after")
    peer.inbox.wait(lambda: b"after" in peer.payloads)
