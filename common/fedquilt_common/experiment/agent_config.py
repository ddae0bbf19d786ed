"""An agent's configuration file ``agent.yaml``, which the workstation writes and the board reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.section import MemorySize, Section
from fedquilt_common.files.yaml_text import load_yaml, read_text
from fedquilt_common.rejections import MISSING, Problem, list_problems
from fedquilt_common.wire.message_base import MAX_CLIENTS, Name, Workers
from fedquilt_common.wire.meter_topic import parse_meter_topic

FILES: Final = ("ca", "cert", "key", "state")
"""Keys whose value is a path; a relative path starts at the configuration file's folder."""

_PASSWORD: Final = re.compile(r"(://[^:/@\s]*):[^@\s]*@")
"""User and password in the URL of a broker."""
IDLE_SECONDS: Final = 300.0
"""How long a training process may have no task before its agent ends it; the next task starts another one."""


class AgentConfig(Section):
    """The keys of the file, the same as the options of ``fedquilt agent``."""

    model_config = ConfigDict(populate_by_name=True)

    broker: str
    id: Name
    clients: str | int
    each: int | None = Field(None, ge=1, le=MAX_CLIENTS)
    federation: Name = "default"
    kind: Name = "generic"
    site: Name | None = None
    workers: Workers = 1
    threads: int = Field(1, ge=1, le=1024)
    memory: MemorySize | None = None
    budget: MemorySize | None = None
    profile: Literal["open", "private"] = "open"
    max_epsilon: float | None = Field(None, alias="max-epsilon", gt=0)
    max_delta: float | None = Field(None, alias="max-delta", gt=0, lt=1)
    power_command: str | None = Field(None, alias="power-command")
    power_topic: str | None = Field(None, alias="power-topic")
    machine_agents: int = Field(1, alias="machine-agents", ge=1, le=10_000)
    state: Path | None = Field(default=None, strict=False)
    allow_import: list[str] = Field(default_factory=list, alias="allow-import")
    data: list[str] = Field(default_factory=list)
    ca: str = ""
    cert: str = ""
    key: str = ""
    link: str | None = None
    idle: float = Field(IDLE_SECONDS, gt=0)
    once: bool = False
    relay: bool = False

    @field_validator("clients")
    @classmethod
    def _check_clients(cls, value: str | int) -> str | int:
        try:
            parse_clients(str(value))
        except ExperimentError as error:
            raise ValueError(str(error)) from None
        return value

    @field_validator("power_command")
    @classmethod
    def _check_command(cls, value: str | None) -> str | None:
        try:
            words = [""] if value is None else shlex.split(value)
        except ValueError as error:
            raise ValueError(f"must be a program and its arguments, quoted as in a shell: {error}") from None
        if not words:
            raise ValueError("must be a program and its arguments")
        return value

    @field_validator("power_topic")
    @classmethod
    def _check_topic(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                parse_meter_topic(value)
        except ExperimentError as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _check_meters(self) -> AgentConfig:
        if self.power_command is not None and self.power_topic is not None:
            raise ValueError("--power-command and --power-topic are both given; remove one of the two")
        return self

    @model_validator(mode="after")
    def _check_limit(self) -> AgentConfig:
        if self.max_delta is not None and self.max_epsilon is None:
            raise ValueError("--max-delta limits the delta of --max-epsilon, which is missing; give both")
        return self

    @property
    def hosted(self) -> tuple[int, ...]:
        """The clients that the agent hosts."""
        return parse_clients(str(self.clients))

    @property
    def own_data(self) -> dict[int, str]:
        """File or ``package:factory`` with the samples of a client.

        Raises:
            ExperimentError: ``data`` has another form, or is of a client that the agent does not host.
        """
        own = parse_own_data(self.data)
        for client in own.keys() - set(self.hosted):
            raise ExperimentError(
                f"--data {client}={own[client]}: this agent does not host client {client}; see --clients"
            )
        return own


def read_agent_config(path: Path) -> dict[str, Any]:
    """Read the keys of a configuration file, without checking their values.

    Returns:
        Values by key, with ``_`` for ``-`` in keys, and paths that start at the file's folder.

    Raises:
        ExperimentError: the file cannot be read, or holds no keys.
    """
    values = load_yaml(read_text(path), str(path))
    if not isinstance(values, dict):
        raise ExperimentError(f"{path}: holds no keys; write keys such as broker, id and clients")
    config = {str(key).replace("-", "_"): value for key, value in values.items()}
    paths = {key: str(path.parent / config[key]) for key in FILES if isinstance(config.get(key), str) and config[key]}
    return {**config, **paths}


_Config = TypeVar("_Config", bound=BaseModel)


def merge_config(model: type[_Config], command: str, config: Path | None, options: dict[str, Any]) -> _Config:
    """Return the settings of a command. Options override its configuration file.

    Args:
        model: the settings.
        command: its name, for messages.
        config: the file; None without one.
        options: values by key, with ``_`` for ``-``.

    Raises:
        ExperimentError: the file cannot be read, or a value is missing or not valid; lists every problem, one line
            each, which names the file or the command.
    """
    try:
        return model.model_validate({**(read_agent_config(config) if config else {}), **options})
    except ValidationError as error:
        problems = list_problems(error, model)
        places = [config if config and _is_in_file(problem, options) else command for problem in problems]
        lines = [f"{place}: {describe_mistake(problem)}" for place, problem in zip(places, problems, strict=True)]
        raise ExperimentError("\n".join(lines)) from None


def _is_in_file(problem: Problem, options: Mapping[str, Any]) -> bool:
    """Whether a problem is of a value that no option gives; one of several keys together has no place."""
    key = problem.path.partition(".")[0].replace("-", "_")
    return bool(key) and key not in options and problem.why != MISSING


def describe_mistake(problem: Problem) -> str:
    """Return a problem of a configuration as a sentence; that of the whole configuration without its values."""
    key = problem.path.replace("_", "-")
    if not key or problem.why.startswith(f"{key} "):
        return problem.why
    if problem.why == MISSING:
        return f"--{key} is missing; give it as an option or in --config"
    return _PASSWORD.sub(r"\1:***@", f"{key}: {problem.why} (it is {problem.value!r})")


def parse_own_data(entries: Sequence[str]) -> dict[int, str]:
    """Parse what ``--data`` names: ``["3=/data/mine.csv"]`` -> {3: "/data/mine.csv"}.

    Raises:
        ExperimentError: an entry has another form, or a client has two.
    """
    own: dict[int, str] = {}
    for entry in entries:
        client, _, source = entry.partition("=")
        if not re.fullmatch(r"\d{1,6}", client.strip()) or not source.strip():
            raise ExperimentError(f"data {entry!r} is not valid: write it as 3=/path/of/samples.csv")
        if int(client) in own:
            raise ExperimentError(f"data {entry!r}: client {int(client)} has samples already; give one file a client")
        own[int(client)] = source.strip()
    return own


def parse_clients(text: str) -> tuple[int, ...]:
    """Parse a list of clients: ``0-3,7`` -> (0, 1, 2, 3, 7).

    Raises:
        ExperimentError: the text has another form, or names too many clients.
    """
    clients: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise ExperimentError(f"clients {text!r} are not valid: write them as 0-3 or 0,2,5")
        clients.update(range(first, min(last, first + MAX_CLIENTS) + 1))
        if len(clients) > MAX_CLIENTS:
            raise ExperimentError(f"clients {text!r} are too many; an agent hosts at most {MAX_CLIENTS}")
    return tuple(sorted(clients))
