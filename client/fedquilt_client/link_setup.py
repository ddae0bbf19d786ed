"""The slow link that an agent simulates: from its command line, or from its entry in the experiment's fleet."""

from __future__ import annotations

import json
from collections.abc import Callable

from pydantic import ValidationError

from fedquilt_client.settings import AgentSettings
from fedquilt_common.errors import ProtocolError
from fedquilt_common.experiment.experiment import Experiment, agent_specs
from fedquilt_common.seeds import derive_seed
from fedquilt_common.wire.link import FROM_EXPERIMENT, Link, parse_link
from fedquilt_common.wire.messages import RunMessage
from fedquilt_common.wire.parsing import parse
from fedquilt_common.wire.slow_link import SlowLinkTransport
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Deliver, MakeTransport, MqttMessage, Transport, Will


def wrap_transport(
    text: str, own: AgentSettings, make: MakeTransport, should_stop: Callable[[], bool] = lambda: False
) -> MakeTransport:
    """Put a simulated link in front of a transport.

    Args:
        text: the link, such as ``rate=50,latency=1``; ``experiment`` takes that of the agent's entry in the fleet.
        own: the agent; its name seeds the packets that the link loses.
        make: makes the transport behind the link.
        should_stop: whether the agent waits for the link no longer, because it stops.

    Returns:
        A function that makes the transport with the link.

    Raises:
        ExperimentError: ``text`` does not describe a link.
    """
    from_experiment = text == FROM_EXPERIMENT
    link = Link() if from_experiment else parse_link(text)
    client, topics, seed = min(own.clients), Topics(own.federation), derive_seed("link", own.name)

    def read_link(message: MqttMessage) -> Link | None:
        about_run = from_experiment and message.topic == topics.run and message.payload
        return link_for_client(message, client) if about_run else None

    def make_slow(deliver: Deliver, will: Will) -> Transport:
        return SlowLinkTransport(link, make, deliver, will, seed, read_link, should_stop)

    return make_slow


def link_for_client(message: MqttMessage, client: int) -> Link | None:
    """Return the link of a client's entry in the fleet of the experiment in a ``run`` message.

    The link is unlimited if the client has no entry or its entry has no link; None if the message is not valid.
    """
    try:
        run = parse(RunMessage, message.payload, message.topic)
        experiment = Experiment.model_validate_json(json.dumps(run.experiment))
    except (ProtocolError, ValidationError):
        return None  # the agent reports what is wrong with the message
    specs = agent_specs(experiment.fleet, experiment.speedup)
    return next((spec.link for spec in specs if client in spec.clients and spec.link), Link())
