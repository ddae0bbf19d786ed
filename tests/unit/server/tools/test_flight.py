"""A drone's flight: when a node is in reach, how long all takes, and the fleet that a simulation takes from it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment, agent_specs
from fedquilt_server.tools.bench_cli import app
from fedquilt_server.tools.flight import Flight, Watts
from fedquilt_server.tools.route import plan_route

LINE = plan_route((0.0, 0.0), [(0.0, 100.0), (0.0, 300.0)])


def test_the_time_is_flight_two_stops_at_each_node_and_training() -> None:
    trip = Flight(LINE, speed=10.0, exchange=30.0, training=20.0)
    assert (trip.flight_seconds, trip.exchange_seconds, trip.seconds) == (60.0, 120.0, 200.0)
    assert trip.joules(Watts(idle=1.0, radio=0.5, training=4.0)) == 180 + 2 * 30 * 0.5 + 20 * 4


def test_a_node_is_in_reach_within_the_radius_and_during_its_stops() -> None:
    """At 10 m/s: stops at 10-40 s (out), 60-120 s (the last node) and 140-170 s (back); 50 m are 5 s."""
    trip = Flight(LINE, speed=10.0, exchange=30.0)
    assert list(itertools.chain(*trip.open_times(0))) == pytest.approx([5.0, 45.0, 135.0, 175.0])
    assert list(itertools.chain(*trip.open_times(1))) == pytest.approx([55.0, 125.0])


def test_a_node_beside_the_start_is_in_reach_while_the_drone_waits_there() -> None:
    trip = Flight(plan_route((0.0, 0.0), [(0.0, 20.0)]), speed=10.0, exchange=30.0, training=100.0)
    assert list(itertools.chain(*trip.open_times(0))) == pytest.approx([0.0, trip.seconds])


def test_a_node_beside_the_way_is_in_reach_while_the_drone_passes() -> None:
    """The drone passes 30 m beside node 0 and stops at node 1; within 50 m it is for 40 m before and after."""
    route = plan_route((0.0, 0.0), [(0.0, 100.0), (0.0, 100.0)])
    passed = Flight(type(route)((0.0, 0.0), [(30.0, 200.0), (0.0, 400.0)], [1, 0]), speed=10.0, exchange=1.0)
    assert passed.open_times(0)[0] == pytest.approx((16.0, 24.0))


def test_the_fleet_of_a_route_is_one_that_simulate_takes(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("0,100\n0,300\n40,700\n")
    words = ["bench", "route", str(tmp_path / "n.csv"), "--training", "60", "--loss", "0.1", "--json"]
    report = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).output)
    fleet = {"clients": len(report["fleet"])}
    experiment = Experiment.model_validate_json(
        json.dumps(
            {"name": "x", "speedup": 100, "data": {"set": "digits", **fleet}, "model": {"name": "mlp"},
             "algorithm": {"name": "fedavg"}, "fleet": report["fleet"]}
        )
    )  # fmt: skip
    links = [spec.link for spec in agent_specs(experiment.fleet, 100.0)]
    assert all(
        link and link.window == 3 and link.period == pytest.approx(report["seconds"], abs=0.02) for link in links
    )
    assert [link and len(link.open) for link in links] == [2, 2, 1]
    assert 9 < report["fleet"][0]["link"]["rate"] < 12
    text = CliRunner().invoke(app, words[:-1], catch_exceptions=False).output
    assert '{"kind": "node-0", "clients": 1' in text
    assert "J for each board" not in text
    powered = CliRunner().invoke(app, [*words[:-1], "--watts", "1,0.5,2"], catch_exceptions=False).output
    assert "J for each board" in powered


def test_a_slow_radio_has_a_rate_of_several_digits(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("0,100\n")
    words = ["bench", "route", str(tmp_path / "n.csv"), "--pause", "300", "--json"]
    report = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).output)
    assert report["fleet"][0]["link"]["rate"] == 0.1946


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--speed", "0"], "--speed 0"),
        (["--radius", "-1"], "--radius -1"),
        (["--training", "-1"], "--training"),
        (["--watts", "1,nan,2"], "--watts 1,nan,2: give three"),
        (["--watts", "1.4"], "--watts 1.4: give three"),
        (["--timeout", "-1"], "--timeout"),
        (["--loss", "0.95"], r"--loss: .* link.loss = 0.95.*0.9"),
        (["--payload", "5"], r"--payload: .* link.mtu = 5"),
        (["--pause", "3600"], r"--pause or --payload: .* link.rate = 0.01"),
        (["--training", "1e7"], r"--training: .* link.period"),
    ],
)
def test_options_out_of_range(words: list[str], named: str, tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("0,100\n")
    with pytest.raises(ExperimentError, match=named):
        CliRunner().invoke(app, ["bench", "route", str(tmp_path / "n.csv"), *words], catch_exceptions=False)
