"""Runs one target in this process: with atheris, which follows the coverage, or with the seeded mutator.

``fuzz.py`` starts this module once for each target.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import logging
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

CORPUS = Path(__file__).parent / "corpus"
ROOM = 64 << 20
"""Bytes of address space that an input may take: far less than the sizes that hostile inputs claim."""
FUZZER_ROOM = 128 << 20
"""Bytes for atheris itself, beside those."""
PATIENCE = 10
"""Seconds that an input may take."""
MOST_INPUTS = 500
"""Inputs from which the mutator starts."""
PACKAGES = ["fedquilt_common", "fedquilt_server", "fedquilt_client"]


class SlowInputError(Exception):
    """An input takes longer than ``PATIENCE``."""


def seeds(name: str) -> list[bytes]:
    """Return the inputs of the repository for a target."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


def limit_memory(name: str, work: Path, room: int) -> None:
    """Limit this process to the memory that it has after it has imported what the target needs, and ``room`` bytes."""
    from tests.fuzz.targets import run_one

    for data in seeds(name):
        with contextlib.suppress(Exception):  # it fails again under the fuzzer, which reports it
            run_one(name, data, work)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))


def _too_slow(_: int, frame: FrameType | None) -> None:
    raise SlowInputError(f"takes longer than {PATIENCE} s")


def mutate_for(name: str, seconds: float, seed: int, work: Path, save: Path) -> dict[str, object]:
    """Run mutated inputs until the time is over or one fails; returns the counts, and the failure's file."""
    from tests.fuzz.mutate import mutate
    from tests.fuzz.targets import TARGETS, run_one

    limit_memory(name, work, ROOM)
    source, corpus, longest = random.Random(f"{name} {seed}"), seeds(name), TARGETS[name].longest
    end, inputs = time.monotonic() + seconds, 0
    signal.signal(signal.SIGALRM, _too_slow)
    while time.monotonic() < end:
        data = mutate(source, corpus, longest)
        inputs += 1
        signal.alarm(PATIENCE)
        try:
            if run_one(name, data, work):
                corpus.insert(source.randrange(len(corpus)), data)  # what is read to its end is worth changing
                del corpus[MOST_INPUTS:]
        except Exception:
            return {"inputs": inputs, "failure": _keep(save, data, traceback.format_exc())}
        finally:
            signal.alarm(0)
    return {"inputs": inputs, "failure": None}


def follow_coverage(name: str, seconds: float, seed: int, work: Path, save: Path) -> None:
    """Fuzz with atheris, which ends the process; an input that fails is saved in ``save``, its traceback on stderr."""
    import atheris  # type: ignore[import-not-found, import-untyped, unused-ignore]

    with atheris.instrument_imports(include=PACKAGES):
        from tests.fuzz.targets import TARGETS, run_one

        for folder in (save, learned := work / "learned", files := work / "files"):
            folder.mkdir(parents=True, exist_ok=True)
        limit_memory(name, files, ROOM + FUZZER_ROOM)
    options = [
        f"-max_total_time={int(seconds)}", f"-seed={seed + 1}", f"-max_len={TARGETS[name].longest}",
        f"-timeout={PATIENCE}", "-rss_limit_mb=0", f"-artifact_prefix={save}/", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup([name, *options, str(learned), str(CORPUS / name)], lambda data: run_one(name, data, files))
    atheris.Fuzz()


def _keep(save: Path, data: bytes, story: str) -> str:
    save.mkdir(parents=True, exist_ok=True)
    path = save / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    print(story, file=sys.stderr)
    return str(path)


def main() -> None:
    """Fuzz one target, and print the counts as JSON unless atheris prints its own."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("target")
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--work", type=Path, required=True, help="an empty folder for the inputs' files")
    options.add_argument("--save", type=Path, required=True, help="folder for inputs that fail")
    options.add_argument("--engine", choices=("atheris", "mutator"), default="mutator")
    given = options.parse_args()
    logging.disable(logging.CRITICAL)
    save = given.save / given.target
    if given.engine == "atheris":
        follow_coverage(given.target, given.seconds, given.seed, given.work, save)
    print(json.dumps(mutate_for(given.target, given.seconds, given.seed, given.work, save)))


if __name__ == "__main__":
    main()
