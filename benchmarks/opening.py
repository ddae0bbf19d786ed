"""Measures how long the status page takes to open, and keeps the history in benchmarks/results/opening.jsonl.

    python benchmarks/opening.py            runs of 100, 1,000 and 10,000 rounds: print, append
    python benchmarks/opening.py --dry-run  measure and print only

The page is served by a process of its own, as a coordinator does, and opened by a headless Chromium. The first load
fills the browser's cache and is not counted. ``paint`` is the browser's first contentful paint; ``curves`` is the time
from the navigation until all curves are painted. Both are in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from provenance import append_result, commit, machine

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.example_runs import row, running
from tests.support.visit import open_browser

from fedquilt_server.status.snapshot import StatusStore
from fedquilt_server.web.server import PageServer

HISTORY = Path(__file__).parent / "results" / "opening.jsonl"
ROUNDS = (100, 1000, 10_000)
WATCH = """
const curves = ["value", "loss", "traffic", "time", "energy"];
const isDrawn = (name) => document.querySelector(`#${name}-chart[data-points] canvas`);
const paint = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
window.opened = new Promise((done) => {
  let drawn = 0;
  const look = () => {
    if (!drawn && curves.every(isDrawn)) drawn = performance.now();
    if (drawn && paint()) done({ paint: paint(), curves: drawn });
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
});
"""
"""Curves are drawn just before a paint, so the look that finds them, in the next frame, comes after it."""


def serve(rounds: int) -> None:
    """Serve the page of a run with ``rounds`` rounds, and print its address; the end of standard input stops it."""
    history = [row(number) for number in range(1, rounds + 1)]
    store = StatusStore(running(3, history=history, rounds=2 * rounds, round=rounds + 1))
    with PageServer(store) as server:
        print(server.url, flush=True)
        sys.stdin.read()


@contextmanager
def serving(rounds: int) -> Iterator[str]:
    """Start a process that serves the page; yields its address."""
    command = [sys.executable, __file__, "--serve", str(rounds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout  # noqa: S101 - it is a pipe
        yield server.stdout.readline().strip()
        server.communicate()


def load(context: Any, url: str) -> dict[str, float]:
    """Open the page in a tab of its own and return its times."""
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(url)
    times: dict[str, float] = page.evaluate("window.opened")
    page.close()
    return times


def measure(rounds: int, loads: int) -> dict[str, Any]:
    """Open the page of a run several times."""
    with serving(rounds) as url, open_browser() as browser:
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        load(context, url)
        times = [load(context, url) for _ in range(loads)]
        context.close()
    found = {name: sorted(round(one[name], 1) for one in times) for name in ("paint", "curves")}
    return {"median": {name: median(values) for name, values in found.items()}, "milliseconds": found}


def main() -> None:
    """Measure all lengths, or serve one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="do not append to the history")
    parser.add_argument("--loads", type=int, default=5, help="loads of each page (default: 5)")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve)
        return
    version = commit()
    for rounds in ROUNDS:
        line = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "command": f"PYTHONPATH=. python benchmarks/opening.py --loads {options.loads}",
            "commit": version,
            "machine": machine(),
            "rounds": rounds,
            **measure(rounds, options.loads),
        }
        print(json.dumps({key: value for key, value in line.items() if key not in ("at", "command", "machine")}))
        if not options.dry_run:
            append_result(HISTORY, line)


if __name__ == "__main__":
    main()
