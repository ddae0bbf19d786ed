"""What varies in a sweep, the combinations, and the names of their folders."""

from __future__ import annotations

from typing import Any

import pytest

from fedquilt_common.errors import ExperimentError
from fedquilt_server.sweep.axes import LONGEST_FOLDER, SweepAxis, combine, read_axis, select


def axes(**raw: Any) -> list[SweepAxis]:
    return [read_axis(name, values, f"vary.{name}") for name, values in raw.items()]


def folders(*given: SweepAxis) -> list[str]:
    return [each.folder for each in combine(given)]


def test_the_last_axis_varies_fastest() -> None:
    both = [read_axis("seed", [1, 2], "x"), read_axis("algorithm.name", ["fedavg", "fedopt"], "x")]
    assert folders(*both) == [
        "seed=1,algorithm.name=fedavg", "seed=1,algorithm.name=fedopt",
        "seed=2,algorithm.name=fedavg", "seed=2,algorithm.name=fedopt",
    ]  # fmt: skip
    assert combine(both)[1].label == "seed=1, algorithm.name=fedopt"
    assert [(each.path, each.value) for each in combine(both)[1].overrides] == [
        ("seed", 1), ("algorithm.name", "fedopt"),
    ]  # fmt: skip


def test_labels_set_several_keys() -> None:
    (axis,) = axes(
        method={"plain": {"algorithm.name": "fedavg"}, "exits": {"algorithm": {"name": "scalefl"}, "rounds": 3}}
    )
    assert (axis.values, axis.labelled) == (["plain", "exits"], True)
    assert [(each.path, each.value) for each in axis.choices[1].overrides] == [
        ("algorithm", {"name": "scalefl"}), ("rounds", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"name": "fedprox", "mu": 0.1}, "fedprox-mu-0.1"),
        ({"alpha": 0.3, "scheme": "dirichlet"}, "alpha-0.3-scheme-dirichlet"),
        ([64, 32], "[64, 32]"),
        (None, None),
        (True, True),
    ],
)
def test_sections_and_lists_get_a_label(value: Any, shown: Any) -> None:
    axis = read_axis("model.hidden", [value], "x")
    assert axis.values == [shown]
    assert axis.choices[0].overrides[0].value == value


@pytest.mark.parametrize(
    ("value", "folder"),
    [
        (0.05, "lr=0.05"), (1e-05, "lr=1e-05"), (True, "lr=true"), (None, "lr=null"), ("own:Net", "lr=own-Net-"),
        ("a/b\\c", "lr=a-b-c-"), ("..", "lr-"), ("x,y=z", "lr=x-y-z-"), ("\N{GREEK SMALL LETTER MU}", "lr=--"),
        ("n" * 300, f"lr={'n' * (LONGEST_FOLDER - 10)}-"), ("", "lr="),
    ],
)  # fmt: skip
def test_a_folder_has_a_name_that_every_system_allows(value: Any, folder: str) -> None:
    (name,) = folders(read_axis("lr", [value], "x"))
    if folder.endswith("-"):
        assert name[:-6] == folder.replace("lr-", "lr=-")
        assert int(name[-6:], 16) >= 0
    else:
        assert name == folder
    assert len(name) <= LONGEST_FOLDER


def test_values_that_differ_in_forbidden_characters_only_have_distinct_folders() -> None:
    names = folders(read_axis("data.set", ["a:b", "a/b", "a-b", "n" * 300, "n" * 301], "x"))
    assert len(set(names)) == 5


def test_an_exclusion_leaves_out_what_has_one_of_each_of_its_values() -> None:
    both = axes(seed=[1, 2, 3], rate=[0.1, 0.5])
    left = combine(both, [{"seed": [1, 2], "rate": [0.5]}, {"seed": [3]}])
    assert [each.label for each in left] == ["seed=1, rate=0.1", "seed=2, rate=0.1"]


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("seed", 3, "vary.x: must be a list of values, or labels"),
        ("seed", "1,2", "vary.x: must be a list"),
        ("seed", [], "vary.x: has no value"),
        ("seed", {}, "vary.x: has no value"),
        ("seed", [1, 2, 1], "vary.x: 1 occurs twice"),
        ("seed", [1, "1"], "vary.x: 1 occurs twice"),
        ("method", {"plain": 3}, "vary.x.plain: must hold the keys that it sets"),
        ("../seed", [1], "'../seed' cannot name an axis"),
        ("", [1], "'' cannot name an axis"),
    ],
)
def test_what_is_no_axis_is_named(name: str, raw: Any, words: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        read_axis(name, raw, "vary.x")
    assert words in str(caught.value)


def test_labels_are_chosen_by_name() -> None:
    (axis,) = axes(method={"a": {"rounds": 1}, "b": {"rounds": 2}, "1": {"rounds": 3}})
    chosen = select(axis, [1, "a"], "--vary method")
    assert [(each.value, each.overrides[0].value) for each in chosen.choices] == [("1", 3), ("a", 1)]
    with pytest.raises(ExperimentError, match=r"--vary method: method has no label 'bb'; did you mean 'b'\?"):
        select(axis, ["bb"], "--vary method")
