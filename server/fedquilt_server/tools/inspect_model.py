"""The report of ``fedquilt model inspect``: a model's channel groups, and the cost of its sub-models."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedquilt_common.errors import ExperimentError, FedquiltError, SliceError, UncuttableModelError
from fedquilt_common.experiment.training_section import Training
from fedquilt_common.files.yaml_text import load_yaml
from fedquilt_common.models import build_model, warn_about_running_norm
from fedquilt_common.models.norms import find_running_norm
from fedquilt_common.submodels.adaptivefl_pool import Start, make_pool
from fedquilt_common.submodels.selection import Rounding, check_widths, count_kept, prefix
from fedquilt_common.submodels.slices import Anatomy, Slice
from fedquilt_common.submodels.wholeness import describe_whole, whole_share
from fedquilt_common.tracing.building import build_on_meta
from fedquilt_common.tracing.cost import cost_of
from fedquilt_common.tracing.dry_run import check_cut
from fedquilt_common.tracing.graph_check import check_graph
from fedquilt_common.tracing.heads import list_heads
from fedquilt_common.tracing.memory_estimate import memory_to_train
from fedquilt_common.tracing.outputs import check_outputs, warn_about_outputs
from fedquilt_common.tracing.trace import Blueprint, blueprint_for
from fedquilt_server.status.results import describe_whole_share

WIDTHS: Final = (1.0, 0.5, 0.25, 0.125, 0.0625)
"""The five client capacities of FedRolex."""
LEVELS: Final = {"M": 0.66, "S": 0.40}
"""The levels and widths of AdaptiveFL's Table 1."""
_TOKENS: Final = {"transformer": (20, 10_000)}
"""For models of token sequences: the default length and vocabulary."""
_IMAGE: Final = (3, 32, 32)
_NOTHING_IS_CUT: Final = "no channels can be cut, so algorithms with sub-models refuse this model"
_SUB_MODELS_REFUSED: Final = "algorithms with sub-models refuse this model"
_FEWEST_GROUPS: Final = 2
"""AdaptiveFL leaves the first layer whole, so a pool needs another one."""


@dataclass(frozen=True)
class InspectOptions:
    """A model, its samples and its training.

    Args:
        name: the model's name, or ``package:factory``.
        params: parameters of the model.
        shape: shape of one sample, without the batch dimension.
        classes: number of outputs; 0 for regression.
        tokens: whether samples are integers from 0 to ``classes`` - 1, instead of floats.
        training: training section of an experiment, for the memory estimate.
        private: whether the memory estimate is that of training with differential privacy.
    """

    name: str
    params: Mapping[str, Any]
    shape: tuple[int, ...]
    classes: int
    tokens: bool
    training: Training
    private: bool = False

    @cached_property
    def blueprint(self) -> Blueprint:
        """The traced model.

        Raises:
            UncuttableModelError: the model cannot be sliced. Errors from building the model are also raised.
        """
        return blueprint_for(self._build, self._samples)

    @cached_property
    def arrays(self) -> Mapping[str, Any]:
        """The model's parameters and buffers by name, perhaps without their numbers."""
        return dict(build_on_meta(self._build).state_dict())

    @cached_property
    def heads(self) -> tuple[tuple[str, ...], ...]:
        """Names of the arrays of the last 1, 2, ... linear layers; none if the model does not run."""
        try:
            return list_heads(self._build, self._samples)
        except UncuttableModelError:
            return ()

    @cached_property
    def output_problem(self) -> str:
        """Why every run refuses the model; empty if none does."""
        return _read_error(lambda: check_outputs(self._build, self._samples, self._label))

    @cached_property
    def trace_problem(self) -> str:
        """Why the model cannot be traced; empty if it can."""
        return _read_error(lambda: self.blueprint)

    def list_problems(self, narrowest: float) -> list[str]:
        """Return why runs refuse the model: all of them, or those with sub-models down to the width ``narrowest``."""
        cut = self.trace_problem
        if not cut and not self.output_problem and self.blueprint.anatomy.groups:
            parts = [None, prefix(self.blueprint.anatomy, narrowest, "floor")]
            cut = _read_error(lambda: [check_cut(self._build, self.blueprint, self._samples, part) for part in parts])
            cut = cut or _read_error(lambda: check_graph(self._build, self.blueprint, self._samples))
        return [text for text in (self.output_problem, cut and f"{_SUB_MODELS_REFUSED}: {cut}") if text]

    @property
    def warnings(self) -> list[str]:
        """Why the model suits sub-models badly, or trains otherwise than its user may expect."""
        norm = find_running_norm(build_on_meta(self._build))
        whole = not self.trace_problem and not self.blueprint.anatomy.groups
        outputs = "" if self.output_problem else warn_about_outputs(self._build, self._samples, self._label)
        norms = "" if norm is None else warn_about_running_norm(self.name, norm)
        return [text for text in (_NOTHING_IS_CUT if whole else "", norms, outputs) if text]

    @property
    def _label(self) -> str:
        return f"model.name = {self.name}"

    @cached_property
    def _build(self) -> Callable[[], Any]:
        return build_model(self.name, self.params, self.shape, self.classes, ("*",))

    @property
    def _samples(self) -> NDArray[Any]:
        return np.zeros((1, *self.shape), np.int64 if self.tokens else np.float32)


def _read_error(check: Callable[[], object]) -> str:
    """Return the error that a check raises; empty without one."""
    try:
        check()
    except FedquiltError as error:
        return str(error)
    return ""


def read_options(
    name: str,
    params: Sequence[str],
    shape: str | None,
    classes: int | None,
    tokens: bool,
    training: Training,
    private: bool = False,
) -> InspectOptions:
    """Read the options of the command line. Without ``shape`` and ``classes``, the model's defaults are used.

    Raises:
        ExperimentError: a shape or a parameter is not in the right form.
    """
    length, vocabulary = _TOKENS.get(name, (0, 10))
    sample = _read_shape(shape) if shape else (length,) if length else _IMAGE
    outputs = vocabulary if classes is None else classes
    values = dict(_read_parameter(text) for text in params)
    return InspectOptions(name, values, sample, outputs, tokens or bool(length), training, private)


def _read_shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5})*", text):
        raise ExperimentError(f"--input {text}: write the shape of one sample as 3x32x32 or 561")
    return tuple(map(int, text.split("x")))


def _read_parameter(text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise ExperimentError(f"--set {text}: write it as key=value, such as hidden=[100]")
    return key, load_yaml(value, f"--set {key}")


def inspect_model(
    options: InspectOptions,
    widths: Sequence[float],
    levels: Mapping[str, float],
    starts: Sequence[Start],
    rounding: Rounding = "floor",
) -> dict[str, Any]:
    """Return the report: the channel groups, one row per width, one row per member of AdaptiveFL's pool.

    A model that cannot be traced has its heads, and the reason among its ``problems``.

    Args:
        options: the model.
        widths: widths to report, in (0, 1].
        levels: AdaptiveFL's levels below the full model, with the width of each.
        starts: AdaptiveFL's start layers; chosen for the model if empty.
        rounding: of the channels that a width keeps.

    Raises:
        ExperimentError: there is no such model, or it cannot be built.
        ValueError: a width is not in (0, 1].
    """
    check_widths("widths", {str(width): width for width in widths})
    entries = sum(math.prod(array.shape) for array in options.arrays.values())
    return {
        "model": options.name,
        "input_shape": list(options.shape),
        "classes": options.classes,
        "batch": options.training.batch,
        "precision": options.training.precision,
        "private": options.private,
        "bytes": 4 * entries,
        "problems": options.list_problems(min(widths)),
        "warnings": options.warnings,
        "heads": [_head_row(options.arrays, number, names) for number, names in enumerate(options.heads, 1)],
        **(_NO_SUB_MODELS if options.trace_problem else _sub_models(options, widths, levels, starts, rounding)),
    }


_NO_SUB_MODELS: Final[Mapping[str, Any]] = {"groups": [], "widths": [], "pool": []}
"""What a report has of a model that cannot be traced."""


def _sub_models(
    options: InspectOptions,
    widths: Sequence[float],
    levels: Mapping[str, float],
    starts: Sequence[Start],
    rounding: Rounding,
) -> dict[str, Any]:
    """Return what the report has of a model that can be traced; arguments as ``inspect_model``."""
    anatomy = options.blueprint.anatomy
    whole = _cost_row(options, prefix(anatomy, 1.0, "floor"))
    return {
        **whole,
        "groups": [{**asdict(group), "each": _channels_each(options.blueprint, number),
                    "widths": {str(w): count_kept(group, w, rounding) for w in widths}}
                   for number, group in enumerate(anatomy.groups)],
        "whole_share": whole_share(anatomy),
        "kept_whole": describe_whole(anatomy),
        "widths": [{"width": width, **_cost_row(options, prefix(anatomy, width, rounding), whole)} for width in widths],
        **_pool_rows(options, anatomy, levels, starts, whole),
    }  # fmt: skip


def _channels_each(blueprint: Blueprint, number: int) -> int:
    """Count the channels of its layer that one channel of a group stands for, such as one in each of G groups."""
    layer = blueprint.anatomy.groups[number].name.split("#")[0].split("+")[0]
    axes = (axis for step in blueprint.steps if step.name == layer for axis in step.axes)
    counts = (sum(segment.inner for segment in axis if segment.group == number) for axis in axes)
    return next((count for count in counts if count), 1)


def _head_row(arrays: Mapping[str, Any], number: int, names: Sequence[str]) -> dict[str, Any]:
    """Describe the head that ``head_layers: number`` selects in this model."""
    layers = dict.fromkeys(name.rpartition(".")[0] for name in names)
    entries = sum(math.prod(arrays[name].shape) for name in names)
    return {"head_layers": number, "layers": list(layers), "entries": entries}


def _cost_row(options: InspectOptions, part: Slice, whole: Mapping[str, Any] | None = None) -> dict[str, Any]:
    cost = cost_of(options.blueprint, part)
    memory = memory_to_train(options.blueprint, part, options.training, private=options.private).total
    ratio = round(cost.params / whole["params"], 4) if whole else 1.0
    return {"params": cost.params, "flops": cost.flops, "ratio": ratio, "bytes": 4 * part.entries,
            "training_memory": memory}  # fmt: skip


def _pool_rows(
    options: InspectOptions,
    anatomy: Anatomy,
    levels: Mapping[str, float],
    starts: Sequence[Start],
    whole: Mapping[str, Any],
) -> dict[str, Any]:
    """Return AdaptiveFL's pool, largest first as in Table 1, or the reason why the model has no pool."""
    if not starts and len(anatomy.groups) < _FEWEST_GROUPS:
        return {
            "pool": [],
            "pool_error": "AdaptiveFL's pool is empty for this model, because too few of its layers can be cut",
        }
    try:
        pool = make_pool(anatomy, levels, starts or default_starts(anatomy))
    except SliceError as error:
        return {"pool": [], "pool_error": str(error)}
    return {"pool": [
        {"name": m.name, "r_w": m.width, "I": m.start, **_cost_row(options, m.part, whole)} for m in reversed(pool)
    ]}  # fmt: skip


def default_starts(anatomy: Anatomy) -> tuple[Start, ...]:
    """Choose start layers: those that the model declares, otherwise the last layers that can be cut.

    At most three of the latter are chosen, and never the first.
    """
    depths = sorted({group.depth for group in anatomy.groups}, reverse=True)
    return anatomy.start_layers or tuple(depth for depth in depths[:3] if depth > 0) or (1,)


def print_report(report: Mapping[str, Any], console: Console) -> None:
    """Print the report as tables."""
    shape = " x ".join(map(str, report["input_shape"]))
    title = f"{report['model']} on {shape}, {report['classes']} classes"
    if "params" in report:
        macs = _two_digits(report["flops"] / 1e6)
        title += f": {report['params']:,} parameters, {macs} M multiply-accumulates (MACs) per sample"
    console.print(title)
    for problem in report["problems"]:
        console.print(f"  Error: {problem}", markup=False)
    if report["groups"]:
        _print_groups(report, console)
    for name, reason in report.get("kept_whole", {}).items():
        console.print(f"  {name} is {reason}", markup=False)
    for warning in report["warnings"]:
        console.print(f"  Warning: {warning}", markup=False)
    for head in report["heads"]:
        layers = ", ".join(head["layers"])
        line = (
            f"  head_layers: {head['head_layers']} is {layers}, {head['entries']:,} of {report['bytes'] // 4:,} numbers"
        )
        console.print(line, markup=False, highlight=False)
    if report["widths"]:
        console.print(_cost_table("width", report["widths"], lambda row: str(row["width"]), report))
    if report["pool"]:
        console.print(_cost_table("AdaptiveFL's pool", report["pool"], _member_label, report))
    elif "pool_error" in report:
        console.print(report["pool_error"], markup=False)


def _print_groups(report: Mapping[str, Any], console: Console) -> None:
    """Print the channel groups, and how much belongs to none."""
    groups = Table("layer", "channel group", "channels", *(f"at {row['width']}" for row in report["widths"]))
    for group in report["groups"]:
        size, each = group["size"], group["each"]
        channels = str(size) if each == 1 else f"{size * each} ({size} x {each})"
        kept = [str(count * each) for count in group["widths"].values()]
        groups.add_row(str(group["depth"]), group["name"], channels, *kept)
    console.print(groups)
    console.print(f"  {describe_whole_share(report['whole_share'])}", highlight=False)


def _member_label(row: Mapping[str, Any]) -> str:
    name: str = row["name"]
    return name + (f"  r_w {row['r_w']}, from layer {row['I']}" if row["I"] is not None else "")


def _cost_table(title: str, rows: Sequence[Mapping[str, Any]], label: Any, report: Mapping[str, Any]) -> Table:
    privacy = ", private" if report["private"] else ""
    memory = f"training memory (batch {report['batch']}, {report['precision']}{privacy})"
    table = Table(title, "parameters", "MACs", "ratio", "size", memory)
    for row in rows:
        table.add_row(
            label(row), f"{row['params']:,}", f"{_two_digits(row['flops'] / 1e6)} M", _two_digits(row["ratio"]),
            f"{_two_digits(row['bytes'] / 2**20)} MiB", f"{row['training_memory'] / 2**20:,.1f} MiB",
        )  # fmt: skip
    return table


def _two_digits(value: float) -> str:
    """Return a number with two decimals, or with as many as show two digits of a small one."""
    return f"{value:,.2f}" if value >= 0.1 else f"{value:.2g}"
