"""Measures what crosses the long line to a site, and keeps the history in benchmarks/results/sites.jsonl.

    python benchmarks/sites.py            measure, print, append one line
    python benchmarks/sites.py --relay    measure one reply for a whole site instead
    python benchmarks/sites.py --dry-run  measure and print only

A coordinator at a central Mosquitto runs rounds without training with 1 and with 10 boards at the other end of a line
that counts bytes, TLS included. Either each board connects through the line to the central broker, or all boards
connect to the broker of their site, whose bridge is the only connection on the line. Models, manifests and receipts
cross it down to the boards; replies, presences and telemetry cross it up.

With ``--relay``, the clients add noise to a model of that size, and all sums are exact. Either each board sends its
reply, or the relay of the site adds them up.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from provenance import append_result, commit, machine

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.line import Line, line
from tests.support.sites import BrokerTree, broker_tree

from fedquilt_common.experiment.experiment import Experiment, dump_experiment
from fedquilt_server.provisioning.cli import coordinator_options
from fedquilt_server.tools.bench import bench_experiment

HISTORY = Path(__file__).parent / "results" / "sites.jsonl"
SITE = "hall"
BOARDS = (1, 10)
LONGEST_SECONDS = 300
ALGORITHMS = Path(__file__).parents[1] / "tests" / "support" / "own_algorithms"
OWN = ("--allow-import", "noise_of_clients")


def main() -> None:
    """Measure each number of boards with and without a site's broker."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=float, default=4.0, help="size of the model")
    parser.add_argument("--relay", action="store_true", help="sites without and with a relay")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    mode = " --relay" if options.relay else ""
    head = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": f"python benchmarks/sites.py --rounds {options.rounds} --megabytes {options.megabytes:g}{mode}",
        "commit": commit(),
        "machine": machine(),
    }
    ways = [(True, False), (True, True)] if options.relay else [(False, False), (True, False)]
    rows = [measure(boards, site, relay, options) for site, relay in ways for boards in BOARDS]
    for row in rows:
        print(row)
    if not options.dry_run:
        append_result(HISTORY, {**head, "rounds": options.rounds, "megabytes": options.megabytes, "rows": rows})


def measure(boards: int, site: bool, relay: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Return the bytes on the line of one run.

    Args:
        boards: number of boards behind the line, each with one client.
        site: whether they connect to a broker of their site.
        relay: whether the site has a relay.
        options: rounds and size of the model.
    """
    names = [f"board-{number}" for number in range(boards)]
    with tempfile.TemporaryDirectory(prefix="fedquilt-sites-") as made, ExitStack() as stack:
        folder = Path(made)
        tree = stack.enter_context(broker_tree(folder / "federation", {SITE if site else "": names}, [SITE] * relay))
        used = tree.lines[SITE] if site else stack.enter_context(line(tree.federation.record.port))
        experiment = folder / "experiment.yaml"
        made_of = noise_experiment if options.relay else bench_experiment
        experiment.write_text(dump_experiment(made_of(boards, boards, options.megabytes, options.rounds)))
        begin = time.monotonic()
        run(tree, folder, experiment, names, None if site else used)
        seconds = time.monotonic() - begin
    return {
        "boards": boards, "site": site, **({"relay": relay} if options.relay else {}),
        "down_bytes": used.down, "up_bytes": used.up, "connections": used.connections, "seconds": round(seconds, 1),
    }  # fmt: skip


def noise_experiment(agents: int, clients: int, megabytes: float, rounds: int) -> Experiment:
    """Return an experiment with exact sums in which clients add noise to a model of about this size.

    The arguments are those of ``bench_experiment``.
    """
    made = bench_experiment(agents, clients, megabytes, rounds, relay=True).model_dump(mode="json")
    hidden = round(megabytes * 1e6 / 4 / 75)  # digits: 64 inputs, 10 classes
    return Experiment.model_validate(
        {**made, "model": {"name": "mlp", "hidden": [hidden]}, "algorithm": {"name": f"{OWN[1]}:Noise"}}
    )


def run(tree: BrokerTree, folder: Path, experiment: Path, boards: list[str], used: Line | None) -> None:
    """Run a coordinator and the agents of all boards to the end of the run.

    Args:
        tree: the brokers.
        folder: of the run and of the agents.
        experiment: its file.
        boards: names of the boards.
        used: the line through which the boards connect; None: the one in their files.
    """
    address = [] if used is None else ["--broker", f"mqtts://localhost:{used.port}"]
    options = coordinator_options(tree.federation)
    with ExitStack() as stack:
        for site in tree.federation.record.relays.values():
            config = str(tree.federation.site_folder(site) / "relay" / "relay.yaml")
            stack.enter_context(child("relay", "--config", config, "--state", str(folder / "relay")))
        for board in boards:
            config = str(tree.federation.board_folder(board) / "agent.yaml")
            stack.enter_context(child("agent", "--config", config, "--state", str(folder / board), *address, *OWN))
        coordinator = stack.enter_context(
            child("coordinator", str(experiment), "--out", str(folder / "run"), "--no-page", *options)
        )
        if coordinator.wait(LONGEST_SECONDS):
            raise SystemExit(f"the coordinator ended with exit code {coordinator.returncode}")


@contextmanager
def child(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a fedquilt command until the block ends."""
    command = (sys.executable, "-m", "fedquilt_common.cli", *arguments)
    paths = os.pathsep.join([str(ALGORITHMS), os.environ.get("PYTHONPATH", "")])
    environment, quiet = {**os.environ, "PYTHONPATH": paths}, subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment) as process:
        try:
            yield process
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
