"""``fedquilt model inspect``: a model's channel groups, and what its sub-models cost."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from fedquilt_common.errors import ExperimentError, SliceError
from fedquilt_common.experiment.sections import Training
from fedquilt_common.files.yaml_text import load_yaml
from fedquilt_common.models import build_model
from fedquilt_common.submodels.adaptivefl_pool import make_pool
from fedquilt_common.submodels.selection import check_widths, count_channels, prefix
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.tracing.cost import cost_of
from fedquilt_common.tracing.memory_estimate import memory_to_train
from fedquilt_common.tracing.trace import Blueprint, blueprint_for

WIDTHS: Final = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""FedRolex's five client capacities."""
LEVELS: Final = {"M": 0.66, "S": 0.40}
"""AdaptiveFL's Table 1, as are the start layers that suit a model with so many layers."""
STARTS: Final = (8, 6, 4)
_TOKENS: Final = {"transformer": (20, 10_000)}
"""Models of word sequences: length and vocabulary that they are shown with."""
_IMAGE: Final = (3, 32, 32)


@dataclass(frozen=True)
class PoolOptions:
    """A model and the samples it is for. ``tokens``: these are whole numbers below ``classes``."""

    name: str
    params: Mapping[str, Any]
    shape: tuple[int, ...]
    classes: int
    tokens: bool
    training: Training

    @cached_property
    def blueprint(self) -> Blueprint:
        """Raises UncuttableModelError, and whatever building the model raises."""
        build = build_model(self.name, self.params, self.shape, self.classes, ("*",))
        return blueprint_for(build, np.zeros((1, *self.shape), np.int64 if self.tokens else np.float32))


def question(
    name: str, params: Sequence[str], shape: str | None, classes: int | None, tokens: bool, training: Training
) -> PoolOptions:
    """What the command line asks; raises ExperimentError for a shape or parameter that is not understood."""
    length, words = _TOKENS.get(name, (0, 10))
    found = _shape(shape) if shape else (length,) if length else _IMAGE
    given = dict(_parameter(text) for text in params)
    return PoolOptions(name, given, found, words if classes is None else classes, tokens or bool(length), training)


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*", text):
        raise ExperimentError(f"--input {text}: write the shape of one sample as 3x32x32 or 561")
    return tuple(map(int, text.split("x")))


def _parameter(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ExperimentError(f"--set {text}: write it as key=value, such as hidden=[100]")
    return key, load_yaml(value, f"--set {key}")


def inspect(
    asked: PoolOptions, widths: Sequence[float], levels: Mapping[str, float], starts: Sequence[int]
) -> dict[str, Any]:
    """The report: groups, one line for each width, one for each member of AdaptiveFL's pool.

    Raises UncuttableModelError for a model that cannot be cut, ValueError for widths that are none.
    """
    check_widths("widths", {str(width): width for width in widths})
    anatomy = asked.blueprint.anatomy
    whole = _costs(asked, prefix(anatomy, 1.0, "floor"))
    return {
        "model": asked.name,
        "input_shape": list(asked.shape),
        "classes": asked.classes,
        "batch": asked.training.batch,
        "precision": asked.training.precision,
        **whole,
        "groups": [{**asdict(group), "widths": {str(w): count_channels(group.size, w, "floor") for w in widths}}
                   for group in anatomy.groups],
        "kept_whole": dict(anatomy.kept_whole),
        "heads": [_head(anatomy, number, names) for number, names in enumerate(anatomy.heads, 1)],
        "widths": [{"width": width, **_costs(asked, prefix(anatomy, width, "floor"), whole)} for width in widths],
        **_pool(asked, anatomy, levels, starts, whole),
    }  # fmt: skip


def _head(anatomy: Anatomy, number: int, names: frozenset[str]) -> dict[str, Any]:
    """What ``head_layers: number`` means for this model."""
    layers = dict.fromkeys(name.rpartition(".")[0] for name in anatomy.arrays if name in names)
    entries = sum(math.prod(anatomy.arrays[name].shape) for name in names)
    return {"head_layers": number, "layers": list(layers), "entries": entries}


def _costs(asked: PoolOptions, part: Slice, whole: Mapping[str, Any] | None = None) -> dict[str, Any]:
    cost = cost_of(asked.blueprint, part)
    memory = memory_to_train(asked.blueprint, part, asked.training).total
    ratio = round(cost.params / whole["params"], 4) if whole else 1.0
    return {"params": cost.params, "flops": cost.flops, "ratio": ratio, "bytes": 4 * part.entries,
            "training_memory": memory}  # fmt: skip


def _pool(
    asked: PoolOptions, anatomy: Anatomy, levels: Mapping[str, float], starts: Sequence[int], whole: Mapping[str, Any]
) -> dict[str, Any]:
    """AdaptiveFL's pool, largest first as in Table 1; or why the model has none."""
    try:
        pool = make_pool(anatomy, levels, starts or default_starts(anatomy))
    except SliceError as error:
        return {"pool": [], "pool_error": str(error)}
    return {"pool": [
        {"name": m.name, "r_w": m.width, "I": m.start, **_costs(asked, m.part, whole)} for m in reversed(pool)
    ]}  # fmt: skip


def default_starts(anatomy: Anatomy) -> tuple[int, ...]:
    """Table 1's for a deep model; for others the last layers that can be cut, up to three, but not the first."""
    depths = sorted({group.depth for group in anatomy.groups}, reverse=True)
    return STARTS if depths and depths[0] >= STARTS[0] else tuple(depth for depth in depths[:3] if depth > 0) or (1,)


def show(report: Mapping[str, Any], console: Console) -> None:
    """The report as tables."""
    shape = " x ".join(map(str, report["input_shape"]))
    console.print(f"{report['model']} on {shape}, {report['classes']} classes: {report['params']:,} parameters, "
                  f"{report['flops'] / 1e6:,.2f} M operations a sample")  # fmt: skip
    groups = Table("layer", "channel group", "channels", *(f"at {row['width']}" for row in report["widths"]))
    for group in report["groups"]:
        groups.add_row(str(group["depth"]), group["name"], str(group["size"]), *map(str, group["widths"].values()))
    console.print(groups)
    for name, reason in report["kept_whole"].items():
        console.print(f"  {name} is kept whole: {reason}", markup=False)
    for head in report["heads"]:
        layers = ", ".join(head["layers"])
        words = (
            f"  head_layers: {head['head_layers']} is {layers}, {head['entries']:,} of {report['bytes'] // 4:,} numbers"
        )
        console.print(words, markup=False, highlight=False)
    console.print(_cost_table("width", report["widths"], lambda row: str(row["width"]), report))
    if report["pool"]:
        console.print(_cost_table("AdaptiveFL's pool", report["pool"], _member, report))
    else:
        console.print(report["pool_error"], markup=False)


def _member(row: Mapping[str, Any]) -> str:
    name: str = row["name"]
    return name + (f"  r_w {row['r_w']}, from layer {row['I']}" if row["I"] is not None else "")


def _cost_table(title: str, rows: Sequence[Mapping[str, Any]], label: Any, report: Mapping[str, Any]) -> Table:
    memory = f"to train (batch {report['batch']}, {report['precision']})"
    table = Table(title, "parameters", "operations", "ratio", "size", memory)
    for row in rows:
        table.add_row(
            label(row), f"{row['params']:,}", f"{row['flops'] / 1e6:,.2f} M", f"{row['ratio']:.2f}",
            f"{row['bytes'] / 2**20:,.2f} MiB", f"{row['training_memory'] / 2**20:,.1f} MiB",
        )  # fmt: skip
    return table
