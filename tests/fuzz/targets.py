"""What is fuzzed: each target takes bytes, and may raise only the errors that its part documents.

A target that gets further than reading also checks that what it read can be written and read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz import files, messages, pages, reports, texts

from fedquilt_common.errors import FedquiltError

Run = Callable[[bytes, Path], None]


@dataclass(frozen=True)
class Target:
    """One thing to fuzz.

    Attributes:
        run: reads the input; the folder is the target's own and lasts as long as the process.
        raises: the documented errors.
        longest: bytes of an input, at most.
    """

    run: Run
    raises: tuple[type[FedquiltError], ...]
    longest: int = 4096


TARGETS: Mapping[str, Target] = {
    name: Target(run, raises, longest)
    for module in (files, messages, texts, pages, reports)
    for name, (run, raises, longest) in module.TARGETS.items()
}


def run_one(name: str, data: bytes, folder: Path) -> bool:
    """Run a target on one input; returns whether the input was valid.

    Any other exception than the target's documented errors leaves the function: it is a defect.
    """
    target = TARGETS[name]
    try:
        target.run(data[: target.longest], folder)
    except target.raises:
        return False
    return True
