"""The FedAKD thesis's template for time series (figures 3.3, left, and 4.4, left): convolutions over time, then LSTMs.

``harb`` are the ten models of its Table 3.3, for windows of four signals. With one LSTM more than the column NLL says,
as its notebook has, with four classes, and with these units of the LSTMs, which the table leaves out, all ten sizes
printed there come out to the parameter. Torch's LSTM has a second vector of 4 x units biases, which adds nothing; the
dropout is not given there either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.activations import activation, check_dropout
from fedquilt_common.models.shapes import check_size
from fedquilt_common.models.tabular import check_number


@dataclass(frozen=True)
class _Row:
    """A line of Table 3.3; ``units`` are found from ``size``, the number of parameters."""

    filters: int
    kernel: int
    convolutions: int
    lstms: int
    units: int
    activation: str
    optimiser: Literal["sgd", "adam", "rmsprop"]
    lr: float
    size: int


HARB: Final = (
    _Row(20, 5, 3, 3, 32, "relu", "adam", 1e-4, 28016), _Row(20, 5, 1, 2, 20, "sigmoid", "adam", 7e-5, 7064),
    _Row(20, 9, 2, 2, 20, "relu", "adam", 4e-5, 11004), _Row(10, 9, 2, 3, 32, "relu", "rmsprop", 1e-5, 23556),
    _Row(20, 9, 2, 3, 5, "sigmoid", "rmsprop", 7e-5, 5344), _Row(5, 9, 3, 4, 32, "tanh", "adam", 1e-4, 30601),
    _Row(20, 9, 3, 2, 5, "relu", "rmsprop", 1e-5, 8744), _Row(10, 18, 2, 4, 5, "sigmoid", "adam", 1e-5, 3544),
    _Row(5, 9, 1, 4, 20, "sigmoid", "sgd", 4e-5, 12189), _Row(20, 9, 1, 4, 5, "sigmoid", "sgd", 4e-5, 1944),
)  # fmt: skip


class TimeSeries(nn.Module):
    """Signals (n, channels, times) to logits (n, classes)."""

    def __init__(
        self, channels: int, classes: int, filters: int, kernel: int, convolutions: int, lstms: int, units: int,
        activation: str, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        stages: list[nn.Module] = []
        for index in range(convolutions):
            stages += [nn.Conv1d(filters if index else channels, filters, kernel), _activation(activation)]
            stages.append(nn.MaxPool1d(2))
        self.convolutions = nn.Sequential(*stages, nn.Dropout(dropout))
        self.lstm = nn.LSTM(filters, units, lstms, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(units, max(classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The last instant of the last LSTM decides."""
        states: Any = self.lstm(self.convolutions(x).mT)[0]
        logits: Tensor = self.head(self.dropout(states[:, -1]))
        return logits


_activation = activation


def build(
    input_shape: tuple[int, ...],
    classes: int,
    filters: int = 20,
    kernel: int = 9,
    convolutions: int = 2,
    lstms: int = 2,
    units: int = 20,
    activation: str = "relu",
    dropout: float = 0.1,
) -> nn.Module:
    """Input (n, channels, times), output (n, classes), or (n, 1) for regression. Raises ExperimentError."""
    if len(input_shape) != 2:
        raise ExperimentError(f"model: 'time-series' needs samples of shape (channels, times), not {input_shape}")
    counts = {"filters": filters, "kernel": kernel, "convolutions": convolutions, "lstms": lstms, "units": units}
    for name, value in counts.items():
        check_size(name, value)
    times = input_shape[1]
    for _ in range(convolutions):
        times = (times - kernel + 1) // 2
    if times < 1:
        raise ExperimentError(
            f"model: {convolutions} convolutions of {kernel} instants, each halved, leave nothing of "
            f"{input_shape[1]}; choose fewer or shorter ones"
        )
    return TimeSeries(input_shape[0], classes, **counts, activation=activation, dropout=check_dropout(dropout))


def harb(input_shape: tuple[int, ...], classes: int, number: int) -> nn.Module:
    """Build one of the FedAKD thesis's ten models for HARB: model ``number``, from 0 to 9, of Table 3.3.

    Raises ExperimentError.
    """
    row = HARB[check_number(number, len(HARB))]
    return build(
        input_shape, classes, row.filters, row.kernel, row.convolutions, row.lstms, row.units, row.activation
    )  # fmt: skip
