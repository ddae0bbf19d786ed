"""Settings as dotted keys: differences and short names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedquilt_server.status.settings import compared, differing_keys, fingerprint, flatten, same_value, short_names

VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.text(max_size=3))
SETTINGS = st.dictionaries(st.sampled_from(["algorithm.name", "data.set", "a.b", "c"]), VALUES, max_size=4)


def test_nested_keys_are_dotted_and_lists_of_plain_values_stay_whole() -> None:
    raw = {"a": {"b": 1, "c": [1, 2]}, "fleet": [{"kind": "x"}, {"kind": "y"}], "e": {}}
    assert dict(flatten(raw)) == {"a.b": 1, "a.c": [1, 2], "fleet.0.kind": "x", "fleet.1.kind": "y"}


def test_seed_and_name_do_not_distinguish_groups() -> None:
    assert compared({"seed": 1, "name": "x", "rounds": 3}) == {"rounds": 3}


def test_numbers_are_compared_as_numbers_and_booleans_are_not_numbers() -> None:
    assert differing_keys([{"a": 1, "b": 1, "c": None}, {"a": 1.0, "b": True}]) == ["b", "c"]
    assert fingerprint({"a": 1}) == fingerprint({"a": 1.0})


def test_whole_numbers_that_are_equal_as_floating_point_numbers_differ() -> None:
    assert differing_keys([{"seed": 2**53}, {"seed": 2**53 + 1}]) == ["seed"]
    assert not same_value(2**53, 2**53 + 1)


def test_groups_are_named_by_as_few_keys_as_possible() -> None:
    prox = {"algorithm.name": "fedprox", "algorithm.mu": 0.1, "training.lr": 0.05}
    avg = {"algorithm.name": "fedavg", "training.lr": 0.05}
    assert short_names([avg, prox]) == ["fedavg", "fedprox"]
    assert short_names([avg, {**avg, "training.lr": 0.1}, prox]) == [
        "fedavg, lr=0.05",
        "fedavg, lr=0.1",
        "fedprox, lr=0.05",
    ]
    assert short_names([avg]) == ["fedavg"]
    assert short_names([{}]) == ["all runs"]


def test_what_the_runs_compare_is_named_before_their_number_of_rounds() -> None:
    plain = compared({"rounds": 6, "algorithm": {"name": "fedavg"}, "privacy": None})
    private = compared({"rounds": 4, "algorithm": {"name": "fedavg"}, "privacy": {"mode": "central", "epsilon": 20}})
    older = compared({"rounds": 6, "algorithm": {"name": "fedavg"}})  # written before there was a section `privacy`
    assert short_names([plain, private]) == ["fedavg", "mode=central"]
    assert fingerprint(plain) == fingerprint(older)
    assert short_names([plain, {**plain, "rounds": 4}]) == ["rounds=6", "rounds=4"]


def test_keys_that_a_sweep_varies_are_named_also_where_fewer_would_do() -> None:
    several = [{"algorithm.name": "a", "training.lr": 1}, {"algorithm.name": "b", "training.lr": 2}]
    assert short_names(several, ["training.lr"]) == ["lr=1", "lr=2"]


def test_labels_of_a_sweep_speak_for_themselves() -> None:
    several = [{"method": "a", "lr": 1, "data.set": "x"}, {"method": "b", "lr": 1, "data.set": "y"}]
    assert short_names(several, ["data.set", "method"]) == ["x, a", "y, b"]


@given(st.lists(SETTINGS, min_size=1, max_size=6, unique_by=fingerprint))
def test_different_settings_have_different_keys_to_tell_them_apart(several: list[dict[str, object]]) -> None:
    differ = differing_keys(several)
    marks = {fingerprint({key: one[key] for key in differ if key in one}) for one in several}
    assert len(marks) == len(several)
    assert len(short_names(several)) == len(several)
