"""No mistake in a file is answered in pydantic's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel, ByteSize, Field, ValidationError
from pydantic_core import core_schema
from tests.support.tables import each

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.agent_config import AgentConfig, merge_config
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.experiment.relay_config import RelayConfig
from fedquilt_common.experiment.section import Count, Section, Size
from fedquilt_common.experiment.sections import FleetLine, Variant
from fedquilt_common.experiment_file import parse_experiment
from fedquilt_common.rejections import PATTERNS, explain, first_problem, list_problems
from fedquilt_common.wire.message_base import Name
from fedquilt_server.provisioning.record import FederationRecord
from fedquilt_server.sweep.manifest import PublishedTable

FOREIGN = re.compile(
    r"Input|should (be|have|match)|valid (integer|string|number|boolean|dict|list|tuple)|permitted|ield required|rror, "
    r"|value_error|instance of|dictionary|[Uu]nable to|None|Datetime|Decimal|[Ff]rozen|Missing|Unexpected|Extra"
)
"""Words of pydantic that no message has."""
BASE = (
    "{name: a, data: {set: digits, clients: 4}, model: {name: mlp}, algorithm: {name: fedavg}, privacy: {epsilon: 8},"
    " fleet: [{clients: 4, privacy: {epsilon: 8}, variants: [{}]}]}"
)


AGENT = {"broker": "b", "id": "a", "clients": "0"}


class Inner(Section):
    size: Size = Size(1)
    pair: Annotated[tuple[Count, Count], Field(strict=False)] | None = None


class Mistaken(Section):
    """One key for each kind of mistake."""

    count: Count = 1
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    most: Annotated[int, Field(le=400_000, multiple_of=2)] = 2
    flag: bool = False
    name: Name = "a"
    text: Annotated[str, Field(min_length=1, max_length=3)] = "a"
    kind: Literal["warn", "stop"] = "warn"
    several: Annotated[list[int], Field(min_length=2, max_length=3)] = [1, 2]  # noqa: RUF012 - as in a model
    either: str | int = 0
    deep: int | list[int | str] = 0
    by_name: dict[str, float] = {}  # noqa: RUF012 - as in a model
    inner: Inner = Inner()


MISTAKES = [
    ("count: x", "count: must be a whole number"),
    ('count: "5"', "count: must be a whole number; remove the quotes"),
    ("count: 1.5", "count: must be a whole number"),
    ("count: true", "count: must be a whole number"),
    ("count: null", "count: must be a whole number"),
    ("count: 0", "count: must be at least 1"),
    ("share: 1", "share: must be below 1"),
    ("share: 0", "share: must be above 0"),
    ("share: .nan", "share: must be a finite number"),
    ("share: [1]", "share: must be a number"),
    ("most: 400001", "most: must be a multiple of 2"),
    ("most: 400002", "most: must be at most 400,000"),
    ("flag: 1", "flag: must be true or false"),
    ("name: a b", "name: must be 1 to 64 letters, digits, '.', '_' and '-', with a letter or digit first"),
    ("name: 3", "name: must be text; put it in quotes"),
    ('text: ""', "text: is empty; give at least one character"),
    ("text: long", "text: must have at most 3 characters"),
    ("kind: wrn", "kind: must be 'warn' or 'stop'"),
    ("several: []", "several: is empty; give at least one entry"),
    ("several: [1]", "several: must have at least 2 entries"),
    ("several: [1, 2, 3, 4]", "several: must have at most 3 entries"),
    ("several: [1, x]", "several.1: must be a whole number"),
    ("several: 1", "several: must be a list"),
    ("either: 1.5", "either: must be text or a whole number"),
    ("deep: [1.5]", "deep: must be a whole number"),
    ("by_name: {a: high}", "by_name.a: must be a number"),
    ("by_name: 1", "by_name: must be a section: keys with values"),
    ("inner: 1", "inner: must be a section: keys with values"),
    ("inner: {size: 1kilo}", "inner.size: must be a whole number of bytes or text such as 512MiB"),
    ("inner: {pair: [1]}", "inner.pair.1: is missing; add it"),
    ("inner: {sise: 1}", "inner.sise: unknown key; did you mean 'size'?"),
    ("cuont: 1", "cuont: unknown key; did you mean 'count'?"),
]


@each(MISTAKES, lambda text, words: text)
def test_each_kind_of_mistake_is_named_in_plain_words(text: str, words: str) -> None:
    with pytest.raises(ValidationError) as error:
        Mistaken.model_validate(yaml.safe_load(text))
    problems = [f"{problem.path}: {problem.why}" for problem in list_problems(error.value, Mistaken)]
    assert words in problems
    assert not any(FOREIGN.search(line.partition(": ")[2]) for line in problems)


LIMITS = dict.fromkeys(
    ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "expected", "discriminator", "error",
     "expected_schemes"), 1,
)  # fmt: skip


@each(set(get_args(core_schema.ErrorType)) - {"value_error", "assertion_error"}, str)
def test_no_type_of_error_is_passed_on_as_it_is(kind: str) -> None:
    words = explain({"type": kind, "msg": "Input should be another", "input": "b", "ctx": LIMITS})
    assert words
    assert not FOREIGN.search(words)


def paths(section: type[BaseModel], place: str = "") -> Iterator[str]:
    """Yield the path of every key of a section, and of the sections in it."""
    for name, field in section.model_fields.items():
        yield f"{place}{name}"
        yield from (path for inner in sections_of(field.annotation) for path in paths(inner, f"{place}{name}."))


def sections_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the sections that a key of the experiment takes, without those of lists."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is not tuple:
        yield from (inner for argument in get_args(annotation) for inner in sections_of(argument))


def all_paths() -> Iterator[str]:
    yield from paths(Experiment)
    yield from paths(FleetLine, "fleet.0.")
    yield from paths(Variant, "fleet.0.variants.0.")


WRONG = ('{"a": [1]}', "[[]]", "[true, x, -1]", "true", "-1.5", "2.5", "a b/c", '""', ".nan", "null", "2026-01-31")


@each(all_paths, str)
def test_no_wrong_value_of_a_key_is_answered_in_words_of_pydantic(path: str) -> None:
    answers = [refusal(f"{path}={value}") for value in WRONG]
    assert any(answers)
    assert not [answer for answer in answers if FOREIGN.search(answer)]


def refusal(override: str) -> str:
    """Return why an experiment does not take an override; empty if it does."""
    try:
        parse_experiment(BASE, "f", [override])
    except ExperimentError as error:
        return str(error)
    return ""


@each(lambda: set(re.findall(r'"pattern": "(.*?)"', json.dumps(Experiment.model_json_schema()))), str)
def test_each_form_of_a_text_has_words(pattern: str) -> None:
    assert json.loads(f'"{pattern}"') in {*PATTERNS, ByteSize.byte_string_pattern}


@each(
    [
        {"id": "a b"}, {"clients": 1.5}, {"workers": 0}, {"workers": "many"}, {"kinds": "pi4"}, {"memory": "1kilo"},
        {"profile": "closed"}, {"once": "maybe"}, {"max_epsilon": "nan"}, {"allow_import": 3}, {"broker": None},
    ]
)  # fmt: skip
def test_no_mistake_in_an_agents_settings_is_answered_in_words_of_pydantic(wrong: Any) -> None:
    with pytest.raises(ExperimentError) as error:
        merge_config(AgentConfig, "agent", None, {**AGENT, **wrong})
    assert not FOREIGN.search(str(error.value).partition(" (it is")[0]), str(error.value)


def test_a_misspelt_key_is_named_beside_the_one_that_is_missing() -> None:
    with pytest.raises(ExperimentError) as error:
        merge_config(AgentConfig, "agent", None, {"broker": "b", "id": "a", "client": "0-3"})
    assert "--clients is missing; give it as an option or in --config" in str(error.value)
    assert "client: unknown key; did you mean 'clients'? (it is '0-3')" in str(error.value)


def test_each_mistake_names_the_file_or_the_command_and_the_key_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("broker: b\nid: a\nclients: 3-0\nmax-epsilonn: 3\nmax-delta: '1'\nworkers: 0\n")
    with pytest.raises(ExperimentError) as error:
        merge_config(AgentConfig, "agent", file, {"workers": -1})
    assert sorted(str(error.value).splitlines()) == [
        f"{file}: clients '3-0' are not valid: write them as 0-3 or 0,2,5",
        f"{file}: max-delta: must be a number; remove the quotes (it is '1')",
        f"{file}: max-epsilonn: unknown key; did you mean 'max-epsilon'? (it is 3)",
        "agent: workers: must be at least 1 (it is -1)",
    ]


RELAY = {"broker": "b", "site": "s"}
RECORD = {"name": "a", "hosts": ["b"]}
SITE = {"hosts": ["b"], "connection": "c", "serial": "1", "until": "2030-01-31T12:00:00Z"}


@each(
    [
        *(
            (AgentConfig, {**AGENT, key: True})
            for key in ("workers", "threads", "each", "idle", "max-epsilon", "max-delta", "clients")
        ),
        (RelayConfig, {**RELAY, "boards": {"a": True}}),
        (FederationRecord, {**RECORD, "port": True}),
        (FederationRecord, {**RECORD, "sites": {"s": {**SITE, "port": True}}}),
        (PublishedTable, {"source": "a", "figures": [{"case": {}, "scores": {"last_accuracy": True}}]}),
    ],
    lambda model, values: (model.__name__, values),
)
def test_true_is_no_number_in_any_file(model: type[BaseModel], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="input_value=True"):
        model.model_validate(values)


@each(["1", "name: [1]\nurl: b\nboards: 3", "names: a", "name: a\nboards: {a: {kind: 1, until: soon}}"])
def test_no_mistake_in_a_federations_record_is_answered_in_words_of_pydantic(text: str) -> None:
    with pytest.raises(ValidationError) as error:
        FederationRecord.model_validate(yaml.safe_load(text))
    assert not FOREIGN.search(first_problem(error.value))
