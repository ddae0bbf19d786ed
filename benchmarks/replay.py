"""Measures the error of `fedquilt replay --what-if` on boards that Docker limits in processor and memory.

    docker-compose build agent-strong       makes the image; then
    python benchmarks/replay.py             measures, prints, appends one line per prediction
    python benchmarks/replay.py --dry-run   measures and prints only

One run is recorded. Every other run has other settings, which are predicted from the recorded run and then measured.
The boards are containers of the image `fedquilt-agent`, with the code of this checkout. Broker and coordinator run
outside of the containers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from provenance import commit, machine

from fedquilt_server.lab.context import RoundContext
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.replay.measurements import Measurements, measure
from fedquilt_server.replay.prediction import simulate_rounds
from fedquilt_server.replay.recording import Recording, read_recording
from fedquilt_server.replay.what_if import parse_what_if, recorded_settings
from fedquilt_server.replay.widths import measure_widths, scale_measurements
from fedquilt_server.simulate.mosquitto import broker_command, free_port, wait_listening

ROOT = Path(__file__).resolve().parents[1]
HISTORY = ROOT / "benchmarks" / "results" / "replay.jsonl"
IMAGE, STATE = "fedquilt-agent", "/state"
SAMPLES, ROUNDS = 200, 9
SHOWN = ("case", "predicted_median", "real_median", "error_of_median", "median_error")
EXPERIMENT = f"""
name: what-if
seed: 7
rounds: {ROUNDS}
evaluate_every: {ROUNDS}
data: {{set: digits, clients: 8, partition: {{scheme: dirichlet, alpha: 0.5}}}}
model: {{name: mlp, hidden: [768, 768]}}
algorithm: {{name: fedavg}}
participation: {{per_round: 8, quorum: 8, deadline: 1000}}
training: {{epochs: 4, batch: 16, lr: 0.05}}
fleet:
  - {{kind: strong, agents: 1, clients: 3}}
  - {{kind: medium, agents: 1, clients: 3}}
  - {{kind: weak, agents: 1, clients: 2}}
"""


@dataclass(frozen=True)
class Board:
    """A container: its clients, and its limits as Docker writes them."""

    clients: str
    cpus: str
    memory: str


BOARDS = {
    "strong": Board("0-2", "0.30", "2g"), "medium": Board("3-5", "0.20", "1g"), "weak": Board("6-7", "0.12", "512m"),
}  # fmt: skip
"""A third as fast as those of docker-compose.yml, so that other work on the machine slows them down less."""


@dataclass(frozen=True)
class Case:
    """One prediction: the changes as `--what-if` takes them, and how the run is started with them."""

    name: str
    what_if: tuple[str, ...]
    sets: tuple[str, ...] = ()
    link: str | None = None


def cases(typical: float) -> list[Case]:
    """Return the predictions to measure; ``typical`` is the recorded duration of a round in seconds."""
    return [
        Case("the same again", ("per_round=8",)),
        Case("half the clients", ("per_round=4",), ("participation.per_round=4", "participation.quorum=4")),
        _with_quorum(5, 0.8 * typical),
        Case(
            "half the width", ("width=0.5",), (f"algorithm={{name: heterofl, widths: {dict.fromkeys(BOARDS, 0.5)}}}",)
        ),
        Case("a link of 1 MB/s", ("link=rate=1000000,latency=0.05",), (), "rate=1000000,latency=0.05"),
    ]


def _with_quorum(quorum: int, deadline: float) -> Case:
    changes = (f"deadline={deadline:.2f}", f"quorum={quorum}")
    return Case(f"a quorum of {quorum}", changes, tuple(f"participation.{change}" for change in changes))


@contextlib.contextmanager
def containers(folder: Path, port: int, link: str | None) -> Iterator[None]:
    """Run the boards until the block ends."""
    names = []
    path = ":".join(f"/src/{side}" for side in ("common", "server", "client"))
    try:
        for kind, board in BOARDS.items():
            names.append(f"fedquilt-replay-{os.getpid()}-{kind}")
            limits = ["--cpus", board.cpus, "--memory", board.memory, "--tmpfs", f"{STATE}:mode=1777"]
            code = ["-v", f"{ROOT}:/src:ro", "-e", f"PYTHONPATH={path}", "-e", f"TMPDIR={STATE}"]
            agent = [
                "agent", "--broker", f"mqtt://127.0.0.1:{port}", "--id", f"{kind}-0", "--clients", board.clients,
                "--kind", kind, "--state", f"{STATE}/agent", *(["--link", link] if link else []),
            ]  # fmt: skip
            start = ["docker", "run", "-d", "--rm", "--init", "--name", names[-1], "--network", "host"]
            subprocess.run([*start, *limits, *code, IMAGE, *agent], check=True, stdout=subprocess.DEVNULL)
        yield
    finally:
        (folder / "logs").mkdir(exist_ok=True)
        for name in names:
            log = subprocess.run(["docker", "logs", name], capture_output=True, text=True, check=False)
            (folder / "logs" / f"{name}.log").write_text(log.stdout + log.stderr)
            subprocess.run(["docker", "rm", "-f", name], check=False, capture_output=True)


def run(folder: Path, sets: Sequence[str] = (), link: str | None = None) -> Recording:
    """Run the experiment on the boards; returns what its journal recorded."""
    folder.mkdir(parents=True)
    file, port = folder / "experiment.yaml", free_port()
    file.write_text(EXPERIMENT)
    options = [text for change in sets for text in ("--set", change)]
    with subprocess.Popen(broker_command(folder / "broker", port)) as broker, containers(folder, port, link):
        wait_listening("127.0.0.1", port, 10)
        subprocess.run(
            [sys.executable, "-m", "fedquilt_common.cli", "coordinator", str(file), "--broker",
             f"mqtt://127.0.0.1:{port}", "--out", str(folder / "run"), "--no-page", "--json", *options],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        broker.terminate()
    return read_recording(folder / "run", folder / "copy.sqlite")


def asked_in(recording: Recording, number: int) -> set[int]:
    """Return the clients that a round asked: the seed determines them, because all clients were connected."""
    experiment = recording.experiment
    fleet: Mapping[int, Any] = dict.fromkeys(range(experiment.data.clients))
    count = experiment.participation.per_round
    bench = Workbench(experiment)
    return set(RoundContext(number, fleet, experiment.seed, experiment.rounds, len(fleet), count, bench).select())


def compare(recorded: Recording, measurements: Measurements, case: Case, real: Recording) -> dict[str, Any]:
    """Compare the predicted with the measured rounds, round by round and as a whole."""
    settings = parse_what_if(case.what_if, recorded_settings(recorded.experiment, measurements))
    if settings.widths:
        costs = measure_widths(measurements, settings.widths, Workbench(recorded.experiment))
        measurements = scale_measurements(measurements, costs)
    overall = median(row.seconds for row in simulate_rounds(measurements, settings, 1.0, SAMPLES, 0))
    rounds = []
    for number, times in sorted(measure(real).rounds.items()):
        simulated = simulate_rounds(measurements, settings, 1.0, SAMPLES, number, asked_in(real, number))
        predicted = median(row.seconds for row in simulated)
        rounds.append({
            "round": number, "predicted": round(predicted, 3), "real": round(times.seconds, 3),
            "error": round(abs(predicted - times.seconds) / times.seconds, 4), "replies": times.replies,
        })  # fmt: skip
    real_median = median(row["real"] for row in rounds)
    return {
        "case": case.name, "what_if": list(case.what_if), "predicted_median": round(overall, 3),
        "real_median": round(real_median, 3), "error_of_median": round(abs(overall - real_median) / real_median, 4),
        "median_error": round(median(row["error"] for row in rounds), 4), "rounds": rounds,
    }  # fmt: skip


def main() -> None:
    """Record one run, then predict and measure the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    dry = parser.parse_args().dry_run
    version = commit()
    with tempfile.TemporaryDirectory(prefix="fedquilt-what-if-") as work:
        recorded = run(Path(work) / "recorded")
        measurements = measure(recorded)
        for number, case in enumerate(cases(measurements.seconds)):
            before = machine()
            line = {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "command": "python benchmarks/replay.py",
                "commit": version, "machine": before, "recorded_median": round(measurements.seconds, 3),
                **compare(recorded, measurements, case, run(Path(work) / str(number), case.sets, case.link)),
            }  # fmt: skip
            print(json.dumps({key: line[key] for key in SHOWN}), flush=True)
            if not dry:
                with HISTORY.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
