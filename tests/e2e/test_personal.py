"""Private memory over a real broker: its accuracies, its secrecy, and that kills and replays change no bit of it."""

from __future__ import annotations

import contextlib
import csv
import json
from pathlib import Path

import pytest
from tests.support import warm
from tests.support.round_gate import RoundGate
from tests.support.runs import (
    EXPERIMENTS,
    PATIENCE,
    kill,
    memories,
    recording_broker,
    simulate,
    simulating,
)

from fedquilt_common.wire.codec import FileArrays

SHORT = ("--set", "rounds=4", "--set", "evaluate_every=2")
KILLED_AFTER = 2
FEDREB = EXPERIMENTS / "digits-fedreb.yaml"


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without disturbance."""
    folder = tmp_path_factory.mktemp("calm")
    simulate(FEDREB, folder, *SHORT)
    return folder


def test_both_accuracies_of_every_round_and_of_the_run(calm: Path) -> None:
    found = json.loads((calm / "run" / "result.json").read_text())
    rows, final = found["rounds"], found["final"]
    assert [row["global_accuracy"] is None for row in rows] == [True, False, True, False]
    tested = [row for row in rows if row["global_accuracy"] is not None]
    for row in tested:
        assert row["accuracy"] == row["global_accuracy"]
        assert 0 <= row["global_accuracy"] <= 1
        assert 0 <= row["personal_accuracy"] <= 1
        assert row["scores"]["tested_clients"] == 20
        assert row["scores"]["tested_samples"] == tested[-1]["scores"]["tested_samples"] > 300
    for row in rows:
        assert (row["clients"], row["asked"]) == (5, 5)
        assert row["replies"] == (5 if row["global_accuracy"] is None else 25)
    # a new model is published once, to be tested and then to be trained: four of them, and that of the start
    assert 4 * rows[0]["model_bytes"] < final["bytes_down"] < 5 * rows[0]["model_bytes"] + 60_000
    for kind in ("global", "personal"):
        scores = [row[f"{kind}_accuracy"] for row in tested]
        assert (final[f"{kind}_accuracy"], final[f"best_{kind}_accuracy"]) == (scores[-1], max(scores))
    columns = list(csv.DictReader((calm / "run" / "rounds.csv").read_text().splitlines()))
    assert float(columns[-1]["personal_accuracy"]) == rows[-1]["personal_accuracy"]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The folder of a run whose processes were all killed, and everything that its broker received.

    Ditto keeps the most private arrays; ``unit/common/algorithms`` tests the replies of the other algorithms.
    """
    folder = tmp_path_factory.mktemp("killed")
    one = "fleet=[{kind: strong, agents: 1, clients: 20}]"
    gate = RoundGate(folder / "gate", 16)  # each round asks 5 of the 20
    options = ("--set", "rounds=50", "--set", "training.epochs=2", "--set", "wire.chunk=1MiB", "--set", one)
    with (
        recording_broker(folder) as (broker, messages),
        simulating(EXPERIMENTS / "digits-ditto.yaml", folder, "--broker", broker, *options, before=gate.install) as run,
    ):
        try:
            gate.finish_round(folder, KILLED_AFTER)
        finally:
            run.kill()
            for who in ("coordinator", "strong-0"):
                with contextlib.suppress(ProcessLookupError):  # it ends by itself without its parent
                    kill(folder, who)
    return folder, b"".join(message.header + message.payload for message in messages)


def test_nothing_private_is_on_any_topic(killed: tuple[Path, bytes]) -> None:
    folder, everything = killed
    models = [FileArrays(path) for path in (folder / "run" / "blobs").iterdir() if path.is_file()]
    assert any(array.tobytes() in everything for model in models for array in model.values())  # the recorder works
    found = memories(folder)
    assert len(found) >= 5
    for _, _, file in found:
        for array in FileArrays(file).values():
            rows = array.reshape(len(array), -1) if array.ndim > 1 else array[None]
            own = [row.tobytes() for row in rows if row.size >= 4 and row.any()]
            assert sum(row in everything for row in own) <= len(own) // 4  # rows that training has not moved


def test_a_killed_run_is_replayed_without_boards(killed: tuple[Path, bytes]) -> None:
    """Also the private memory comes out the same, bit for bit."""
    done = warm.fedquilt("replay", str(killed[0] / "run"), "--json", where=killed[0], patience=PATIENCE)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    closed = [row for row in report["rounds"] if row["state_equal"]]
    assert (report["difference"], report["finished"]) == (None, False)
    assert len(closed) >= KILLED_AFTER
    assert all(row["replies"] == row["equal"] == row["trained"] > 0 for row in closed)
    assert report["end"].startswith("The journal ends")


def test_whoever_is_killed_private_memory_counts_once(calm: Path, tmp_path: Path) -> None:
    gate = RoundGate(tmp_path / "gate", 16)
    with simulating(FEDREB, tmp_path, *SHORT, before=gate.install) as process:
        for number, who in ((1, "weak-0"), (2, "coordinator")):
            gate.finish_round(tmp_path, number)
            kill(tmp_path, who)
        gate.open()
        assert process.finish(PATIENCE).returncode == 0
    runs = [folder / "run" for folder in (calm, tmp_path)]
    assert len({(run / "global.safetensors").read_bytes() for run in runs}) == 1
    results = [json.loads((run / "result.json").read_text())["rounds"] for run in runs]
    scores = [[(row["global_accuracy"], row["personal_accuracy"]) for row in rows] for rows in results]
    assert scores[0] == scores[1]
    kept = [[(client, number, file.read_bytes()) for client, number, file in memories(one)] for one in (calm, tmp_path)]
    assert kept[0] == kept[1]
    assert kept[0]
