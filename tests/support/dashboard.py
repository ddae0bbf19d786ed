"""The dashboard for Grafana: its panels, its queries and the metrics that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

MONITORING: Final = Path(__file__).parents[2] / "deploy" / "monitoring"
DASHBOARD: Final[dict[str, Any]] = json.loads((MONITORING / "grafana" / "fedquilt.json").read_text())
PANELS: Final = DASHBOARD["panels"]
QUERIES: Final = sorted({target["expr"] for panel in PANELS for target in panel["targets"]})
OTHER_SCORES: Final = {"r2": 0.25, "map50": 0.5, "perplexity": 12.0, "mae": 3.5}
"""Scores of other learning tasks than classification, which the dashboard shows too."""


def ask_all_coordinators(query: str) -> str:
    """Return the query as Grafana sends it if the reader has chosen all coordinators."""
    return query.replace("$instance", ".*")


def name_metrics(queries: Iterable[str]) -> set[str]:
    """Return the metrics that the queries name, each alternative of ``fedquilt_(a|b)`` by itself."""
    text = " ".join(queries)
    alternatives = re.findall(r"\b(fedquilt_)\(([\w|]+)\)", text)
    listed = {start + end for start, ends in alternatives for end in ends.split("|")}
    return listed | set(re.findall(r"\bfedquilt_\w+", text))
