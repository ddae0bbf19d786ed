"""Predictions from a constructed journal, whose times are known, and their order in all settings."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import warm
from tests.unit.server.replay.conftest import Kit

from fedquilt_common.errors import ExperimentError, RunFolderError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.submodels.selection import prefix
from fedquilt_common.types import Profile
from fedquilt_common.wire.link import Link, parse_link
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.replay.forecast import NOT_MODELLED, make_forecast, print_forecast
from fedquilt_server.replay.measurements import CoordinatorTimes, measure
from fedquilt_server.replay.prediction import SimulatedRound, predict_traffic, simulate_rounds
from fedquilt_server.replay.recording import RecordedRound, Recording
from fedquilt_server.replay.what_if import WhatIf, parse_what_if, recorded_settings
from fedquilt_server.replay.widths import WidthCost, measure_widths, scale_measurements
from fedquilt_server.round.events import Event, Joined, Replied, Resumed, Ticked
from fedquilt_server.runs.journal import StoredCheckpoint, Traffic
from fedquilt_server.status.results import RoundResult

LAG, GAP, REST, AVERAGING, SIZE = 0.5, 0.25, 1.0, 0.4, 1000
TRAIN = {0: 1.0, 1: 2.0, 2: 4.0, 3: 8.0}
"""Seconds of training by client; agent a hosts 0 and 1, agent b hosts 2 and 3."""
SECONDS = LAG + 4.0 + GAP + 8.0 + REST


def experiment(link: dict[str, float] | None = None, **participation: Any) -> Experiment:
    return Experiment.model_validate({
        "name": "constructed", "rounds": 3, "data": {"set": "digits", "clients": 4}, "model": {"name": "mlp"},
        "algorithm": {"name": "fedavg"}, "participation": {"deadline": 1000.0, **participation},
        "fleet": [{"kind": kind, "clients": 2, "link": link} for kind in "ab"],
    })  # fmt: skip


def reply(round: int, client: int, at: float, exchange: int = 0) -> Replied:
    metrics = {"train_seconds": 0.0 if exchange else TRAIN[client]}
    return Replied(at, "ab"[client // 2] + "-0", client, round, exchange, f"{round}.{client}", 1.0, metrics, SIZE)


def recorded_round(round: int, opened_at: float, extra: tuple[Event, ...] = ()) -> RecordedRound:
    arrivals = {0: LAG + 1, 1: LAG + 1 + GAP + 2, 2: LAG + 4, 3: LAG + 4 + GAP + 8}
    events = [*extra, *(reply(round, c, opened_at + arrivals[c]) for c in sorted(arrivals, key=arrivals.__getitem__))]
    zeros = ("sending_seconds", "receiving_seconds", "evaluate_seconds", "late", "rejected", "duplicates")
    row = {
        "round": round, "seconds": SECONDS, "train_seconds": 12, "overhead_seconds": 1,
        "averaging_seconds": AVERAGING, "bytes_down": 5000, "bytes_up": 4400, "model_bytes": 3000,
        "clients": 4, "asked": 4,
    }  # fmt: skip
    result = RoundResult.model_validate(dict.fromkeys(zeros, 0) | row)
    closing = StoredCheckpoint(round, round * 10, "", "", opened_at + SECONDS, "", result, Traffic())
    return RecordedRound(round, list(enumerate(events)), closing)


def recording(made: Experiment, *extra: Event) -> Recording:
    joins = (Joined(0.0, "a-0", 1, (0, 1), 1, Profile("a")), Joined(0.0, "b-0", 1, (2, 3), 1, Profile("b")))
    rounds = [recorded_round(n, 100.0 * n, (*joins, *extra) if n == 1 else ()) for n in (1, 2, 3)]
    start = StoredCheckpoint(0, 0, "", "", 0.0, "", None, Traffic())
    return Recording(Path("constructed"), "constructed-1", made, start, rounds, finished=True)


def with_round_3(made: Experiment, events: list[Event], seconds: float) -> Recording:
    """A recording whose round 3, opened at 300, has these events."""
    plain = recording(made)
    last = plain.rounds[2]
    assert last.checkpoint is not None
    assert last.checkpoint.result is not None
    result = last.checkpoint.result.model_copy(update={"seconds": seconds})
    closing = dataclasses.replace(last.checkpoint, at=300.0 + seconds, result=result)
    return dataclasses.replace(plain, rounds=[*plain.rounds[:2], RecordedRound(3, list(enumerate(events)), closing)])


RECORDING = recording(experiment())
MEASURED = measure(RECORDING)
SAME = recorded_settings(RECORDING.experiment, MEASURED)


def predict(changed: WhatIf, seed: int = 0) -> list[SimulatedRound]:
    return simulate_rounds(MEASURED, changed, 1.0, 20, seed)


def what_if(*texts: str) -> SimulatedRound:
    (row,) = set(predict(parse_what_if(texts, SAME)))
    return row


def test_the_parts_of_the_recorded_times_are_found() -> None:
    assert sorted(MEASURED.rounds) == [2, 3]  # without the first round, in which processes start
    assert [(board.agent, board.kind, board.clients) for board in MEASURED.boards] == [
        ("a-0", "a", (0, 1)), ("b-0", "b", (2, 3)),
    ]  # fmt: skip
    assert MEASURED.lags[0, "a-0"][2] == pytest.approx((LAG,))
    assert MEASURED.gaps[0, "b-0"][3] == pytest.approx((GAP,))
    assert MEASURED.rounds[2].rest == pytest.approx(REST)
    assert MEASURED.tasks[0, 3][2].train == 8.0


def test_the_recorded_settings_give_the_recorded_round() -> None:
    row = what_if("deadline=1000")
    assert row.seconds == pytest.approx(SECONDS)
    assert (row.replies, row.bytes_down, row.bytes_up) == (4, 5000, 4400)


@pytest.mark.parametrize(
    ("texts", "seconds", "replies"),
    [
        (["quorum=3", "deadline=5"], 5.0, 3),  # client 3 would need until 12.75
        (["quorum=1", "deadline=2"], 2.0, 1),
        (["quorum=2", "deadline=2"], LAG + 1 + GAP + 2, 2),  # the quorum is complete after the deadline
        (["quorum=2", "deadline=3", "shortfall=replace"], None, None),
        (["workers=2"], LAG + 8.0, 4),
        (["clients_per_board=1", "per_round=2"], LAG + 4.0, 2),
    ],
)
def test_other_settings_give_the_times_that_follow(
    texts: list[str], seconds: float | None, replies: int | None
) -> None:
    if seconds is None:
        assert all(row.seconds > 3 for row in predict(parse_what_if(texts, SAME)))
        return
    row = what_if(*texts)
    spared = AVERAGING * (1 - row.replies / 4)
    assert row.replies == replies
    assert row.seconds == pytest.approx(seconds + REST - spared)


def test_a_link_adds_the_time_of_its_bytes() -> None:
    slow = what_if("link=rate=1000,latency=0.5")
    assert slow.seconds == pytest.approx(SECONDS + 2 * (SIZE / 1000 + 0.5))
    one = what_if("link.a=rate=1000,latency=0.5")
    assert one.seconds == pytest.approx(SECONDS)  # agent b, without a link, is the last one


def test_a_run_with_links_is_predicted_with_its_own_seconds() -> None:
    with_links = recording(experiment(link={"rate": 2e4, "latency": 0.1}))
    assert measure(with_links).lags[0, "a-0"][2] == pytest.approx((LAG - 2 * (SIZE / 2e4 + 0.1),))
    assert make_forecast(with_links, [], 5, 0).same.seconds.median == pytest.approx(SECONDS)


def test_a_lossy_link_gives_a_range_and_the_recorded_one_is_in_the_recorded_times() -> None:
    link = {"rate": 2e4, "latency": 0.1, "loss": 0.3}
    lossy = recording(experiment(link=link))
    other = make_forecast(RECORDING, ["link=rate=2e4,latency=0.1,loss=0.3"], 50, 0).changed.seconds
    assert SECONDS < other.low < other.median < other.high - 3.0
    for texts in ([], ["link=rate=2e4,latency=0.1,loss=0.3"]):
        same = make_forecast(lossy, texts, 50, 0).changed.seconds
        assert (same.low, same.high) == pytest.approx((SECONDS, SECONDS))


def test_the_open_times_of_all_boards_follow_one_clock() -> None:
    """A link without a rate only waits: for the patch up to 55 s, and for a reply that it cannot carry any more.

    With a clock of its own, one of ten boards with the longest task would always wait long.
    """
    changed = parse_what_if(["link=open=0:5,period=60", "boards=20", "workers=2"], SAME)
    last = LAG + 8.0 + REST + AVERAGING * 9
    waits = [row.seconds - last for row in predict(changed)]
    assert 60.0 - 8.5 - 5.0 <= min(waits) < 60.0
    assert 90.0 < max(waits) <= 60.0 - 5.0 + 60.0 - 8.5


def test_the_clock_of_open_times_goes_on_with_the_next_exchange() -> None:
    """The evaluation begins as the link opens for the last reply, so it does not wait."""
    replies = [reply(3, 3, 300 + LAG + 8), reply(3, 3, 300 + LAG + 8 + 2, 1)]
    measured = measure(with_round_3(experiment(per_round=1), list(replies), LAG + 8 + 2 + REST))
    changed = dataclasses.replace(SAME, links={"": parse_link("open=0:5,period=60")})
    found = simulate_rounds(measured, changed, 1.0, 40, 0, asked={3})
    assert max(row.seconds for row in found) <= LAG + 8 + 2 + REST + 60.0 - 5.0 + 60.0 - 8.5


def test_the_clock_of_open_times_goes_on_when_other_clients_are_asked() -> None:
    """A round that would begin again at the same time of the clock would miss each of its ten deadlines of 20 s."""
    changes = ["link=open=0:5,period=60", "per_round=1", "quorum=1", "deadline=20", "shortfall=replace"]
    assert median(row.seconds for row in predict(parse_what_if(changes, SAME))) < 120.0


def test_the_draws_of_links_do_not_change_the_other_draws() -> None:
    """The link repeats packets in no time, so the draws of its losses alone make a difference."""
    half = dataclasses.replace(SAME, per_round=2, quorum=2)
    links = {"": parse_link("loss=0.5,mtu=100,window=3,timeout=0")}
    assert predict(dataclasses.replace(half, links=links), 1) == predict(half, 1)


def test_other_widths_scale_training_and_bytes() -> None:
    costs = {0: WidthCost(0.5, 0.25), 1: WidthCost(0.5, 0.25), 2: WidthCost(0.5, 0.5), 3: WidthCost(0.5, 0.5)}
    scaled = scale_measurements(MEASURED, costs)
    (row,) = set(simulate_rounds(scaled, SAME, 1.0, 20, 0))
    assert row.seconds == pytest.approx(LAG + 2.0 + GAP + 4.0 + REST - AVERAGING * (1 - 0.375))
    assert (row.bytes_down, row.bytes_up) == (2500, 1650)
    assert scaled.tasks[0, 3][2].size == SIZE // 2
    assert scale_measurements(MEASURED, {}) == MEASURED


def test_a_width_costs_what_its_sub_model_costs() -> None:
    bench = Workbench(RECORDING.experiment)
    costs = measure_widths(dataclasses.replace(MEASURED, trained={2: 0.5, 3: 0.5}), {"b": 0.25, "": 1.0}, bench)
    assert [costs[client].bytes == 1.0 for client in range(4)] == [True, True, False, False]
    assert costs[0].training == 1.0
    quarter, half = (prefix(bench.anatomy, width, "floor").entries for width in (0.25, 0.5))
    assert costs[2] == costs[3]
    assert costs[2].bytes == quarter / half


def test_a_level_that_is_no_width_cannot_be_set() -> None:
    measured = dataclasses.replace(MEASURED, trained={0: "M2"})
    with pytest.raises(ExperimentError, match="trained the level 'M2'"):
        measure_widths(measured, {"a": 0.5}, Workbench(RECORDING.experiment))


@pytest.mark.parametrize("change", ["link.c=rate=5", "width.c=0.5"])
def test_a_kind_of_board_that_the_run_did_not_have_is_refused(change: str) -> None:
    with pytest.raises(ExperimentError, match=rf"{change[:6]}.*no such kind of board; choose one of a, b"):
        make_forecast(RECORDING, [change], 5, 0)


def test_only_rounds_that_were_evaluated_have_the_time_of_the_evaluation() -> None:
    """The evaluation asks all clients, also those that the round did not ask."""
    train = [reply(3, 0, 300 + LAG + 1), reply(3, 3, 300 + LAG + 8)]
    evaluate = [reply(3, client, 300 + LAG + 8 + 2, 1) for client in range(4)]
    measured = measure(with_round_3(experiment(per_round=2), [*train, *evaluate], LAG + 8 + 2 + REST))
    same = dataclasses.replace(SAME, per_round=2, quorum=2)
    found = {round(row.seconds, 6) for row in simulate_rounds(measured, same, 1.0, 20, 0, asked={0, 3})}
    assert found == {round(LAG + 8 + REST - AVERAGING / 2, 6), LAG + 8 + 2 + REST}


def test_a_client_without_a_recorded_task_does_not_reply() -> None:
    tasks = {key: value for key, value in MEASURED.tasks.items() if key != (0, 3)}
    settings_ = dataclasses.replace(SAME, quorum=4, deadline=3.0)
    (row,) = set(simulate_rounds(dataclasses.replace(MEASURED, tasks=tasks), settings_, 1.0, 20, 0))
    assert row.replies == 3
    assert row.seconds == pytest.approx(LAG + 4 + REST - AVERAGING / 4)


def test_the_next_exchange_opens_at_the_deadline_of_the_one_before() -> None:
    made = experiment(quorum=2, deadline=5.0)
    first: list[Event] = [reply(3, 0, 300 + LAG + 1), reply(3, 1, 300 + LAG + 1 + GAP + 2), Ticked(305.0)]
    late = reply(3, 2, 305.5)
    second = [reply(3, 0, 306.0, 1), reply(3, 1, 306.5, 1)]
    measured = measure(with_round_3(made, [*first, late, *second], 6.5 + REST))
    assert measured.lags[1, "a-0"][3] == pytest.approx((1.0,))
    assert measured.rounds[3].rest == pytest.approx(REST)
    assert measured.rounds[3].replies == 4  # not the late one, so bytes for each reply are those of a round like it


@pytest.mark.parametrize(("shortfall", "rounds"), [("replace", [2]), ("wait", [2, 3])])
def test_a_round_that_asked_other_clients_at_its_deadline_is_left_out(shortfall: str, rounds: list[int]) -> None:
    made = experiment(quorum=2, deadline=5.0, shortfall=shortfall)
    events: list[Event] = [reply(3, 0, 301.5), Ticked(305.0), reply(3, 1, 309.0)]
    assert sorted(measure(with_round_3(made, events, 9.0 + REST)).rounds) == rounds


def test_more_boards_ask_more_clients() -> None:
    row = what_if("boards=100x")
    assert (row.replies, row.bytes_down, row.bytes_up) == (400, 3000 + 2000 * 100, 440_000)
    assert row.seconds == pytest.approx(SECONDS + AVERAGING * 99)


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(0, 3), st.sampled_from([2.0, 4.0, 10.0, 1000.0]), st.integers(0, 5))
def test_a_larger_quorum_is_never_faster(quorum: int, more: int, deadline: float, seed: int) -> None:
    less = dataclasses.replace(SAME, quorum=quorum, deadline=deadline)
    greater = dataclasses.replace(less, quorum=min(4, quorum + more))
    pairs = zip(predict(less, seed), predict(greater, seed), strict=True)
    assert all(first.seconds <= second.seconds for first, second in pairs)


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(1, 100), st.integers(1, 50), st.integers(0, 50))
def test_more_boards_and_replies_are_never_fewer_bytes(
    down: int, model: int, replies: int, boards: int, more: int
) -> None:
    times = CoordinatorTimes(1.0, 0.1, 0.2, replies, down, 1000, model)
    before, after = predict_traffic(times, replies, boards), predict_traffic(times, replies + more, boards + more)
    assert after >= before
    assert after[0] >= before[0]
    assert after[1] >= before[1]


def test_a_round_of_known_clients_takes_their_time() -> None:
    (row,) = set(simulate_rounds(MEASURED, SAME, 1.0, 5, 0, asked={0, 3}))
    assert row.replies == 2
    assert row.seconds == pytest.approx(LAG + 8.0 + REST - AVERAGING / 2)


def test_the_seed_determines_the_prediction() -> None:
    half = dataclasses.replace(SAME, per_round=2, quorum=2)
    assert predict(half, 1) == predict(half, 1)
    assert predict(half, 1) != predict(half, 2)
    lossy = dataclasses.replace(SAME, links={"": parse_link("rate=1000,loss=0.3")})
    assert predict(lossy, 1) == predict(lossy, 1)
    assert predict(lossy, 1) != predict(lossy, 2)


def test_changes_are_read() -> None:
    found = parse_what_if(["boards=10", "link.a=rate=5", "shortfall=replace"], SAME, speedup=2.0)
    assert (found.boards, found.per_round, found.quorum, found.shortfall) == (10, 20, 20, "replace")
    assert found.links == {"a": Link(rate=5.0, speedup=2.0)}
    assert parse_what_if(["per_round=2"], SAME).quorum == 2
    assert parse_what_if(["width=0.5", "width.b=1"], SAME).widths == {"": 0.5, "b": 1.0}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("deadline", "write it as KEY=VALUE"), ("quorom=3", "did you mean 'quorum'"), ("xyz=1", "choose one of boards"),
        ("deadline=0", "seconds above 0"), ("boards=0x", "a factor such as 100x"), ("boards=1.5", "a factor"),
        ("quorum=9", "only 4 clients take part"), ("shortfall=no", "wait or replace"), ("link=fast", "write it as"),
        ("per_round=x", "whole number"), ("width=0", "above 0 and at most 1"), ("quorum.a=2", "did you mean 'quorum'"),
    ],
)  # fmt: skip
def test_changes_that_are_not_valid_are_refused(text: str, part: str) -> None:
    with pytest.raises(ExperimentError, match=part):
        parse_what_if([text], SAME)


@pytest.mark.parametrize("key", ["per_round", "link.a"])
def test_a_key_that_is_given_twice_is_refused(key: str) -> None:
    value = {"per_round": "2", "link.a": "rate=5"}[key]
    with pytest.raises(ExperimentError, match=f"--what-if {key}: is given 2 times; give one value"):
        parse_what_if([f"{key}={value}"] * 2, SAME)


def test_a_run_without_a_whole_round_cannot_be_measured() -> None:
    interrupted = recording(experiment(), Resumed(1.0))
    only = dataclasses.replace(interrupted, rounds=interrupted.rounds[:1])
    with pytest.raises(RunFolderError, match="no finished round without a restart"):
        measure(only)


def test_a_run_whose_tasks_go_on_over_rounds_cannot_be_predicted() -> None:
    plain = recording(experiment())
    closing = plain.rounds[1].checkpoint
    assert closing is not None
    assert closing.result is not None
    stale = dataclasses.replace(closing, result=closing.result.model_copy(update={"staleness": 0.5}))
    rounds = [plain.rounds[0], dataclasses.replace(plain.rounds[1], checkpoint=stale)]
    with pytest.raises(RunFolderError, match="its rounds end with the first replies"):
        measure(dataclasses.replace(plain, rounds=rounds))


def test_a_forecast_compares_the_recorded_settings_too() -> None:
    forecast = make_forecast(RECORDING, ["quorum=3", "deadline=5"], 50, 0)
    assert forecast.recorded_seconds == forecast.same.seconds.median == pytest.approx(SECONDS)
    assert forecast.changed.seconds.median < forecast.same.seconds.median
    assert forecast.not_modelled


def test_a_forecast_from_the_first_round_alone_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    for count, head, noted in (
        (1, "recorded, 1 round ", True),
        (2, "recorded, 1 round ", False),
        (3, "2 rounds", False),
    ):
        recorded = dataclasses.replace(RECORDING, rounds=RECORDING.rounds[:count])
        print_forecast(forecast := make_forecast(recorded, ["quorum=3"], 5, 0))
        printed = capsys.readouterr().out
        assert head in printed
        assert forecast.only_warm_up == ("Only the first round was measured." in printed) == noted


def test_the_documented_limits_are_those_of_a_forecast() -> None:
    page = (Path(__file__).parents[4] / "docs" / "replay.md").read_text()
    listed = page.partition("### Not modelled\n")[2].strip()
    assert " ".join(listed.split()) == "- " + "; - ".join(NOT_MODELLED) + "."


def test_the_command_predicts_a_real_run(kit: Kit, tmp_path: Path) -> None:
    command = ("replay", str(kit.run), "--what-if", "boards=3x")
    done = warm.fedquilt(*command, "--json", where=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changed"]["replies"]["median"] == 9
    assert warm.fedquilt(*command, "--what-if", "quorum=0", where=tmp_path).returncode == 4
