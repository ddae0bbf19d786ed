"""What a user needs to know of the models: noted once when a run starts, for the log and ``result.json``.

These are warnings, and how the experiment's model is cut into sub-models.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final

from fedquilt_common.submodels.wholeness import describe_whole, whole_share
from fedquilt_server.lab.run_warnings import warn_about_run
from fedquilt_server.lab.workbench import Workbench
from fedquilt_server.runs.journal import Journal
from fedquilt_server.status.results import ModelCut

log = logging.getLogger(__name__)
_CUT: Final = "model_cut"
_WARNING: Final = "model_warning"
_SHOWN: Final = 8


def note_models(workbench: Workbench, journal: Journal, others: Sequence[str] = ()) -> None:
    """Store and log the warnings about the models, and, if clients train sub-models, how the model is cut.

    Args:
        workbench: of the experiment.
        journal: where they are stored.
        others: further warnings.

    Raises:
        UncuttableModelError: fedquilt cannot cut sub-models from the model.
    """
    if warnings := [*warn_about_run(workbench), *others]:
        journal.set_meta(_WARNING, json.dumps(warnings))
    for warning in warnings:
        log.warning("%s", warning)
    if not workbench.uses_sub_models:
        return
    anatomy = workbench.anatomy
    found = ModelCut(
        groups=len(anatomy.groups), whole_share=whole_share(anatomy), kept_whole=describe_whole(anatomy)
    )  # fmt: skip
    if found.kept_whole:
        log.warning("%s", _describe(found))
    journal.set_meta(_CUT, found.model_dump_json())


def add_warning(journal: Journal, warning: str) -> None:
    """Store and log a further warning, once in a run."""
    warnings = read_model_warnings(journal)
    if warning not in warnings:
        journal.set_meta(_WARNING, json.dumps([*warnings, warning]))
        log.warning("%s", warning)


def _describe(found: ModelCut) -> str:
    kept = [f"{name} is {reason}" for name, reason in found.kept_whole.items()]
    more = f"; and {len(kept) - _SHOWN} more in result.json" if len(kept) > _SHOWN else ""
    return f"sub-models: {'; '.join(kept[:_SHOWN])}{more}"


def read_model_cut(journal: Journal) -> ModelCut | None:
    """Return how the model is cut; None without sub-models."""
    text = journal.meta(_CUT)
    return None if text is None else ModelCut.model_validate_json(text)


def read_model_warnings(journal: Journal) -> list[str]:
    """Return the warnings about the models."""
    found: list[str] = json.loads(journal.meta(_WARNING) or "[]")
    return found
