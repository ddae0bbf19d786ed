"""The documentation names what exists: generated pages are current, commands, keys, links and anchors are valid."""

from __future__ import annotations

import ast
import dataclasses
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.tables import each

from fedquilt_common.algorithm_api import Declaration
from fedquilt_common.algorithms.fedavg import FedAvg
from fedquilt_common.experiment.agent_config import AgentConfig
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.wire.round_messages import RoundMessage
from fedquilt_server.runs.tables import BOARD_COLUMNS
from fedquilt_server.sweep.plan import plan_sweep
from fedquilt_server.sweep.sweep_file import parse_source

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import reference
from command_list import list_commands
from docstrings import read_docstring
from environment_variables import list_variables

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))])
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
EXAMPLES_OF_ERRORS = ("hiden", "trainnig", "fedavgm.py")
"""Pages show these on purpose."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, *languages: str) -> list[str]:
    return [text for _, language, text in FENCE.findall(path.read_text(encoding="utf-8")) if language in languages]


@cache
def generated() -> Mapping[str, str]:
    return reference.pages()


OWN_VARIABLES = {"FEDQUILT_NOISE_KEY", "FEDQUILT_FORK_SERVER"}
"""`simulate` sets them for its processes."""


def test_every_environment_variable_is_on_the_page() -> None:
    sources = [path for folder in ("common", "server", "client") for path in ROOT.glob(f"{folder}/**/*.py")]
    found = {name for path in sources for name in re.findall(r'"(FEDQUILT_[A-Z_]+)"', path.read_text(encoding="utf-8"))}
    assert {one.name for one in list_variables()} == found - OWN_VARIABLES


def test_the_page_of_variables_names_each_command_with_an_option_for_them() -> None:
    readers = {
        (variable, command.name.split()[0])
        for command in list_commands()
        for parameter in command.parameters
        for variable in re.findall(r"environment variable `(\w+)`", parameter.help)
    }
    listed = {
        (one.name, name.split()[0]) for one in list_variables() for name in re.findall("`([a-z ]+)`", one.words[0])
    }
    assert readers
    assert readers <= listed


@pytest.mark.parametrize("name", list(reference.PAGES))
def test_the_reference_is_what_the_code_gives(name: str) -> None:
    path = reference.FOLDER / name
    assert path.exists(), f"run `make docs` and commit docs/reference/{name}"
    assert path.read_text(encoding="utf-8") == generated()[name], f"run `make docs` and commit docs/reference/{name}"


# Commands


OPTIONS = {command.name: {name for p in command.parameters for name in p.names} for command in list_commands()}
WORD = re.compile(r"^[a-z][a-z-]*$")


def commands_in(text: str) -> Iterator[str]:
    """Command lines with fedquilt, in blocks and in `code`, without the word itself and what comes before it."""
    lines = [line for _, language, body in FENCE.findall(text) if language in ("", "sh") for line in joined(body)]
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for line in lines:
        match = re.match(r"\s*(?:sudo |\w+=\S+ )*(?:\S*/)?fedquilt (.+)", line)
        if match:
            yield match[1]


def joined(body: str) -> list[str]:
    """Lines, with those that end in a backslash continued."""
    return body.replace("\\\n", " ").splitlines()


def wrong_in(command: str) -> str:
    """What a command line names that does not exist; "" if all does."""
    words = shlex.split(re.split(r" \|\|? | && | > |; ", command)[0], comments=True)
    if not words or not WORD.match(words[0]):
        return ""  # a placeholder such as COMMAND, or an option of fedquilt itself
    found = next((name for name in (" ".join(words[:2]), words[0]) if name in OPTIONS), None)
    if found is None:
        group = any(name.startswith(f"{words[0]} ") for name in OPTIONS)
        return "" if group and (len(words) == 1 or not WORD.match(words[1])) else f"there is no `fedquilt {command}`"
    own = words[: words.index("--")] if "--" in words else words  # what follows is for another program
    given = [word.partition("=")[0] for word in own if word.startswith("--")]
    unknown = [option for option in given if option not in {*OPTIONS[found], "--help"}]
    return f"`fedquilt {found}` has no {' '.join(unknown)}" if unknown else ""


@each(PAGES, name_of)
def test_commands_and_their_options_exist(path: Path) -> None:
    wrong = [wrong_in(command) for command in commands_in(path.read_text(encoding="utf-8"))]
    assert not [one for one in wrong if one]


def test_the_reader_of_commands_sees_them_all() -> None:
    block = "```sh\nA=b .venv/bin/fedquilt simulate x \\\n  --sett a=b  # --no\n```\n"
    text = f"Run `fedquilt demo --port 1`.\n{block}`fedquilt nope`"
    assert [wrong_in(one) for one in commands_in(text)] == [
        "`fedquilt simulate` has no --sett", "", "there is no `fedquilt nope`",
    ]  # fmt: skip
    assert len(list(commands_in((ROOT / "README.md").read_text(encoding="utf-8")))) > 5


# Experiment keys


def unknown_keys(value: Any, schema: Mapping[str, Any], defs: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Dotted keys in ``value`` that a JSON schema does not have."""
    for choice in schema.get("anyOf", ()):
        schema = choice if "$ref" in choice else schema
    schema = defs[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if isinstance(value, list):
        for item in value:
            yield from unknown_keys(item, schema.get("items", {}), defs, path)
    if isinstance(value, dict) and "properties" in schema:
        for key, inner in value.items():
            if key in schema["properties"]:
                yield from unknown_keys(inner, schema["properties"][key], defs, f"{path}{key}.")
            elif schema.get("additionalProperties") is False:
                yield f"{path}{key}"


@cache
def experiment_schema() -> Mapping[str, Any]:
    return Experiment.model_json_schema()


def read_sweep(block: str) -> None:
    """Check a sweep file whose paths are relative to the root of the project."""
    source = parse_source(block, ROOT / "sweep.yaml")
    assert plan_sweep(source).runs


@each(PAGES, name_of)
def test_keys_in_yaml_exist(path: Path) -> None:
    schema = experiment_schema()
    agent_keys = {field.alias or name for name, field in AgentConfig.model_fields.items()}
    for block in blocks(path, "yaml"):
        found = yaml.safe_load(block)
        if any(word in block for word in EXAMPLES_OF_ERRORS) or not isinstance(found, dict) or set(found) <= agent_keys:
            continue
        if "vary" in found:
            read_sweep(block)
        elif set(found) & set(schema["properties"]):
            assert not list(unknown_keys(found, schema, schema["$defs"])), block


@each(PAGES, name_of)
def test_keys_that_are_set_exist(path: Path) -> None:
    schema = experiment_schema()
    runs = [
        one
        for one in commands_in(path.read_text(encoding="utf-8"))
        if re.match("(simulate|coordinator|sweep deploy/) ?", one)
    ]
    for key in re.findall(r"--set [\"']?([\w.]+)=", "\n".join(runs)):
        value: Any = 0
        for part in reversed(key.split(".")):
            value = [value] if part.isdecimal() else {part: value}
        assert not list(unknown_keys(value, schema, schema["$defs"])), key


# What an algorithm declares


def declaration_section() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.partition("### What an algorithm declares\n")[2].partition("\n### ")[0]


def test_the_declaration_of_fedavg_is_what_fedavg_declares() -> None:
    line = re.compile(r"^declares: ClassVar\[Declaration\] = (.*)$", re.MULTILINE)
    (written,) = line.findall(declaration_section())
    call = ast.parse(written, mode="eval").body
    assert isinstance(call, ast.Call)
    fields = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
    assert Declaration(**fields) == FedAvg.declares


def test_each_field_of_a_declaration_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", declaration_section(), re.MULTILINE)
    assert sorted(rows) == sorted(field.name for field in dataclasses.fields(Declaration))


# Messages and files of the other pages


def test_the_fingerprint_of_the_protocols_example_is_that_of_its_manifest() -> None:
    page = ROOT / "docs" / "protocol.md"
    (text,) = [block for block in blocks(page, "json") if '"tasks":' in block]
    manifest = RoundMessage.model_validate_json(text)
    assert f"the fingerprint is `{manifest.fingerprint(manifest.tasks[0], 0)}`" in page.read_text(encoding="utf-8")


def test_the_columns_of_boards_csv_are_on_the_page_of_the_machine() -> None:
    (row,) = re.findall(
        r"^\| `boards.csv` \| .*$", (ROOT / "docs" / "machine.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [name for name in BOARD_COLUMNS if f"`{name}`" not in row] == []


# Links


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, as git hosts and the documentation site make them."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()) for title in titles]
    return frozenset(slug.strip().replace(" ", "-") for slug in slugs)


def broken_links(path: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", path.read_text(encoding="utf-8")))
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        there = (path.parent / target).resolve() if target else path
        if not there.exists() or (anchor and anchor not in anchors(there)):
            yield f"{target}#{anchor}" if anchor else target


@each(PAGES, name_of)
def test_relative_links_and_anchors_resolve(path: Path) -> None:
    assert not list(broken_links(path))


# The scripts themselves


def test_a_docstring_is_split_into_words_and_arguments() -> None:
    words, arguments = read_docstring(
        """Do it with ``x``.

        Args:
            x: the first,
                over two lines.
            y (int): the second: with a colon.

        Returns:
            Something else.

        The end.
        """
    )
    assert words == "Do it with `x`.\n\nThe end."
    assert arguments == {"x": "the first, over two lines.", "y": "the second: with a colon."}


def test_limits_and_types_are_in_plain_words() -> None:
    keys = experiment_schema()["$defs"]
    chunk, alpha = keys["Wire"]["properties"]["chunk"], keys["Partition"]["properties"]["alpha"]
    assert (reference.type_words(chunk), reference.limits_words(chunk)) == ("size", "at least 32 bytes, at most 256MiB")
    assert reference.type_words(alpha) == "number or null"
    assert reference.limits_words(alpha) == "above 0, at most 1,000,000"
