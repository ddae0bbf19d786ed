"""The memory that training takes, for each client and precision (FedAIoT, table 8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field


class TrainingMemory(BaseModel):
    """The peak memory of a client's trainings, in bytes; null: not measured."""

    model_config = ConfigDict(frozen=True)

    client: int = Field(description="0 in a run of `fedquilt central`")
    precision: str = Field(description="number format in training, as `training.precision`")
    trainings: int = Field(description="accepted replies with a training")
    memory_peak: int | None = Field(None, description="of the training process, the highest over the trainings")
    memory_peak_mean: float | None = Field(None, description="the mean of these peaks over the trainings")
    gpu_memory_peak: int | None = Field(None, description="of torch's tensors on the GPU, the highest")
    gpu_memory_peak_mean: float | None = Field(None, description="the mean of these peaks")


@dataclass
class _Peaks:
    """Number, sum and maximum of the peaks that were measured."""

    count: int = 0
    total: int = 0
    highest: int | None = None

    def add(self, peak: int | None) -> None:
        if peak is not None:
            self.count, self.total = self.count + 1, self.total + peak
            self.highest = peak if self.highest is None else max(self.highest, peak)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass
class MemoryTally:
    """Collects the peaks of one client's trainings."""

    trainings: int = 0
    _process: _Peaks = field(default_factory=_Peaks)
    _gpu: _Peaks = field(default_factory=_Peaks)

    def add(self, memory_peak: int | None, gpu_memory_peak: int | None) -> None:
        """Count a training with its peaks in bytes; None is not measured."""
        self.trainings += 1
        self._process.add(memory_peak)
        self._gpu.add(gpu_memory_peak)

    def row(self, client: int, precision: str) -> TrainingMemory:
        """Return what was measured up to now."""
        process, gpu = self._process, self._gpu
        return TrainingMemory(
            client=client, precision=precision, trainings=self.trainings,
            memory_peak=process.highest, memory_peak_mean=process.mean,
            gpu_memory_peak=gpu.highest, gpu_memory_peak_mean=gpu.mean,
        )  # fmt: skip


def highest_peaks(rows: Sequence[TrainingMemory]) -> dict[str, int]:
    """Return the highest peaks over all clients by name, without those that were not measured."""
    found = {
        "memory_peak": _highest(row.memory_peak for row in rows),
        "gpu_memory_peak": _highest(row.gpu_memory_peak for row in rows),
    }
    return {name: peak for name, peak in found.items() if peak is not None}


def _highest(peaks: Iterable[int | None]) -> int | None:
    return max((peak for peak in peaks if peak is not None), default=None)
