"""The experiment's ``data`` section: the data set, its partition, its public samples and its noise.

Importing this module is cheap (no numpy, no torch), because an idle agent imports it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from fedquilt_common.experiment.section import MOST, Count, Section, validation_error
from fedquilt_common.rejections import Problem
from fedquilt_common.wire.message_base import MAX_CLIENTS, Sha256

FileName = Annotated[str, Field(min_length=1, max_length=500)]
ColumnName = Annotated[str, Field(min_length=1, max_length=200)]
LABEL_COLUMN: Final = re.compile(r"label(_\d+)?", re.ASCII)
"""The name of a label's column in a table of a board's own samples."""

_PSEUDO_CLASSES = frozenset({"bins", "clusters", "features"})
_SCHEME_FIELDS: Mapping[str, frozenset[str]] = {
    "uniform": frozenset(), "natural": frozenset(), "subject": frozenset(), "manual": frozenset({"file", "sha256"}),
    "dirichlet": frozenset({"alpha"}) | _PSEUDO_CLASSES,
    "dirichlet-per-class": frozenset({"alpha", "rounding"}) | _PSEUDO_CLASSES,
    "labels-per-client": frozenset({"labels"}) | _PSEUDO_CLASSES,
    "per-class": frozenset({"per_class", "classes", "overlap"}) | _PSEUDO_CLASSES,
}  # fmt: skip
_REQUIRED: Mapping[str, str] = {"alpha": "try 0.5", "per_class": "try 20", "labels": "try 2", "file": "try shares.csv"}


class Partition(Section):
    """How the training samples are divided among the clients.

    Args:
        scheme: the rule by which each client gets its share.
        alpha: how even the shares of the Dirichlet schemes are; smaller is more uneven. Required for these schemes,
            forbidden otherwise.
        rounding: how the clients' parts of a class become whole numbers of samples; `dirichlet-per-class` only.
            `largest-remainder`: the clients with the largest remainders get one more. `cumulative-floor`: each class is
            cut at the floors of the cumulative parts, as in PFLlib. null: `largest-remainder`.
        labels: classes of a client. Required for `labels-per-client`, forbidden otherwise.
        per_class: samples of each class that a client has. Required for `per-class`, forbidden otherwise (FedAKD
            thesis, section 3.7.3).
        classes: least and most classes of a client, which draws their number between the two; `per-class` only. null:
            all classes.
        overlap: clients draw their samples independently, so that a sample can have several clients; `per-class` only.
        bins: for regression: the scheme takes N bins with equally many samples each as classes (FedAIoT, section
            3.2.1; the paper uses 10).
        clusters: the scheme takes N clusters of similar inputs as classes (FedAIoT, section 3.2.1).
        features: what `clusters` compares: `pca`, the 16 principal components; `vgg19`, its features of images,
            which need `weights/vgg19.safetensors` below the folder in `FEDQUILT_DATA`; or `package:factory` for your
            own function from samples (n, ...) to features (n, m). null: `pca`.
        file: a file below the folder in `FEDQUILT_DATA` that lists the samples of each client, as CSV or JSON.
            Required for `manual`, forbidden otherwise.
        sha256: digest of `file`. The coordinator fills it in; a machine with another file refuses the run.
        min_samples: the fewest samples of a client. The Dirichlet schemes guarantee it; an experiment in which a client
            would have fewer is refused. null: the Dirichlet schemes guarantee 10, or an equal share if there are too
            few samples.
        shares: number of shares, at least `data.clients`; the clients get the first ones, one each. null:
            `data.clients`.
    """

    scheme: Literal[
        "dirichlet", "dirichlet-per-class", "uniform", "labels-per-client", "per-class", "natural", "subject", "manual"
    ] = "uniform"
    alpha: Annotated[float, Field(gt=0, le=1e6)] | None = None
    rounding: Literal["largest-remainder", "cumulative-floor"] | None = None
    labels: Count | None = None
    per_class: Count | None = None
    classes: Annotated[tuple[Count, Count], Field(strict=False)] | None = None
    overlap: bool = False
    bins: Annotated[int, Field(ge=2, le=10_000)] | None = None
    clusters: Annotated[int, Field(ge=2, le=10_000)] | None = None
    features: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    file: FileName | None = None
    sha256: Sha256 | None = None
    min_samples: Count | None = None
    shares: Count | None = None

    @model_validator(mode="after")
    def _check_fields(self) -> Partition:
        problems = [*self._find_misplaced(), *self._find_contradictions()]
        if problems:
            raise validation_error(problems)
        return self

    def _find_misplaced(self) -> Iterator[Problem]:
        """List the fields that the scheme does not use, and those that it lacks."""
        allowed = _SCHEME_FIELDS[self.scheme]
        for name in sorted(frozenset[str]().union(*_SCHEME_FIELDS.values())):
            value = getattr(self, name)
            if value not in (None, False) and name not in allowed:
                yield Problem(name, value, f"the scheme '{self.scheme}' does not use it; remove it")
            if value is None and name in allowed and name in _REQUIRED:
                yield Problem(name, None, f"the scheme '{self.scheme}' needs it; {_REQUIRED[name]}")

    def _find_contradictions(self) -> Iterator[Problem]:
        if self.classes is not None and self.classes[0] > self.classes[1]:
            why = "the first number is the least, the second the most; swap them"
            yield Problem("classes", list(self.classes), why)
        if self.bins is not None and self.clusters is not None:
            yield Problem("clusters", self.clusters, "the bins are the classes already; remove one of the two")
        if self.features is not None and self.clusters is None:
            yield Problem("features", self.features, "only clusters use features; set clusters, or remove it")


class Public(Section):
    """Samples that the coordinator and all boards have, for algorithms with soft labels. Their labels are not used.

    Give `samples`, or one of `set` and `file`, each with or without `samples`.

    Args:
        set: the data set whose training samples are public; null: the experiment's own, whose public samples no
            client gets.
        file: a numpy array (`.npy`) below the folder in `FEDQUILT_DATA`.
        samples: number of public samples; null: all of `set` or `file`.
    """

    set: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    file: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    samples: Count | None = None

    @model_validator(mode="after")
    def _check_source(self) -> Public:
        if self.set is not None and self.file is not None:
            raise validation_error([Problem("file", self.file, "data.public has a set already; remove one of the two")])
        if self.set is None and self.file is None and self.samples is None:
            raise validation_error(
                [Problem("samples", None, "set how many of the training samples are public, such as 100")]
            )
        return self


class LabelNoise(Section):
    """Wrong labels among the samples that the clients train on. The partition is that of the right labels.

    Args:
        kind: `symmetric`: each other class is equally likely; `pairwise`: the next class, and the first after the last;
            `matrix`: drawn by the rows of `file` (FedAIoT, section 3.2.5).
        ratio: part of the labels that change, over all clients: exactly round(ratio x samples) of them.
        file: a CSV file below the folder in `FEDQUILT_DATA`: a line for each right class with a number for each
            assigned class, as in a confusion matrix. Required for `matrix`, forbidden otherwise.
        sha256: digest of `file`. The coordinator fills it in; a machine with another file refuses the run.
    """

    kind: Literal["symmetric", "pairwise", "matrix"] = "symmetric"
    ratio: Annotated[float, Field(gt=0, le=1)]
    file: FileName | None = None
    sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _check_file(self) -> LabelNoise:
        if self.kind == "matrix" and self.file is None:
            raise validation_error([Problem("file", None, "the kind 'matrix' needs it; try confusion.csv")])
        for name in ("file", "sha256"):
            if self.kind != "matrix" and getattr(self, name) is not None:
                why = f"the kind '{self.kind}' does not use it; remove it"
                raise validation_error([Problem(name, getattr(self, name), why)])
        return self


class SensorNoise(Section):
    """Noise and lost readings in the inputs that the clients train on. It is the same in every round.

    Args:
        std: standard deviation of the noise, as a multiple of the channel's own over the client's training samples.
        lost: probability that a reading is lost.
        fill: what replaces a lost reading: the channel's `mean`, or `zero`.
        channels: the channels are the `first` axis of a sample, such as (channels, times), or the `last`. In a sample
            of one axis each number is a channel.
    """

    std: Annotated[float, Field(ge=0, le=1e3)] = 0.0
    lost: Annotated[float, Field(ge=0, lt=1)] = 0.0
    fill: Literal["mean", "zero"] = "mean"
    channels: Literal["first", "last"] = "first"


def _as_list(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [value]
    if not isinstance(value, list | tuple):
        raise ValueError("must be a number, or a list of numbers, one for each channel")
    return value


_EachChannel = BeforeValidator(_as_list)
"""A number stands for a list with this number alone."""


class Normalise(Section):
    """The scale of the inputs: (sample - mean) / std, in training, tests and public samples alike.

    Give one number, or one for each channel, which is the first axis of a sample.

    Args:
        mean: what is subtracted, such as 0.5 for images from 0 to 1.
        std: what the difference is divided by.
    """

    mean: Annotated[
        tuple[Annotated[float, Field(ge=-1e9, le=1e9)], ...],
        Field(strict=False, min_length=1, max_length=10_000),
        _EachChannel,
    ]
    std: Annotated[
        tuple[Annotated[float, Field(ge=1e-6)], ...],
        Field(strict=False, min_length=1, max_length=10_000),
        _EachChannel,
    ]


OWN: Final = "own"
"""Stands for the boards' own samples where a data set is named."""


class Form(Section):
    """The form of the samples that the boards have themselves. A board checks its files against it.

    Args:
        shape: of a sample, such as `[6, 200]`; `[18]` for 18 features.
        classes: number of classes; 0 for regression.
        dtype: of the samples.
        task: the learning task; null: classification if there are classes, else regression.
        outputs: numbers to predict for a sample; regression only.
        columns: names of a table's feature columns, in the order of the flattened sample. A file may have them in
            another order, and further columns. null: all columns but the labels, in the order of each file.
    """

    shape: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=8)]
    classes: Annotated[int, Field(ge=0, le=MOST)]
    dtype: Literal["float32", "int64"] = "float32"
    task: Literal["classification", "regression"] | None = None
    outputs: Count = 1
    columns: Annotated[tuple[ColumnName, ...], Field(strict=False, min_length=1, max_length=10_000)] | None = None

    @model_validator(mode="after")
    def _check_columns(self) -> Form:
        if self.columns is None:
            return self
        features = math.prod(self.shape)
        if len(set(self.columns)) != len(self.columns) or len(self.columns) != features:
            why = f"a sample of shape {list(self.shape)} has {features} features; name a column for each, and each once"
            raise validation_error([Problem("columns", list(self.columns), why)])
        if labels := [name for name in self.columns if LABEL_COLUMN.fullmatch(name)]:
            raise validation_error([Problem("columns", labels, "a label is no feature; leave it out")])
        return self


class Bundle(Section):
    """The clients' samples on a web server or a drive, as `fedquilt data publish` writes them.

    Args:
        url: of the bundle's `manifest.json`.
        sha256: digest that the manifest must have; null: any. `fedquilt data publish` prints it.
    """

    url: Annotated[str, Field(min_length=8, max_length=2000, pattern=r"^https?://")]
    sha256: Sha256 | None = None


class Data(Section):
    """The data set, and how its samples are divided.

    Args:
        set: name of the data set, or `package:factory` for your own. Required, except for `own` with a `form`.
        clients: number of clients that share the training samples, numbered from 0; not more than the samples.
        partition: how the samples are divided among the clients.
        holdout: part of its samples that each client keeps for testing; then the clients evaluate. 0: the coordinator
            evaluates on the data set's test split. null: 0.25 for algorithms with personal models, else 0.
        local_test: what a client tests on. `holdout`: the samples that it keeps. `own-labels`: the official test
            samples of the classes that it has, as in FedRolex's code; then it keeps none. Needs classes.
        mixed: divide the official test samples among the clients, too; needs a `holdout` (FedReb thesis, section 5.3).
        public: the public set, for algorithms that exchange soft labels: `samples`; or `set` or `file`, each with or
            without `samples`.
        normalise: the scale of the inputs, for samples of floating-point numbers, such as `{mean: 0.5, std: 0.5}` for
            images; null: that of the data set. Sensor noise comes after it, features of a partition do not have it.
        label_noise: wrong labels in the training samples; null: none.
        sensor_noise: noise and lost readings in the inputs of the training samples; null: none.
        delivery: how a board gets its clients' samples. `local`: it has the data set. `broker`: the coordinator
            publishes them. `url`: it downloads them from `bundle`. `own`: it has samples that never leave it.
        form: the form of the boards' own samples; null: that of `set`. `own` only.
        bundle: where the samples are. Required for `url`, forbidden otherwise.
    """

    set: Annotated[str, Field(min_length=1, max_length=200)] = OWN
    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS)]
    partition: Partition = Partition()
    holdout: Annotated[float, Field(ge=0, lt=1)] | None = None
    local_test: Literal["holdout", "own-labels"] = "holdout"
    mixed: bool = False
    public: Public | None = None
    normalise: Normalise | None = None
    label_noise: LabelNoise | None = None
    sensor_noise: SensorNoise | None = None
    delivery: Literal["local", "broker", "url", "own"] = "local"
    form: Form | None = None
    bundle: Bundle | None = None

    @model_validator(mode="after")
    def _check_delivery(self) -> Data:
        problems = [*self._find_misplaced(), *self._find_missing(), *self._find_test_problems()]
        if problems:
            raise validation_error(problems)
        return self

    def _find_misplaced(self) -> Iterator[Problem]:
        """List the keys that the delivery does not use."""
        unused = {"own": ("partition", "label_noise", "mixed")}.get(self.delivery, ("form",))
        for key in (*unused, *(["bundle"] if self.delivery != "url" else [])):
            if getattr(self, key) != type(self).model_fields[key].default:
                yield Problem(key, None, f"the delivery '{self.delivery}' does not use it; remove it")
        if self.form is not None and self.set != OWN:
            yield Problem("set", self.set, "the form replaces it; remove one of the two")

    def _find_test_problems(self) -> Iterator[Problem]:
        """List the keys that contradict ``local_test``."""
        if self.local_test == "holdout":
            return
        why = "data.local_test is own-labels: clients test on official test samples; remove one of the two"
        for key in ("holdout", "mixed", "label_noise"):
            if getattr(self, key):
                yield Problem(key, getattr(self, key) if key != "label_noise" else None, why)

    def _find_missing(self) -> Iterator[Problem]:
        """List the keys that the delivery lacks."""
        if self.delivery == "url" and self.bundle is None:
            yield Problem("bundle", None, "the delivery 'url' needs it; give the bundle's url")
        if self.set == OWN and self.form is None:
            yield Problem("set", None, "is missing; name a data set, such as digits")
