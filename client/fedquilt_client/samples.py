"""The samples of a client: its share of the board's data set, a delivered shard, or the board's own files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.datasets.own_samples import read_own_samples
from fedquilt_common.datasets.shard_files import DatasetForm, Shard, read_shard
from fedquilt_common.datasets.shares import split_samples
from fedquilt_common.errors import DataUnavailableError
from fedquilt_common.experiment_tools import ExperimentTools
from fedquilt_common.training_jobs import JobData
from fedquilt_common.types import ClientId, Examples
from fedquilt_common.wire.data_messages import DataMessage


def form_from(message: DataMessage) -> DatasetForm:
    """Return the form of the samples that a run's message describes."""
    return DatasetForm(
        message.name, tuple(message.shape), message.dtype, message.classes, message.task, tuple(message.label_shape),
        message.label_dtype,
    )  # fmt: skip


class ClientSamples(Protocol):
    """The samples of one client, in the shapes of ``Examples``."""

    @property
    def train(self) -> Examples:
        """Return those that it trains on, with the experiment's noise."""

    @property
    def raw(self) -> Examples:
        """Return those that it trains on as they are, before noise and ``data.normalise``."""

    @property
    def test(self) -> Examples:
        """Return those that it tests on; there may be none."""

    @property
    def public(self) -> NDArray[Any]:
        """Return the public samples, of shape (n, *input_shape)."""


@dataclass(frozen=True)
class DeliveredSamples:
    """Samples from files that the board received, or has of its own."""

    tools: ExperimentTools
    client: ClientId
    data: JobData

    @cached_property
    def _form(self) -> DatasetForm:
        if self.tools.form is None:
            raise DataUnavailableError("the run does not describe its samples; start coordinator and agent again")
        return self.tools.form

    @cached_property
    def _shard(self) -> Shard:
        if self.data.shard is not None:
            return read_shard(self.data.shard.path, self._form)
        if self.data.own is None:
            raise DataUnavailableError(
                f"client {self.client} has no samples: start the agent with --data {self.client}=FILE"
            )
        form = self.tools.experiment.data.form
        columns = (form.columns or ()) if form is not None else ()
        samples = read_own_samples(self.data.own, self._form, self._allowed, columns)
        return split_samples(samples, self.tools.holdout, self.tools.experiment.seed, self.client)

    @property
    def _allowed(self) -> Collection[str]:
        return self.tools.allowed_imports

    @property
    def train(self) -> Examples:
        """Return the file's training samples, with sensor noise if the experiment has it."""
        return self.tools.add_sensor_noise(self.client, self.tools.normalise(self.raw))

    @property
    def raw(self) -> Examples:
        """Return the file's training samples as they are."""
        return self._shard.train

    @property
    def test(self) -> Examples:
        """Return the file's test samples; official ones if clients test without keeping any."""
        if self.tools.tests_on_official_samples and self.data.test is not None:
            official = read_shard(self.data.test.path, self._form).train
            return self.tools.normalise(self.tools.select_test(official, self.raw.y))
        return self.tools.normalise(self._shard.test)

    @property
    def public(self) -> NDArray[Any]:
        """Return the delivered public samples."""
        if self.data.public is None:
            raise DataUnavailableError("the public samples were not delivered; start the coordinator again")
        public = np.asarray(self.tools.normalise(read_shard(self.data.public.path, self._form).train).x)
        public.setflags(write=False)
        return public
