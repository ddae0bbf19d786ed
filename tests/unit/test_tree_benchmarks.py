"""The model of benchmarks/tree.py: it finds costs again, predicts trees, and docs/scale.md has its tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedquilt_server.status.results import RoundResult
from fedquilt_server.status.snapshot import Snapshot

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import population
import site_relays
import sum_costs
import tree
import tree_chart
import tree_tables
from mqtt_boards import PUBACK, PUBLISH, packet, packets, publish
from tree_model import PARTS, SITE_RELAY, Cost, Fit, Load, fit_all, fit_memory, load_of
from tree_predict import (
    Federation,
    costs_of_trained,
    exceeded_limits,
    levels_of,
    predict,
    predict_case,
)

ROOT = Path(__file__).parents[2]
COSTS = {
    "broker": Cost(0.001, 1e-5, 4e-4),
    "coordinator": Cost(0.01, 4e-4, 5e-3, 1e-3),
    "coordinator of sums": Cost(0.01, 1e-4, 3e-2, 3e-3, 1e-2),
    "agent": Cost(0.002, 7e-4, 2e-3),
    "relay": Cost(0.01, 0.0, 3e-3, 0.0, 2e-2),
    "relay with joint jobs": Cost(0.01, 9e-5, 0.0, 0.0, 2e-2),
    "training process": Cost(0.001, 7e-4, 1.5e-3),
    "training process with joint jobs": Cost(0.001, 3e-4, 1.5e-3, 0.0, 1e-2),
    SITE_RELAY: Cost(0.02, 9e-4, 4e-3, 2e-3, 3e-2),
}
GRID = [case for case in tree.GRID if case.agents <= 60]


def measured(case: tree.Case, costs: Mapping[str, Cost] = COSTS) -> dict[str, Any]:
    """Return the line of a case whose processes take exactly what the costs say."""
    replies = case.agents if case.relay else case.clients
    line: dict[str, Any] = {
        **vars(case), "rounds": 1_000_000, "median_seconds": 1.0, "machine": {"cores": 2},
        "bytes_up": 1e6 * case.megabytes * replies, "bytes_down": 1e6 * case.megabytes + 20 * case.clients,
        "peak_bytes": {"coordinator": 9e7 + 11_000 * case.clients + 2e6 * case.megabytes, "agent": 5e7},
        "disk_bytes": {"coordinator": 1e6},
    }  # fmt: skip
    return {**line, "processor_seconds": predict_case(line, costs)}


def measured_site(case: site_relays.Case) -> dict[str, Any]:
    line = {**vars(case), "rounds": 1_000_000}
    return {**line, "processor_seconds": {"relay": COSTS[SITE_RELAY].seconds(load_of(SITE_RELAY, line))}}


LINES = [measured(case) for case in GRID]
SITES = [measured_site(case) for case in site_relays.GRID]


@pytest.mark.parametrize("part", [*PARTS, SITE_RELAY])
def test_the_fit_finds_the_costs_of_each_part(part: str) -> None:
    found = fit_all(LINES, SITES)[part]
    assert vars(found.cost) == pytest.approx(vars(COSTS[part]), rel=1e-3, abs=1e-9)
    assert found.r2 > 0.9999
    assert max(found.worst, found.held_out) < 1e-3


def test_cases_that_are_held_out_do_not_change_the_fit_and_show_its_error() -> None:
    dearer = [line if not line["held_out"] else {**line, "processor_seconds": {
        role: 2 * seconds for role, seconds in line["processor_seconds"].items()}} for line in LINES]  # fmt: skip
    found = fit_all(dearer, SITES)["coordinator"]
    assert found.cost.reply == pytest.approx(4e-4, rel=1e-3)
    assert found.held_out == pytest.approx(0.5, abs=0.01)


def test_a_case_below_the_kernels_ticks_does_not_count_as_an_error() -> None:
    first, *rest = LINES
    coarse = {**first, "rounds": 1, "processor_seconds": {**first["processor_seconds"], "broker": 0.01}}
    assert first["processor_seconds"]["broker"] < 0.005
    assert fit_all([coarse, *rest], SITES)["broker"].worst < 0.01


def test_the_memory_of_the_coordinator_is_found() -> None:
    found = fit_memory(LINES)
    assert (found.fixed, found.client, found.model_byte) == pytest.approx((9e7, 11_000, 2.0), rel=1e-3)
    assert found.peak(4000, 1.0) == pytest.approx(9e7 + 4.4e7 + 2e6, rel=1e-3)


@pytest.mark.parametrize(
    ("clients", "fan_out", "machines", "children"),
    [(1000, None, [1], [1000]), (1000, 100, [10, 1], [100, 10]), (100, 100, [1], [100]), (101, 100, [2, 1], [100, 2]),
     (1_000_000, 100, [10_000, 100, 1], [100, 100, 100])],
)  # fmt: skip
def test_levels_of_a_tree(clients: int, fan_out: int | None, machines: list[int], children: list[int]) -> None:
    levels = levels_of(Federation(clients, 1.0, fan_out))
    assert [level.machines for level in levels] == machines
    assert [level.children for level in levels] == children
    assert levels[-1].members == clients
    assert levels[0].up == 1.0, "boards send replies, which list no members"


def test_each_board_receives_the_tasks_of_all_unless_they_are_divided() -> None:
    whole, divided = (levels_of(Federation(10_000, 1.0, 100, whole_manifest=whole)) for whole in (True, False))
    assert [level.down for level in whole] == pytest.approx([1.21, 1.21])
    assert [level.down for level in divided] == pytest.approx([1 + 21e-6, 1 + 2100e-6])


def test_a_level_takes_as_long_as_its_slowest_part() -> None:
    plan = Federation(1000, 1.0)
    (alone,) = predict(plan, COSTS).levels
    assert alone.process == pytest.approx(COSTS["coordinator"].seconds(Load(1000, 1001.021, 1000)))
    assert (alone.bottleneck, alone.seconds) == ("line", alone.line)
    (fast,) = predict(replace(plan, line=1e6), COSTS).levels
    assert (fast.bottleneck, fast.seconds) == ("coordinator", fast.process)
    slow_broker = {**COSTS, "broker": Cost(0.0, 1.0, 0.0)}
    assert predict(replace(plan, line=1e6), slow_broker).bottleneck.bottleneck == "broker"


def test_a_tree_takes_work_from_the_coordinator_and_adds_machines() -> None:
    alone, tree_of = (predict(Federation(100_000, 1.0, fan_out), COSTS) for fan_out in (None, 100))
    assert tree_of.seconds < alone.seconds / 20
    assert (alone.machines, tree_of.machines) == (1, 1011)
    assert tree_of.processor_seconds > alone.processor_seconds
    first = COSTS[SITE_RELAY].seconds(Load(100, 100.0, 100, 1.0))
    assert tree_of.levels[0].process == pytest.approx(first), "it is the relay of a site"
    assert tree_of.levels[-1].process > 100_000 * COSTS["coordinator of sums"].reply, "it records each member"


@pytest.mark.parametrize(
    ("plan", "limits"),
    [(Federation(10_000, 1.0), []), (Federation(100_000, 1.0), ["boards"]), (Federation(100_000, 1.0, 100), []),
     (Federation(1_000_000, 1.0, 100), ["clients", "manifest"]),
     (Federation(1_000_000, 1.0, 100, whole_manifest=False), ["clients"]),
     (Federation(300_000, 1.0, 1000), []), (Federation(390_000, 1.0, 20_000), ["members of a sum"])],
)  # fmt: skip
def test_limits_of_the_program(plan: Federation, limits: list[str]) -> None:
    assert list(exceeded_limits(plan)) == limits


def test_sums_of_trained_models_cost_more() -> None:
    sums = [{"updates": "constant", "write_seconds": 0.01, "read_seconds": 0.02},
            {"updates": "noise", "write_seconds": 0.05, "read_seconds": 0.03}]  # fmt: skip
    fits = {part: Fit(cost, 1.0, 0.0, 0.0) for part, cost in COSTS.items()}
    found = costs_of_trained(fits, sums)
    assert found["relay"].sum_megabyte == pytest.approx(0.02 + 0.04)
    assert found[SITE_RELAY].sum_megabyte == pytest.approx(0.03 + 0.04)
    assert found["coordinator of sums"].sum_megabyte == pytest.approx(0.01 + 0.01)
    assert found["coordinator"] == COSTS["coordinator"]


def test_noisy_updates_make_larger_sums() -> None:
    constant, noise = sum_costs.measure_sums(20_000)
    assert constant["sum_bytes_per_model_byte"] < 0.1 < noise["sum_bytes_per_model_byte"] < 1.5


def test_a_manifest_grows_with_the_clients_it_names() -> None:
    small, large = population.measure_all_manifests([100, 1000])
    assert small["first_bytes"] + 900 * 4 < large["first_bytes"] < large["later_bytes"] - 900 * 10


def round_row(number: int, seconds: float) -> RoundResult:
    times = dict.fromkeys(("train_seconds", "overhead_seconds", "sending_seconds", "receiving_seconds",
                           "averaging_seconds", "evaluate_seconds"), 0.0)  # fmt: skip
    counts = dict.fromkeys(("clients", "asked", "late", "rejected", "duplicates"), 0)
    return RoundResult(round=number, seconds=seconds, bytes_down=10, bytes_up=20, model_bytes=5, **times, **counts)  # type: ignore[arg-type]  # of two kinds


def test_the_first_round_does_not_count() -> None:
    watch = tree.Watch(seconds=0.0, least=2)
    assert not watch.is_complete()
    for done in (1, 2, 3):
        rows = [round_row(number, 9.0 if number == 1 else 1.0) for number in range(1, done + 1)]
        watch.show(Snapshot(history=rows))
        watch.samples[-1] = tree.Sample(done, {"broker": 5.0 + 0.5 * done}, {"broker": 100 * done})
        watch.show(Snapshot(history=rows))
    assert watch.is_complete()
    found = tree.report(watch)
    assert (found["rounds"], found["seconds"], found["median_seconds"]) == (2, [1.0, 1.0], 1.0)
    assert (found["processor_seconds"]["broker"], found["disk_bytes"]["broker"]) == (0.5, 100)
    assert (found["bytes_down"], found["bytes_up"]) == (10, 20)


def test_packets_that_arrive_in_pieces() -> None:
    wanted = publish("a/b", bytes(300), retain=True) + packet(PUBACK, b"\0\1")
    buffer, found = bytearray(), []
    for byte in wanted:
        buffer.append(byte)
        found += list(packets(buffer))
    assert [first >> 4 for first, _ in found] == [PUBLISH, PUBACK]
    assert found[0][1] == b"\0\3a/b\0\1\0" + bytes(300)
    assert found[0][0] & 1, "retained"
    assert not buffer


def test_the_tables_replace_those_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table: one -->\nold\n<!-- end -->\nb\n<!-- table: two -->\n<!-- end -->\n")
    tree_tables.write_tables(page, {"one": "new", "two": "| x |"})
    one, two = "<!-- table: one -->\n\nnew\n\n<!-- end -->", "<!-- table: two -->\n\n| x |\n\n<!-- end -->"
    assert page.read_text() == f"a\n{one}\nb\n{two}\n"
    with pytest.raises(ValueError, match="0 places"):
        tree_tables.write_tables(page, {"three": ""})


def test_the_picture_shows_the_rounds_of_the_tables(tmp_path: Path) -> None:
    curves = tree_chart.curves_of(1.0, COSTS)
    assert curves["fan-out 100"][-1] == predict(Federation(1_000_000, 1.0, 100), COSTS).seconds
    assert curves["all boards at one broker"][-1] > curves["fan-out 100"][-1] > curves["all steps"][-1]
    tree_chart.draw(COSTS, tmp_path / "tree.svg")
    assert "seconds of a round" in (tmp_path / "tree.svg").read_text(encoding="utf-8")


def test_the_page_has_the_numbers_of_the_results() -> None:
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    for name, content in tree_tables.make_tables(*tree_tables.latest()).items():
        made = f"<!-- table: {name} -->\n\n{content}\n\n<!-- end -->"
        assert made in text, "run python benchmarks/tree.py --tables --write"
