"""The fleet of an experiment file: variants of its clients, and links of its agents."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.experiments import refusal
from tests.support.tables import each

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment, agent_specs, dump_experiment
from fedquilt_common.experiment_file import load_experiment, parse_experiment
from fedquilt_common.wire.link import Link, parse_link

VARIED = """
name: varied
data: {set: digits, clients: 4, public: {samples: 10}}
model: {name: mlp, hidden: [8]}
algorithm: {name: fedmd}
training: {lr: 0.1, momentum: 0.9, batch: 4}
fleet:
  - {kind: plain, clients: 1}
  - kind: own
    clients: 3
    link: {rate: 50, loss: 0.2}
    variants:
      - {training: {optimiser: adam, lr: 0.001}}
      - {model: {name: tabular}}
speedup: 10
"""


def test_clients_have_their_lines_variants_in_turn() -> None:
    made = parse_experiment(VARIED, "varied.yaml")
    assert made.variant(0) == made.default_variant
    adam, tabular = made.variant(1), made.variant(2)
    assert made.variant(3) == adam
    assert (adam.model, adam.training.optimiser, adam.training.momentum, adam.training.batch) == (
        made.model, "adam", 0.0, 4,
    )  # fmt: skip
    assert (tabular.model.name, tabular.training) == ("tabular", made.training)
    assert Experiment.model_validate_json(made.model_dump_json()) == made
    assert parse_experiment(dump_experiment(made), "again") == made


def test_links_go_to_the_agents_of_their_line() -> None:
    made = parse_experiment(VARIED, "varied.yaml")
    plain, own = agent_specs(made.fleet, made.speedup)
    assert "link" not in plain.options
    assert parse_link(own.options["link"]) == Link(rate=50.0, loss=0.2, speedup=10.0)


def test_variants_start_like_the_experiments_model_unless_they_say_otherwise() -> None:
    changes = ["model.initialisation=keras", "fleet.1.variants.1.model.initialisation=torch"]
    made = parse_experiment(VARIED, "varied.yaml", changes)
    assert [made.variant(client).model.initialisation for client in range(3)] == ["keras", "keras", "torch"]


@each(
    [
        ("fleet.1.variants.0.training.optimizer=adam", "fleet.1.variants.0.training.optimizer"),
        ("fleet.1.variants.0.training.momentum=0.9", "the optimiser 'adam' has no momentum"),
        ("fleet.1.variants.1.model.name=tabula", "fleet.1.variants.1.model.name = 'tabula': unknown; did you mean"),
        ("fleet.1.variants=3", "fleet.1.variants"),
        ("fleet.1.link.loss=1", "fleet.1.link.loss = 1"),
        ("fleet.1.link.speed=1", "unknown key"),
        ("fleet.1.link.window=0", "fleet.1.link.window = 0"),
        ("fleet.1.link.open=[[0, 5]]", "open and period need each other"),
        ("fleet.1.link={open: [[5, 3]], period: 9}", "an end at least 0.01 seconds later"),
        ("fleet.1.link={open: [[0, 5], [4, 6]], period: 9}", "must not overlap"),
        ("fleet.1.link={open: [[0, 10]], period: 9}", "after the period of 9 seconds"),
        ("model.initialisation=lecun", "model.initialisation = 'lecun'"),
        ("fleet.1.variants.0.training.optimiser=keras", "fleet.1.variants.0.training.optimiser = 'keras'"),
        ("data.public={set: digit}", "data.public.set = 'digit': unknown; did you mean 'digits'"),
        ("data.public={}", "set how many of the training samples"),
        ("data.partition={scheme: per-class}", "needs it; try 20"),
        ("data.partition={scheme: per-class, per_class: 2, classes: [3, 1]}", "the first number is the least"),
        ("data.partition={scheme: subject, alpha: 1}", "does not use it"),
        ("data.partition={scheme: natural, overlap: true}", "does not use it"),
        ("data.label_noise={kind: matrix, ratio: 0.1}", "needs it; try confusion.csv"),
        ("data.label_noise={ratio: 0.1, file: a.csv}", "does not use it"),
        ("data.label_noise.ratio=0", "data.label_noise.ratio = 0"),
        ("data.sensor_noise.lost=1", "data.sensor_noise.lost = 1"),
        ("data.partition={scheme: uniform, bins: 4}", "does not use it"),
        ("data.partition={scheme: manual}", "needs it; try shares.csv"),
        ("data.partition={scheme: labels-per-client}", "needs it; try 2"),
        ("data.partition={scheme: dirichlet, alpha: 1, bins: 4, clusters: 4}", "remove one of the two"),
        ("data.partition={scheme: dirichlet, alpha: 1, features: pca}", "only clusters use features"),
        ("data.delivery=url", "the delivery 'url' needs it; give the bundle's url"),
        ("data.bundle.url=https://example.org/manifest.json", "the delivery 'local' does not use it"),
        ("data.form={shape: [3], classes: 2}", "the delivery 'local' does not use it"),
        ("data={delivery: own, clients: 8}", "is missing; name a data set, such as digits"),
        ("data={delivery: own, clients: 8, set: digits, form: {shape: [3], classes: 2}}", "remove one of the two"),
        (
            "data={delivery: own, clients: 8, set: digits, label_noise: {ratio: 0.1}}",
            "the delivery 'own' does not use it",
        ),
        (
            "data={delivery: own, clients: 8, form: {shape: [2], classes: 2, columns: [a, a]}}",
            "a sample of shape [2] has 2 features; name a column for each, and each once",
        ),
        (
            "data={delivery: own, clients: 8, form: {shape: [2], classes: 2, columns: [a, label]}}",
            "a label is no feature; leave it out",
        ),
        ("data={delivery: brokr, clients: 8, set: digits}", "'local', 'broker', 'url' or 'own'"),
        ("data={delivery: url, clients: 8, set: digits, bundle: {url: 'ftp://a.org/b'}}", "data.bundle.url"),
        ("training.optimiser=adam", "the optimiser 'adam' has no momentum"),
        ("speedup=0", "speedup = 0"),
    ]
)
def test_mistakes_in_variants_links_and_public_sets(override: str, expected: str) -> None:
    assert expected in refusal(VARIED, override)


def test_a_variant_that_no_client_would_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(
        "name: x\ndata: {set: digits, clients: 1}\nmodel: {name: mlp}\nalgorithm: {name: fedmd}\n"
        "fleet: [{clients: 1, variants: [{model: {name: mlp}}, {model: {name: mlp, hidden: [3]}}]}]\n"
    )
    with pytest.raises(ExperimentError, match=r"fleet\.0\.variants: the line has 2 variants for 1 clients"):
        load_experiment(tmp_path / "e.yaml")
