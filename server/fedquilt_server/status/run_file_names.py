"""The names of the files in a run folder that several modules write or read."""

from __future__ import annotations

from typing import Final, Literal

EXPERIMENT: Final = "experiment.yaml"
RESULT: Final = "result.json"
MODEL: Final = "global.safetensors"
JOURNAL: Final = "journal.sqlite"
LOGS: Final = "logs"
"""The folder with the output of each process."""

RunFile = Literal[
    "rounds.csv", "clients.csv", "classes.csv", "boards.csv", "replies.csv", "telemetry.csv",
    "events.jsonl", "coverage.json",
]  # fmt: skip
"""A file that the page offers for download, beside the result and the model."""
ROUNDS: Final[RunFile] = "rounds.csv"
CLIENTS: Final[RunFile] = "clients.csv"
CLASSES: Final[RunFile] = "classes.csv"
BOARDS: Final[RunFile] = "boards.csv"
REPLIES: Final[RunFile] = "replies.csv"
TELEMETRY: Final[RunFile] = "telemetry.csv"
EVENTS: Final[RunFile] = "events.jsonl"
COVERAGE: Final[RunFile] = "coverage.json"
