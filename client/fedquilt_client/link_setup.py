"""The link that an agent is to imitate: one that its user gives, or that of its line in the experiment's fleet."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from pydantic import ValidationError

from fedquilt_common.errors import ProtocolError
from fedquilt_common.experiment.experiment import Experiment, agent_specs
from fedquilt_common.seeds import derive_seed
from fedquilt_common.wire.link import Link, parse_link
from fedquilt_common.wire.messages import RunMessage, parse
from fedquilt_common.wire.slow_link import SlowLinkTransport
from fedquilt_common.wire.topics import Topics
from fedquilt_common.wire.transport import Deliver, MqttMessage, Transport, Will

OF_THE_EXPERIMENT: Final = "experiment"
MakeTransport = Callable[[Deliver, Will], Transport]


def wrap_transport(text: str, name: str, client: int, topics: Topics, make: MakeTransport) -> MakeTransport:
    """``make`` behind the link that ``text`` describes; with ``experiment``, behind that of the client's line.

    Raises ExperimentError where it describes none.
    """
    given = Link() if text == OF_THE_EXPERIMENT else parse_link(text)

    def learn(message: MqttMessage) -> Link | None:
        about_run = text == OF_THE_EXPERIMENT and message.topic == topics.run and message.payload
        return link_for_client(message, client) if about_run else None

    def linked(deliver: Deliver, will: Will) -> Transport:
        return SlowLinkTransport(given, make, deliver, will, derive_seed("link", name), learn)

    return linked


def link_for_client(message: MqttMessage, client: int) -> Link | None:
    """What the experiment in a ``run`` message says of the line that has ``client``; without bounds if nothing."""
    try:
        said = parse(RunMessage, message.payload, message.topic)
        made = Experiment.model_validate_json(json.dumps(said.experiment))
    except (ProtocolError, ValidationError):
        return None  # the agent says what is wrong with it
    specs = agent_specs(made.fleet, made.speedup)
    return next((spec.link for spec in specs if client in spec.clients and spec.link), Link())
