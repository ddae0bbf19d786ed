"""The drone's route: past every node once, short, and back the same way."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedquilt_common.errors import ExperimentError
from fedquilt_server.tools.bench_cli import app
from fedquilt_server.tools.route import Point, plan_route, plot, read_nodes

POINTS = st.lists(st.tuples(st.integers(-500, 500), st.integers(-500, 500)), min_size=1, max_size=6)


@settings(max_examples=15, deadline=None)
@given(POINTS)
def test_every_node_is_visited_once_and_few_metres_are_wasted(nodes: list[Point]) -> None:
    route = plan_route((0.0, 0.0), nodes)
    assert sorted(route.order) == list(range(len(nodes)))
    best = min(
        sum(math.dist(a, b) for a, b in itertools.pairwise([(0.0, 0.0), *order]))
        for order in itertools.permutations(nodes)
    )
    assert 2 * best - 1e-6 <= route.distance <= 3 * best + 1e-6


def test_nodes_at_the_start_cost_no_way() -> None:
    nodes = [(10.0, 0.0), (0.0, 0.0), (10.0, 10.0), (0.0, 0.0)]
    route = plan_route((0.0, 0.0), nodes)
    assert (route.order, route.distance) == ([1, 3, 0, 2], 40.0)
    assert plan_route((0.0, 0.0), nodes[1:2]).order == [0]


def test_crossing_legs_are_mended() -> None:
    """On a circle, the shortest route follows the circle."""
    angles = [2 * math.pi * number / 12 for number in range(12)]
    nodes = [(100 * math.cos(a), 100 * math.sin(a)) for a in sorted(angles, key=lambda a: (a * 7) % 3)]
    route = plan_route((100.0, 0.0), nodes)
    assert route.distance == pytest.approx(2 * 11 * 200 * math.sin(math.pi / 12), rel=1e-6)


def test_the_same_nodes_give_the_same_way() -> None:
    nodes = [(float(7 * n % 50), float(11 * n % 37)) for n in range(10)]
    assert plan_route((0.0, 0.0), nodes) == plan_route((0.0, 0.0), nodes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has 0 positions"), ("x,y\n", "has 0 positions"), ("1,2\n3\n", "line 2"), ("1,2\nnan,1\n", "line 2"),
        ("nan,3\n1,1\n", "line 1"), ("10;0\n20,0\n", "line 1"), ("inf,3\n", "line 1"), ("1.5m,3\n1,1\n", "line 1"),
        ("id,x,y\n1,100,200\n", "line 2: write only x,y in metres"),
        ("1,1\n\n\n1e9,0\n", "line 4: x and y must be within"),
        (",\n5,x\n", "line 2"),
    ],
)  # fmt: skip
def test_files_that_are_no_positions(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(text)
    with pytest.raises(ExperimentError, match=words):
        read_nodes(tmp_path / "n.csv")


def test_a_table_from_a_spreadsheet(tmp_path: Path) -> None:
    """With the byte order mark of a spreadsheet program, with and without a heading."""
    for text in ("\ufeff10,0\n20,0\n30,0\n", "\ufeffeast, north\n10,0\n20,0\n\n30,0\n"):
        (tmp_path / "n.csv").write_text(text, encoding="utf-8")
        assert read_nodes(tmp_path / "n.csv") == [(10.0, 0.0), (20.0, 0.0), (30.0, 0.0)]
    with pytest.raises(ExperimentError, match="no such file"):
        read_nodes(tmp_path / "none.csv")


def test_the_command_plans_and_plots(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("x,y\n0,100\n0,200\n0,300\n")
    words = ["bench", "route", str(tmp_path / "n.csv"), "--bytes", "648", "--json", "--plot", str(tmp_path / "way.svg")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    report = json.loads(done.output)
    assert (report["distance"], report["order"]) == (600.0, [0, 1, 2])
    assert report["seconds"] == report["flight_seconds"] + report["exchange_seconds"] > 60
    assert (tmp_path / "way.svg").read_text().count("<svg") == 1
    with pytest.raises(ExperimentError, match="--plot"):
        plot(plan_route((0.0, 0.0), [(1.0, 1.0)]), tmp_path / "way.docx")
    for wrong in (["--start", "here"], ["--speed", "0"]):
        with pytest.raises(ExperimentError, match=wrong[0]):
            CliRunner().invoke(app, ["bench", "route", str(tmp_path / "n.csv"), *wrong], catch_exceptions=False)
