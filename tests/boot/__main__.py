"""``python -m tests.boot``: start flashed cards on virtual boards, from the stock image to the first connection.

Needs Linux, root, and Debian's packages mmdebstrap, qemu-system-x86, mtools, dosfstools, fdisk, e2fsprogs,
openssh-client and mosquitto.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from tests.boot.images import RELEASES, SHAPES
from tests.boot.scenario import Report, try_board

TOOLS = ("mmdebstrap", "qemu-system-x86_64", "mcopy", "mkfs.vfat", "sfdisk", "mke2fs", "debugfs", "ssh", "mosquitto")


def main() -> int:
    """Run the command; returns 1 if a check failed."""
    options = _parse()
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        console.print(f"missing programs: {', '.join(missing)}; see python -m tests.boot --help")
        return 2
    options.cache.mkdir(parents=True, exist_ok=True)
    reports = []
    for release in options.releases:
        for shape in options.shapes:
            with tempfile.TemporaryDirectory(dir=options.cache) as folder:
                reports.append(try_board(shape, release, options.cache, Path(folder), console.print, options.long))
    print(tabulate(reports))
    if options.out:
        rows = [{"image": r.image, "steps": r.steps, "checks": r.checks, "problems": r.problems} for r in reports]
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    return 1 if any(report.problems for report in reports) else 0


def tabulate(reports: list[Report]) -> str:
    """Return a table in Markdown: a row for each step and a column for each image."""
    names = dict.fromkeys(name for report in reports for name in report.steps)
    rows = [["seconds", *(report.image for report in reports)], ["---"] * (len(reports) + 1)]
    rows += [[name, *(f"{report.steps.get(name, float('nan')):.0f}" for report in reports)] for name in names]
    rows.append(["checks that hold", *(f"{r.checks - len(r.problems)} of {r.checks}" for r in reports)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.boot", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES), help="shapes of the images")
    parser.add_argument("--releases", nargs="+", choices=RELEASES, default=list(RELEASES), help="Debian releases")
    parser.add_argument("--long", action="store_true", help="with torch: also train, and cut the power during a run")
    parser.add_argument("--cache", type=Path, default=Path("dist") / "boot-test", help="folder for images and wheels")
    parser.add_argument("--out", type=Path, help="write the report to this JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
