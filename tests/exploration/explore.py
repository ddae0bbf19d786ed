"""``make explore``: visit every state of all small worlds, and print how many there are.

Run it from the repository's folder: ``python -m tests.exploration.explore --jobs 2``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pool

from tests.exploration.search import PropertyError, explore
from tests.exploration.world import World

Row = tuple[str, int, int, int, float, str]
"""The world, its states, steps and recoveries, the seconds they took, and the defect that was found."""


def worlds() -> Iterator[World]:
    """Yield two rounds of two exchanges under every policy, with all clients asked, and with two of the three."""
    for asked in (3, 2):
        for quorum in range(1, asked + 1):
            yield World(quorum, shortfall="replace", per_round=asked)
            yield World(quorum, shortfall="wait", per_round=asked)
        yield World(asked, deadline=False, per_round=asked)


def visit(world: World) -> Row:
    """Explore one world."""
    start = time.perf_counter()
    try:
        found = explore(world)
    except PropertyError as error:
        return str(world), 0, 0, 0, time.perf_counter() - start, str(error)
    return str(world), found.states, found.transitions, found.recoveries, time.perf_counter() - start, ""


def main() -> int:
    """Explore all worlds; returns 1 if a property does not hold in one of them."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=1, help="worlds that are explored at a time")
    jobs = options.parse_args().jobs
    rows = []
    print("| world | states | steps | crashes | seconds |\n|---|---|---|---|---|", flush=True)
    with Pool(jobs, maxtasksperchild=1) as pool:
        for name, states, transitions, crashes, seconds, error in pool.imap(visit, worlds()):
            rows.append((states, transitions, crashes, error))
            print(error or f"| {name} | {states:,} | {transitions:,} | {crashes:,} | {seconds:.0f} |", flush=True)
    total = [sum(column) for column in zip(*(row[:3] for row in rows), strict=True)]
    print(f"| all | {total[0]:,} | {total[1]:,} | {total[2]:,} | |")
    return int(any(row[3] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
