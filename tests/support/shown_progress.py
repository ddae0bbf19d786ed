"""A program that shows, as a live block, what it reads: stages, snapshots in JSON, and the words stop and finish."""

from __future__ import annotations

import sys

from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.terminal import ProgressDisplay


def main() -> None:
    """Show each line of standard input until it ends."""
    stopping: list[bool] = []
    with ProgressDisplay("http://127.0.0.1:8080/", 20, 0.0, lambda: bool(stopping)) as progress:
        for line in sys.stdin:
            if line == "stop\n":
                stopping.append(True)
            elif line == "finish\n":
                progress.finish([])
                break
            elif line.startswith("{"):
                progress.show(Snapshot.model_validate_json(line))
            else:
                progress.stage(line.strip())
    print("the summary")


if __name__ == "__main__":
    main()
