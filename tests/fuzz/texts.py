"""Targets: the files and options that a person writes."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import AgentConfig, merge_config, parse_clients, read_agent_config
from fedquilt_common.experiment.experiment import dump_experiment
from fedquilt_common.experiment.section import Size
from fedquilt_common.experiment_file import parse_experiment
from fedquilt_common.files.yaml_text import dump_yaml, load_yaml, read_text
from fedquilt_common.wire.broker_url import parse_broker_url
from fedquilt_common.wire.link import parse_link

PLAIN = "{name: x, data: {set: digits, clients: 4}, model: {name: mlp}, algorithm: {name: fedavg}}"
_SIZE: TypeAdapter[int] = TypeAdapter(Size)


def read_yaml(data: bytes, _: Path) -> None:
    """Parse YAML; what was read is read again as it is written."""
    value = load_yaml(data.decode("utf-8", "replace"), "input")
    assert load_yaml(dump_yaml(value), "again") == value


def read_experiment(data: bytes, folder: Path) -> None:
    """Read an experiment file."""
    (folder / "experiment.yaml").write_bytes(data)
    experiment = parse_experiment(read_text(folder / "experiment.yaml"), "input")
    assert parse_experiment(dump_experiment(experiment), "again") == experiment


def read_override(data: bytes, _: Path) -> None:
    """Read the values of ``--set``, one a line."""
    parse_experiment(PLAIN, "input", data.decode("utf-8", "replace").split("\n"))


def read_agent(data: bytes, folder: Path) -> None:
    """Read an agent's configuration file, and its list of clients."""
    (folder / "agent.yaml").write_bytes(data)
    config = merge_config(AgentConfig, "agent", folder / "agent.yaml", {})
    assert read_agent_config(folder / "agent.yaml")["id"] == config.id
    parse_clients(str(config.clients))


def read_broker(data: bytes, _: Path) -> None:
    """Parse a broker's address; the text of the address means the same, and errors hide the password."""
    text = data.decode("utf-8", "replace")
    address = parse_broker_url(text)
    again = parse_broker_url(str(address))
    assert (again.host, again.port, again.tls) == (address.host, address.port, address.tls)
    assert address.password == "" or "@" in text


def read_link(data: bytes, _: Path) -> None:
    """Parse a link."""
    link = parse_link(data.decode("utf-8", "replace"))
    assert parse_link(link.encode()) == link


def read_clients(data: bytes, _: Path) -> None:
    """Parse a list of clients."""
    clients = parse_clients(data.decode("utf-8", "replace"))
    assert list(clients) == sorted(set(clients))


def read_size(data: bytes, _: Path) -> None:
    """Parse a number of bytes such as 256KiB."""
    try:
        _SIZE.validate_python(data.decode("utf-8", "replace"))
    except ValidationError as error:
        raise ExperimentError(str(error)) from None


TARGETS = {
    "yaml": (read_yaml, (ExperimentError,), 4096),
    "experiments": (read_experiment, (ExperimentError,), 4096),
    "overrides": (read_override, (ExperimentError,), 512),
    "agent-files": (read_agent, (ExperimentError,), 2048),
    "broker-urls": (read_broker, (ExperimentError,), 512),
    "links": (read_link, (ExperimentError,), 512),
    "client-lists": (read_clients, (ExperimentError,), 512),
    "sizes": (read_size, (ExperimentError,), 512),
}
