"""Check what an agent needs: its configuration, and the way to its broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedquilt_common.doctor.broker import check_broker
from fedquilt_common.doctor.check import Check
from fedquilt_common.doctor.settings import CONFIGURATION, check_holder, read_address
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import AgentConfig, merge_config
from fedquilt_common.plurals import counted
from fedquilt_common.wire.broker_url import BrokerAddress
from fedquilt_common.wire.link import FROM_EXPERIMENT, parse_link

_ADVICE: Final = "Correct agent.yaml, or copy it again from the folder boards/NAME of the federation"


def check_agent(settings: Mapping[str, Any]) -> list[Check]:
    """Check an agent's configuration as the agent does at its start, and its way to the broker.

    Args:
        settings: the keys of ``agent.yaml``, with paths that can be opened.
    """
    try:
        config = merge_config(AgentConfig, "agent", None, dict(settings))
        hosted = counted(len(config.hosted), "client")
        _parse_texts(config)
        address = read_address(settings)
    except ExperimentError as error:
        return [Check(CONFIGURATION, "fail", str(error).replace("\n", "; "), _ADVICE)]
    first = Check(CONFIGURATION, "ok", f"{config.id} hosts {hosted}")
    # with `each`, the agent's processes add a number to its name
    return [first, *check_way_to_broker(address, config.federation, "" if config.each else config.id)]


def _parse_texts(config: AgentConfig) -> None:
    """Parse what the agent parses at its start.

    Raises:
        ExperimentError: a text has another form.
    """
    _ = config.own_data
    if config.link not in (None, FROM_EXPERIMENT):
        parse_link(str(config.link))


def check_way_to_broker(address: BrokerAddress | None, federation: str, name: str) -> list[Check]:
    """Check the way to the broker of an agent, or of a machine without one.

    Args:
        address: the broker; None if it is unknown.
        federation: the name space at the broker.
        name: of the agent, which its certificate must have; empty: unknown.
    """
    if address is None:
        advice = "Give its address with --broker, or the file of an agent or a relay with --config"
        return [Check("broker", "warn", "not checked", advice)]
    return [*(check_holder(address, name) if name else []), *check_broker(address, federation)]
