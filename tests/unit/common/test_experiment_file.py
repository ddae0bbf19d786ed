"""The experiment file: accepted keys, defaults, and one message for each mistake with its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.experiments import refusal
from tests.support.tables import each

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import AgentSpec, Experiment, agent_specs, dump_experiment
from fedquilt_common.experiment.sections import FleetLine
from fedquilt_common.experiment_file import load_experiment, parse_experiment
from fedquilt_common.files.yaml_text import dump_yaml, load_yaml

FULL = """
name: digits-fedavg
seed: 7
rounds: 20
data: {set: digits, clients: 8, partition: {scheme: dirichlet, alpha: 0.3}}
model: {name: mlp, hidden: [64, 32]}
algorithm: {name: fedprox, mu: 1e-3}
participation: {per_round: 8, quorum: 6, deadline: 60}
training: {epochs: 2, batch: 16, lr: 5e-2, momentum: 0.9, precision: fp32}
wire: {down: fp16, up: bf16, chunk: 256KiB}
fleet:
  - {kind: strong, agents: 1, clients: 4}
  - {kind: weak, agents: 1, clients: 4, memory: 512MiB, cpus: 0.5}
"""
MINIMAL = "{name: a, data: {set: digits, clients: 3}, model: {name: mlp}, algorithm: {name: fedavg}}"


def test_full_file_is_read() -> None:
    experiment = parse_experiment(FULL, "file.yaml")
    assert experiment.training.lr == 0.05
    assert experiment.participation.quorum == 6
    assert experiment.wire.chunk == 256 * 1024
    assert experiment.fleet[1].memory == 512 * 1024**2
    assert experiment.model.params == {"hidden": [64, 32]}
    assert experiment.algorithm.fields == {"mu": 0.001}


def test_minimal_file_takes_counts_from_the_clients() -> None:
    experiment = parse_experiment(MINIMAL, "file.yaml")
    assert (experiment.participation.per_round, experiment.participation.quorum) == (3, 3)
    assert experiment.fleet == (FleetLine(clients=3),)
    assert experiment.data.partition.scheme == "uniform"


def test_quorum_follows_per_round() -> None:
    assert parse_experiment(MINIMAL, "f", ["participation.per_round=2"]).participation.quorum == 2


@pytest.mark.parametrize(
    ("ratio", "clients", "expected"),
    [(0.1, 80, 8), (0.1, 3, 1), (0.1, 25, 3), (0.29, 50, 15), (0.3, 210, 63), (1, 7, 7), (0.001, 2, 1)],
)
def test_a_ratio_becomes_a_number_of_clients(ratio: float, clients: int, expected: int) -> None:
    read = parse_experiment(MINIMAL, "f", [f"data.clients={clients}", f"participation.ratio={ratio}"]).participation
    assert (read.per_round, read.quorum, read.ratio) == (expected, expected, None)


def test_a_ratio_stands_alone() -> None:
    assert "ratio = 0.5: participation.per_round is given, too" in refusal(FULL, "participation.ratio=0.5")
    for wrong in ("0", "1.5", "true", "half"):
        assert "participation.ratio = " in refusal(MINIMAL, f"participation.ratio={wrong}")


@pytest.mark.parametrize("text", [FULL, MINIMAL, MINIMAL.replace("}}", "}, participation: {ratio: 0.5}}")])
def test_round_trips(text: str) -> None:
    experiment = parse_experiment(text, "file.yaml")
    assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment
    assert parse_experiment(dump_experiment(experiment), "again") == experiment


def test_equal_only_with_equal_extra_fields() -> None:
    assert parse_experiment(MINIMAL, "f", ["model.hidden=[1]"]) != parse_experiment(MINIMAL, "f")


@each(
    [
        ("training.lrr=0.1", "training.lrr = 0.1: unknown key; did you mean 'lr'?"),
        ("zzz=1", "unknown key; choose one of: algorithm, budget, data"),
        ("fleet.1.memry=1GiB", "fleet.1.memry = '1GiB': unknown key; did you mean 'memory'?"),
        ("data.partition.alpah=1", "did you mean 'alpha'?"),
        ('training.epochs="5"', "training.epochs = '5': must be a whole number"),
        ("training.epochs=true", "training.epochs = True"),
        ("training.epochs=5.0", "training.epochs = 5.0"),
        ("training.momentum=false", "training.momentum = False"),
        ("training.momentum=1", "training.momentum = 1: must be below 1"),
        ("training.lr=0", "training.lr = 0: must be above 0"),
        ("training.schedule={kind: steps}", "training.schedule.kind = 'steps': must be 'multi-step' or 'cosine'"),
        ("training.schedule={kind: cosine}", "training.schedule.period: the kind 'cosine' needs it; try 10"),
        ("training.schedule.kindd=x", "training.schedule.kindd = 'x': unknown key; did you mean 'kind'?"),
        ("training.lr=.nan", "training.lr = '.nan'"),
        ("training.lr=1e999", "is too large a number"),
        ("rounds=0", "rounds = 0"),
        ("rounds=1000000000000000000", "rounds = 1000000000000000000: must be at most 1,000,000"),
        ("rounds=1e18", "rounds = 1e+18: must be a whole number"),
        ("training.epochs=1000001", "must be at most 1,000,000"),
        ("training.batch=10000000", "must be at most 1,000,000"),
        ("fleet.0.workers=1025", "must be at most 1,024"),
        ("data.clients=400001", "must be at most 400,000"),
        (
            "algorithm={name: fedrep, body_epochs: 10000000}",
            "algorithm.body_epochs = 10000000: must be at most 1,000,000",
        ),
        (
            "algorithm={name: heterofl, widths: {generic: 0}}",
            "algorithm.widths.generic = 0: give a part of the model above 0 and at most 1",
        ),
        (
            "algorithm={name: heterofl, widths: {pi.4: 0}}",
            "algorithm.widths = {'pi.4': 0}: widths.pi.4 = 0.0: give a part of the model",
        ),
        ("seed=-1", "seed = -1"),
        ("name=a/b", "name = 'a/b'"),
        ("wire.up=int8", "must be 'fp32', 'fp16' or 'bf16'"),
        ("wire.chunk=31", "wire.chunk = 31"),
        ("wire.chunk=257MiB", "wire.chunk = '257MiB'"),
        ("wire.chunk=true", "wire.chunk = True: must be a whole number of bytes"),
        ("wire.chunk=2000.5", "wire.chunk = 2000.5: must be a whole number of bytes"),
        ("data=digits", "data = 'digits': must be a section"),
        ("fleet={kind: weak}", "fleet = {'kind': 'weak'}: must be a list"),
        ("data.partition.alpha=null", "data.partition.alpha: the scheme 'dirichlet' needs it"),
        ("data.partition.scheme=uniform", "the scheme 'uniform' does not use it"),
        ("data.clients=9", "yaml: fleet: the clients of its lines add up to 8, but data.clients is 9; make them equal"),
        (
            "fleet.0={clients: 4, variants: [{}, {}, {}, {}, {}]}",
            "fleet.0.variants: the line has 5 variants for 4 clients; remove those without a client",
        ),
        ("participation.per_round=9", "participation.per_round = 9: there are 8 clients"),
        ("participation.per_round=5", "participation.quorum = 6: only 5 take part"),
        ("fleet.1.agents=5", "fleet.1.agents = 5: the line has only 4 clients"),
        ("fleet=[]", "fleet = []: is empty; give at least one entry"),
        ("fleet.0.fits=[]", "fleet.0.fits = []: is empty; give at least one entry"),
        ("model.name=mpl", "model.name = 'mpl': unknown; did you mean 'mlp'?"),
        ("data.set=digit", "data.set = 'digit': unknown; did you mean 'digits'?"),
        ("algorithm.name=fedpro", "algorithm.name = 'fedpro': unknown; did you mean 'fedprox'?"),
        ("algorithm.muu=1", "algorithm.muu = 1: unknown field; did you mean 'mu'?"),
        ("algorithm.mu=0", "algorithm.mu = 0: mu must be a positive number"),
        ('algorithm.mu="1"', "algorithm.mu = '1': must be a number"),
        ("algorithm={name: feddyn}", "algorithm.alpha: is missing"),
        ("algorithm={name: fedmd, temperature: 3}", "algorithm.temperature = 3: kd_loss mse has none"),
        ("algorithm={name: fedmd, ranges: tensor}", "algorithm.ranges = 'tensor': only compressed labels have it"),
        ("algorithm={name: adaptivefl, levels: {L: 0.5}}", "algorithm.levels = {'L': 0.5}: L is the whole model"),
        ("algorithm={name: fedavg, x: 1}", "algorithm.x = 1: unknown field"),
    ]
)
def test_each_mistake_is_named_with_its_place(override: str, expected: str) -> None:
    assert expected in refusal(FULL, override)


def test_all_problems_at_once_each_with_its_source() -> None:
    text = FULL.replace("rounds: 20", "rounds: x").replace("seed:", "sed:")
    lines = refusal(text, "training.lr=-1", "algorithm.name=nothing").splitlines()
    assert len(lines) == 4
    assert any(line.startswith("file.yaml: rounds = 'x'") for line in lines)
    assert any(line.startswith("file.yaml: sed = 7: unknown key; did you mean 'seed'?") for line in lines)
    assert any(line.startswith("--set training.lr=-1: training.lr = -1") for line in lines)
    assert any(line.startswith("--set algorithm.name=nothing: algorithm.name") for line in lines)


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["trainnig.lr=1"], "--set trainnig.lr=1: trainnig = {'lr': 1}: unknown key; did you mean 'training'?"),
        (["data.partiton.a.b=1"], "--set data.partiton.a.b=1: data.partiton = {'a': {'b': 1}}: unknown key"),
        (["trainnig={}"], "--set trainnig={}: trainnig = {}: unknown key"),
        (["sed.b=2", "sed.a=1"], "--set sed.a=1: sed = {'b': 2, 'a': 1}: unknown key"),
    ],
)
def test_an_unknown_section_is_blamed_on_the_override_that_makes_it(overrides: list[str], line: str) -> None:
    with pytest.raises(ExperimentError) as error:
        parse_experiment(MINIMAL, "f", overrides)
    assert str(error.value).startswith(line)


def test_several_contradictions_at_once() -> None:
    assert len(refusal(FULL, "data.clients=7", "fleet.0.agents=5").splitlines()) == 3


@pytest.mark.parametrize("name", ["mypackage:build", "my.package:Thing.build"])
def test_a_users_own_names_are_left_to_the_machine_that_runs_them(name: str) -> None:
    experiment = parse_experiment(MINIMAL, "f", [f"model.name={name}", f"algorithm={{name: '{name}', x: [1]}}"])
    assert (experiment.model.name, experiment.algorithm.fields) == (name, {"x": [1]})


def test_overrides_reach_lists_and_make_sections() -> None:
    experiment = parse_experiment(FULL, "f", ["fleet.0.agents=2", "training.lr=1"])
    assert experiment.fleet[0].agents == 2
    assert experiment.training.lr == 1.0
    assert parse_experiment(MINIMAL, "f", ["training.lr=0.5"]).training.lr == 0.5


def test_an_item_of_a_list_that_the_file_lacks_is_an_error_of_the_override() -> None:
    text = refusal(MINIMAL, "fleet.0.agents=2")
    assert (
        text == "--set fleet.0.agents=2: the file has no list 'fleet' with an item 0; set the whole list: fleet=[...]"
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("training.lr", "dotted.path=value"),
        ("=1", "dotted.path=value"),
        ("a..b=1", "dotted.path=value"),
        ("fleet.2.agents=1", "'2' is not an item of a list of 2"),
        ("fleet.-1.agents=1", "'-1' is not an item"),
        ("name.x=1", "name is 'digits-fedavg', which has no keys"),
        ("training.lr=[1", "--set training.lr=[1:1:3"),
    ],
)
def test_bad_overrides(override: str, expected: str) -> None:
    assert expected in refusal(FULL, override)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty"),
        ("- 1", "holds a list, not keys; write keys such as name"),
        ("name", "holds text, not keys"),
        ("3", "holds a single value, not keys"),
        ("name: x\n bad: 3", "file.yaml:2:5"),
        ("a: 1\nb: 2\na: 3", "file.yaml:3:1: the key 'a' occurs twice"),
        ("a: {b: 1, b: 2}", "file.yaml:1:11: the key 'b' occurs twice"),
        ("1: x", "the key 1 is not a string"),
        ("a: !!python/object/apply:os.getcwd []", "is not supported"),
        ("a: &x 1\nb: *x", "file.yaml:2:4: aliases"),
        ("[" * 50_000, "nested deeper than 20"),
        ("a: \x00", "is not YAML"),
        ("a: 1" + "0" * 5000, "is not a whole number, or has too many digits"),
        ("x" * (1 << 21), "longer than"),
    ],
)
def test_what_is_no_experiment_at_all(text: str, expected: str) -> None:
    assert expected in refusal(text)


def test_missing_file_folder_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9")
    for name, expected in [
        ("none.yaml", "no such file"),
        ("", "is a folder"),
        ("latin.yaml", "UTF-8 (byte 9)"),
    ]:
        with pytest.raises(ExperimentError) as caught:
            load_experiment(tmp_path / name)
        assert expected in str(caught.value)
        assert str(tmp_path) in str(caught.value)


def test_file_is_read_with_overrides(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(FULL, encoding="utf-8")
    assert load_experiment(tmp_path / "e.yaml", ["seed=9"]).seed == 9


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-2E+2", -200.0),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("no", "no"),
        ("true", True),
        ("~", None),
        ("2020-01-01", "2020-01-01"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: Any) -> None:
    loaded = load_yaml(text, "x")
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize("value", ["1e-3", "no", "true", "~", "", "0x1f", "1.", "é\n", " x", 1e-7, 1e22, None, [[]]])
def test_yaml_gives_back_what_it_was_given(value: Any) -> None:
    loaded = load_yaml(dump_yaml({"v": value}), "x")
    assert loaded == {"v": value}


def test_agents_are_named_and_clients_numbered_in_order() -> None:
    fleet = [
        FleetLine(kind="strong", agents=2, clients=5),
        FleetLine(kind="weak", clients=1, cpus=0.5, workers=2),
        FleetLine(kind="strong", clients=1),
    ]
    assert agent_specs(fleet) == [
        AgentSpec("strong-0", "strong", (0, 1, 2), fleet[0]),
        AgentSpec("strong-1", "strong", (3, 4), fleet[0]),
        AgentSpec("weak-0", "weak", (5,), fleet[1]),
        AgentSpec("strong-2", "strong", (6,), fleet[2]),
    ]


def test_importing_it_stays_light() -> None:
    code = (
        "import sys, fedquilt_common.experiment.experiment, fedquilt_common.models, fedquilt_common.datasets;"
        "print(sorted({'torch', 'numpy', 'sklearn'} & set(sys.modules)))"
    )
    path = str(Path(sys.modules["fedquilt_common"].__path__[0]).parent)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("change", ["fleet.0.variants=[[1]]", "fleet.0=[1]", "fleet=[[1,2]]", "data=[1]"])
def test_a_list_in_the_place_of_a_section_is_named(change: str, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(
        "name: x\ndata: {set: digits, clients: 2}\nmodel: {name: mlp}\nalgorithm: {name: fedavg}\n"
        "fleet: [{clients: 2, variants: [{model: {name: mlp}}]}]\n"
    )
    with pytest.raises(ExperimentError, match=change.partition("=")[0].partition(".")[0]):
        load_experiment(tmp_path / "e.yaml", [change])


@pytest.mark.parametrize("change", ["fleet=[{clients: 6, kind: 3}]", "fleet.0.fits=[3]", "fleet.0.budget=[nothing]"])
def test_a_wrong_entry_of_a_list_is_the_only_problem(change: str) -> None:
    assert len(refusal(FULL, change).splitlines()) == 1


@pytest.mark.parametrize(
    ("exits", "reason"),
    [
        ("{strong: 2}", "gives no number of exits for medium, weak, which have a width (algorithm.widths)"),
        ("{strong: 2, medium: 1, weak: 1, tiny: 1}", "algorithm.widths gives no width for tiny; add it"),
        ("{strong: 0, medium: 1, weak: 1}", "its number of exits, 1 or more"),
    ],
)
def test_exits_of_scalefl_are_named_with_the_kind_that_is_wrong(exits: str, reason: str) -> None:
    line = refusal(FULL, f"algorithm={{name: scalefl, exits: {exits}}}")
    assert "algorithm.exits = {" in line
    assert reason in line
