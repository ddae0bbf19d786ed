"""The sentence about a folder that holds the run of another experiment."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedquilt_common.experiment.experiment import Experiment, dump_experiment
from fedquilt_server.runs.other_experiment import name_other_experiment

NOW = Experiment.model_validate(
    {"name": "n", "data": {"set": "digits", "clients": 4}, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg"}}
)
WHERE = "runs/x holds a run of another experiment"


def changed(old: str, new: str) -> str:
    text = dump_experiment(NOW)
    assert text.count(old) == 1
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("before", "named"),
    [
        (changed("rounds: 10\n", "rounds: 11\n"), " (rounds was 11 and is 10)"),
        (changed("seed: 0\n", "seed: 0\nold: null\n"), " (old was null and is not set)"),
        (changed("name: n\n", f"name: {'m' * 80}\n"), f" (name was {'m' * 60}... and is n)"),
        (changed("name: n\n", f"name: {'m' * 70}ftp://me:secret@h\n"), " (name: another address)"),
        ("seed: [", ""),
        ("", ""),
    ],
)
def test_what_differs_is_named_shortly_and_without_secrets(before: str, named: str) -> None:
    assert name_other_experiment(Path("runs/x"), before, dump_experiment(NOW)) == WHERE + named


@pytest.mark.parametrize("recorded", [None, dump_experiment(NOW), changed("  failures: wait\n", "")])
def test_the_same_experiment_may_be_that_of_an_earlier_version(recorded: str | None) -> None:
    """It lacks keys that were added since; their defaults are what it did."""
    assert not name_other_experiment(Path("runs/x"), recorded, dump_experiment(NOW))


def test_a_key_that_was_added_is_another_experiment_with_another_value() -> None:
    now = NOW.model_copy(update={"participation": NOW.participation.model_copy(update={"failures": "skip"})})
    found = name_other_experiment(Path("runs/x"), changed("  failures: wait\n", ""), dump_experiment(now))
    assert found == f"{WHERE} (participation.failures was wait and is skip)"


def test_only_the_first_keys_are_named() -> None:
    other = NOW.model_copy(update={"name": "o", "seed": 9, "rounds": 99, "evaluate_every": 7})
    assert name_other_experiment(Path("runs/x"), dump_experiment(other), dump_experiment(NOW)).endswith("; and 1 more)")
