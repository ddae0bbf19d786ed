"""What ``fedquilt algorithms``, ``models`` and ``datasets`` list is what there is."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from typing import Any

import pytest
from tests.support.tables import each

from fedquilt_common import cli
from fedquilt_common.algorithms import ALGORITHMS
from fedquilt_common.catalogue.entries import GIVEN, Kind, find_entry, list_entries
from fedquilt_common.datasets import DATASETS
from fedquilt_common.models import MODELS
from fedquilt_common.user_imports import resolve

COMMANDS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "algorithms": ("algorithm", ALGORITHMS),
    "models": ("model", MODELS),
    "datasets": ("data set", DATASETS),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_everything_is_listed_with_a_sentence(command: str) -> None:
    kind, table = COMMANDS[command]
    entries = list_entries(kind)
    assert [entry.name for entry in entries] == list(table)
    for entry in entries:
        assert 10 < len(entry.summary) < 200, entry.name
        assert "\n" not in entry.summary
        assert entry.description.startswith(entry.summary.split()[0]) or entry.name in ("hars", "harb")
        json.dumps(dataclasses.asdict(entry))


def test_every_algorithm_has_its_paper() -> None:
    for entry in list_entries("algorithm"):
        assert entry.paper[0].isupper(), entry
        assert entry.paper[-4:].isdigit(), entry
    assert find_entry("algorithm", "fedavg").paper == (
        'McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017'
    )


@pytest.mark.parametrize(
    ("kind", "name", "paper"),
    [
        ("model", "resnet18", 'He et al., "Deep Residual Learning for Image Recognition", CVPR 2016'),
        ("model", "mlp", ""),
        ("model", "convnet", 'Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021'),
        ("data set", "cifar10", "Krizhevsky, 2009"),
        ("data set", "fashion-mnist", "Xiao, Rasul and Vollgraf, 2017"),
    ],
)
def test_papers_of_models_and_data_sets(kind: Kind, name: str, paper: str) -> None:
    assert find_entry(kind, name).paper == paper


def test_the_paper_is_not_in_the_sentence_too() -> None:
    assert find_entry("model", "resnet18").summary == "ResNet18 for small images"
    for kind, _ in COMMANDS.values():
        assert not [entry.name for entry in list_entries(kind) if entry.paper and entry.paper in entry.summary]


@each(ALGORITHMS)
def test_an_algorithms_fields_are_those_of_its_dataclass(name: str) -> None:
    fields = {field.name: field for field in find_entry("algorithm", name).fields}
    own = {field.name.removesuffix("_"): field for field in dataclasses.fields(ALGORITHMS[name])}
    assert fields.keys() == own.keys()
    required = {key: field.default for key, field in own.items()
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING}  # fmt: skip
    made: Any = ALGORITHMS[name](**dict.fromkeys((own[key].name for key in required), 0.5))
    for key, field in fields.items():
        assert field.required == (key in required)
        if not field.required:
            assert field.default == getattr(made, own[key].name)


@pytest.mark.parametrize("name", MODELS)
def test_a_models_fields_are_the_keywords_of_its_factory(name: str) -> None:
    parameters = {
        key: parameter
        for key, parameter in inspect.signature(resolve(name, MODELS, "model")).parameters.items() if key not in GIVEN
    }  # fmt: skip
    fields = find_entry("model", name).fields
    assert [field.name for field in fields] == list(parameters)
    for field in fields:
        default = parameters[field.name].default
        assert field.required == (default is inspect.Parameter.empty)
        assert field.required or field.default == default
        assert field.type == parameters[field.name].annotation


def test_a_data_set_says_which_files_it_reads() -> None:
    words = find_entry("data set", "fashion-mnist").description
    assert "<FEDQUILT_DATA>/fashion-mnist" in words
    assert find_entry("data set", "digits").fields == ()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_and_one_entry_are_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind, table = COMMANDS[command]
    assert cli.run([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == list(table)
    name = next(iter(table))
    assert cli.run([command, name]) == 0
    shown = capsys.readouterr().out
    description = find_entry(kind, name).description.replace("``", "`")
    assert shown.startswith(f"{name}\n\n{description}\n")


def test_fields_are_printed_as_an_experiment_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["algorithms", "feddyn"]) == 0
    assert "    alpha (required)  (float)\n" in capsys.readouterr().out
    assert cli.run(["models"]) == 0
    assert "Fields: hidden = [100], exits = []" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_json_is_all_of_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, table = COMMANDS[command]
    assert cli.run([command, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(table)
    assert cli.run([command, next(iter(table)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == listed[0]
    assert listed[0].keys() == {"name", "summary", "paper", "fields", "description"}


def test_an_unknown_name_is_answered_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["algorithms", "fedavgg"]) == 4
    assert "algorithm 'fedavgg' is unknown; did you mean 'fedavg'?" in capsys.readouterr().err


def test_no_list_loads_torch_or_the_server() -> None:
    code = (
        f"import sys; from fedquilt_common import cli; codes = [cli.run([command]) for command in {list(COMMANDS)}]; "
        "sys.exit(str([*codes, *(name for name in ('torch', 'sklearn', 'fedquilt_server') if name in sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr == f"{[0] * len(COMMANDS)}\n"
