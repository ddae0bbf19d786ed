"""FedBuff with real boards: whoever is killed, tasks go on, and the journal gives the same bits again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.support import warm
from tests.support.runs import EXPERIMENTS, PATIENCE, await_round, kill, simulating

FEDBUFF = EXPERIMENTS / "digits-fedbuff.yaml"


def test_tasks_go_on_over_kills_and_the_journal_repeats_the_run(tmp_path: Path) -> None:
    slow = ("--set", "rounds=12", "--set", 'fleet.1.variants=[{"training": {"epochs": 40}}]')
    with simulating(FEDBUFF, tmp_path, *slow) as process:
        for number, who in ((2, "coordinator"), (4, "weak-0"), (6, "broker"), (8, "coordinator")):
            await_round(tmp_path, number)
            kill(tmp_path, who)
        assert process.finish(PATIENCE).returncode == 0
    rows = json.loads((tmp_path / "run" / "result.json").read_text())["rounds"]
    assert [row["replies"] for row in rows] == [4] * 12
    assert max(row["most_stale"] for row in rows) >= 1  # the weak boards' replies counted rounds later
    assert all(row["missing"] == {} for row in rows)
    replies = list(csv.DictReader((tmp_path / "run" / "replies.csv").read_text().splitlines()))
    counted = [(row["client"], row["round"]) for row in replies if row["outcome"] == "accepted"]
    assert len(counted) == len(set(counted)) == 4 * 12
    replay = warm.fedquilt("replay", str(tmp_path / "run"), where=tmp_path, patience=PATIENCE)
    assert replay.returncode == 0, replay.stdout + replay.stderr
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    assert "round restarted" not in {event["kind"] for event in events}
    assert "The journal has all 12 rounds. The global model is bit-identical" in replay.stdout
