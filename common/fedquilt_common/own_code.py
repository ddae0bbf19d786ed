"""Digests of a user's own modules, so that a board with another version of one does not train along.

A module's digest is that of the file that defines it. Modules that it imports are not compared.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterator, Mapping
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment.experiment import Experiment
from fedquilt_common.user_imports import is_user_import, package_of

_SHOWN = 12


def digest_own_code(experiment: Experiment) -> dict[str, str]:
    """Return the SHA-256, in hex, of each user's own module that an experiment names and that is a file here."""
    modules = sorted({name.partition(":")[0] for name in _names(experiment) if is_user_import(name)})
    found = {module: digest_module(module) for module in modules}
    return {module: digest for module, digest in found.items() if digest}


def check_own_code(expected: Mapping[str, str], experiment: Experiment, allowed: Collection[str]) -> None:
    """Compare the user's own modules here with those of the coordinator. A missing module is not a difference.

    Args:
        expected: what ``digest_own_code`` returned there.
        experiment: names the modules.
        allowed: top-level packages that it may load; ``*`` allows all. The coordinator learns nothing of others.

    Raises:
        ExperimentError: one of them differs.
    """
    for module, own in digest_own_code(experiment).items():
        is_allowed = "*" in allowed or package_of(module) in allowed
        if is_allowed and (digest := expected.get(module, own)) != own:
            raise ExperimentError(
                f"the code of {module!r} on this board differs from the coordinator's ({own[:_SHOWN]} instead of "
                f"{digest[:_SHOWN]}): make the two files equal, and restart the agent"
            )


@functools.cache  # a process keeps the module that it has imported, even if the file changes
def digest_module(module: str) -> str:
    """Return the SHA-256, in hex, of a module's file as it was at the first call; empty if there is no such file."""
    source = _find_source(module)
    return "" if source is None else hashlib.sha256(source.read_bytes()).hexdigest()


def _find_source(module: str) -> Path | None:
    """Return the file of a module without importing it, or its packages."""
    top, *parts = module.split(".")
    try:
        spec = find_spec(top)
        for depth in range(1, len(parts) + 1):
            places = None if spec is None else spec.submodule_search_locations
            spec = None if places is None else PathFinder.find_spec(".".join((top, *parts[:depth])), list(places))
    except (ImportError, ValueError):
        return None
    source = Path(spec.origin) if spec is not None and spec.origin else None
    return source if source is not None and source.suffix == ".py" and source.is_file() else None


def _names(experiment: Experiment) -> Iterator[str]:
    """Yield each name of an experiment that may be a user's own ``package.module:factory``."""
    data = experiment.data
    yield from (experiment.algorithm.name, experiment.model.name, data.set)
    yield from (model.name for model in experiment.models)
    yield from (name for name in (data.partition.features, data.public and data.public.set) if name)
