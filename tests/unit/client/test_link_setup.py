"""Which link an agent simulates."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.memory_transport import MemoryBroker, MemoryTransport

from fedquilt_client.link_setup import link_for_client, wrap_transport
from fedquilt_client.settings import AgentSettings
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.link import Link
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.slow_link import SlowLinkTransport
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Deliver, MqttMessage, Transport, Will

TOPICS = Topics("lab")
PI = AgentSettings("pi", (1, 2), Path("pi"), "lab")
EXPERIMENT = Experiment.model_validate(
    {
        "name": "x", "speedup": 20, "data": {"set": "digits", "clients": 4}, "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"},
        "fleet": [{"clients": 1}, {"clients": 3, "agents": 2, "link": {"rate": 1e5, "mtu": 300}}],
    }
)  # fmt: skip
RUN = RunMessage(run="x-1", experiment=EXPERIMENT.model_dump(mode="json")).encode()


def message(payload: bytes) -> MqttMessage:
    return MqttMessage(TOPICS.run, payload, b"", True, lambda: None)


@pytest.mark.parametrize("client", [1, 2, 3])
def test_the_experiment_gives_a_board_its_link(client: int) -> None:
    assert link_for_client(message(RUN), client) == Link(rate=1e5, mtu=300, speedup=20.0)


def test_a_board_without_a_line_or_a_link_has_none() -> None:
    assert link_for_client(message(RUN), 0) == link_for_client(message(RUN), 99) == Link()


@pytest.mark.parametrize("payload", [b"{}", b"not json", RunMessage(run="x", experiment={"name": 3}).encode()])
def test_what_is_no_run_changes_nothing(payload: bytes) -> None:
    assert link_for_client(message(payload), 1) is None


def test_an_agent_learns_its_link_from_the_run() -> None:
    broker = MemoryBroker()

    def make(deliver: Deliver, will: Will) -> Transport:
        return MemoryTransport(broker, "pi", deliver, will=will)

    linked = wrap_transport("experiment", PI, make)(lambda _: None, Will("gone", b""))
    assert isinstance(linked, SlowLinkTransport)
    linked.connect()
    linked.subscribe([TOPICS.run])
    assert linked.drain(2.0)
    before = linked.max_payload
    broker.publish(TOPICS.run, RUN, b"", True)
    assert (before, linked.max_payload) == (MemoryTransport.max_payload, 172)
    linked.close()


def test_a_link_that_is_none_is_refused() -> None:
    with pytest.raises(ExperimentError, match="write it as"):
        wrap_transport("lora", PI, lambda *_: MemoryTransport(MemoryBroker(), "pi", print))
