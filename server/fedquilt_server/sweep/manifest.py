"""``sweep.json``, the file of a sweep's folder that lists its runs. The report reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from fedquilt_common.errors import RunFolderError
from fedquilt_common.files.disk_errors import report_disk_errors
from fedquilt_common.files.durable import write_atomically
from fedquilt_common.rejections import first_problem

MANIFEST: Final = "sweep.json"
SEED: Final = "seed"
"""The axis over whose values the reports average."""


def is_one_value(value: Any) -> bool:
    """Whether a value is neither a list nor a mapping."""
    return value is None or isinstance(value, bool | int | float | str)


def _check_one_value(value: Any) -> Any:
    """Reject lists and mappings with one error, where pydantic would report one for each type that fits."""
    if not is_one_value(value):
        raise PydanticCustomError("axis_value", "must be one number, text, true, false or null")
    return value


AxisValue: TypeAlias = Annotated[bool | int | float | str | None, BeforeValidator(_check_one_value)]
"""The value of an axis of a sweep, or its label."""
Settings: TypeAlias = Mapping[str, AxisValue]
"""The value of each axis."""
SweptStatus: TypeAlias = Literal["pending", "running", "finished", "failed", "stopped"]


class ManifestRecord(BaseModel):
    """Base of the manifest's records: immutable, strict types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class PublishedFigure(ManifestRecord):
    """Scores that a paper gives for one case.

    Args:
        case: the value or label of some axes; the figure belongs to each run that has them.
        scores: a score's name, as in `final` of `result.json` where there is one, and its value in the same unit.
    """

    case: Annotated[dict[str, AxisValue], Field(min_length=1)]
    scores: Annotated[dict[str, float], Field(min_length=1)]


class PublishedTable(ManifestRecord):
    """Figures of one source.

    Args:
        source: the paper and its table.
        note: what a reader must hold beside them, such as the number of runs.
        baseline: the value or label of some axes; a score `gain_accuracy` is the accuracy less that of the most similar
            run that has them and the same seed.
        figures: the scores, case by case.
    """

    source: Annotated[str, Field(min_length=1)]
    note: str = ""
    baseline: dict[str, AxisValue] = Field(default_factory=dict)
    figures: list[PublishedFigure]


class SweptRun(ManifestRecord):
    """One run of a sweep.

    Args:
        folder: name of the run folder in the sweep's.
        settings: the value of each axis; its label if the axis has labels.
        label: the settings as text, for people.
        status: `pending` until it starts. `stopped`: interrupted, and resumed by the same command. `running` stays if
            the sweep is killed.
        reason: why it failed or was stopped.
        exit_code: exit code of its process; a negative one names a signal. Null before its end.
    """

    folder: Annotated[str, Field(pattern=r"^[^/\\.][^/\\]*$")]
    settings: dict[str, AxisValue]
    label: str
    status: SweptStatus = "pending"
    reason: str = ""
    exit_code: int | None = None

    @property
    def case(self) -> dict[str, AxisValue]:
        """The settings without the seed: runs of one case differ by chance only."""
        return {axis: value for axis, value in self.settings.items() if axis != SEED}


class SweepManifest(ManifestRecord):
    """All runs of a sweep, in their order. The JSON key of ``version`` is ``schema``.

    Args:
        version: version of the file's form.
        name: name of the sweep.
        vary: the values of each axis, or their labels.
        published: a paper's figures, as the sweep file gives them.
        changed: where the command line differs from the sweep's file: a key and its value of `--set`, or a key that the
            file does not vary and its values of `--vary`.
        runs: the runs.
    """

    version: Annotated[Literal[1], Field(alias="schema")] = 1
    name: str
    vary: dict[str, list[AxisValue]]
    published: list[PublishedTable] = Field(default_factory=list)
    changed: dict[str, Any] = Field(default_factory=dict)
    runs: list[SweptRun]

    def to_json(self) -> str:
        """Return the text of ``sweep.json``."""
        return self.model_dump_json(indent=2, by_alias=True) + "\n"


def write_manifest(folder: Path, manifest: SweepManifest) -> None:
    """Replace the ``sweep.json`` of a sweep's folder.

    Raises:
        RunFolderError: the disk is full or read-only.
    """
    with report_disk_errors(folder / MANIFEST):
        write_atomically(folder / MANIFEST, manifest.to_json())


def holds_sweep(folder: Path) -> bool:
    """Whether the folder is that of a sweep."""
    return (folder / MANIFEST).is_file()


def read_manifest(folder: Path) -> SweepManifest:
    """Read the ``sweep.json`` of a sweep's folder.

    Raises:
        RunFolderError: the folder or the file is missing, cannot be read, or is damaged.
    """
    path = folder / MANIFEST
    if not holds_sweep(folder):
        raise RunFolderError(f"{folder}: holds no {MANIFEST}; name the folder of a sweep, such as one below runs/")
    try:
        return SweepManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}; make it readable") from None
    except ValidationError as error:
        raise RunFolderError(
            f"{path}: is damaged ({first_problem(error)}); "
            "delete it and run the same sweep again, which keeps the finished runs"
        ) from None
