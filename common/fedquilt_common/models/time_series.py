"""The FedAKD thesis's template for time series (figures 3.3, left, and 4.4, left): convolutions over time, then LSTMs.

``harb`` are the ten models of its Table 3.3, for windows of four signals. Three assumptions give all ten printed sizes
exactly: one LSTM more than the table's column NLL, as in the thesis's notebook; four classes; and our units of the
LSTMs, which the table does not list. Torch's LSTM has a second vector of 4 x units biases, which adds nothing.
The table does not list the dropout either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.activations import check_dropout, make_activation
from fedquilt_common.models.shapes import check_size
from fedquilt_common.models.tabular import check_number


@dataclass(frozen=True)
class HarbModel:
    """A row of Table 3.3.

    Attributes:
        filters: channels of each convolution.
        kernel: length of each convolution.
        convolutions: how many.
        lstms: how many, one more than the table's column NLL.
        units: of each LSTM; not in the table, but derived from ``size``.
        activation: of the convolutions.
        optimiser: of the client that trains this model.
        lr: its learning rate.
        size: number of parameters, as printed.
    """

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
    HarbModel(20, 5, 3, 3, 32, "relu", "adam", 1e-4, 28016), HarbModel(20, 5, 1, 2, 20, "sigmoid", "adam", 7e-5, 7064),
    HarbModel(20, 9, 2, 2, 20, "relu", "adam", 4e-5, 11004), HarbModel(10, 9, 2, 3, 32, "relu", "rmsprop", 1e-5, 23556),
    HarbModel(20, 9, 2, 3, 5, "sigmoid", "rmsprop", 7e-5, 5344), HarbModel(5, 9, 3, 4, 32, "tanh", "adam", 1e-4, 30601),
    HarbModel(20, 9, 3, 2, 5, "relu", "rmsprop", 1e-5, 8744), HarbModel(10, 18, 2, 4, 5, "sigmoid", "adam", 1e-5, 3544),
    HarbModel(5, 9, 1, 4, 20, "sigmoid", "sgd", 4e-5, 12189), HarbModel(20, 9, 1, 4, 5, "sigmoid", "sgd", 4e-5, 1944),
)  # fmt: skip


class TimeSeries(nn.Module):
    """Convolutions over time, then LSTMs, then a linear layer."""

    def __init__(
        self, channels: int, classes: int, filters: int, kernel: int, convolutions: int, lstms: int, units: int,
        activation: str, dropout: float,
    ) -> None:  # fmt: skip
        super().__init__()
        stages: list[nn.Module] = []
        for index in range(convolutions):
            stages += [nn.Conv1d(filters if index else channels, filters, kernel), make_activation(activation)]
            stages.append(nn.MaxPool1d(2))
        self.convolutions = nn.Sequential(*stages, nn.Dropout(dropout))
        self.lstm = nn.LSTM(filters, units, lstms, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(units, max(classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map signals of shape (n, channels, times) to logits of shape (n, classes), by the LSTMs' last output."""
        states: Any = self.lstm(self.convolutions(x).mT)[0]
        logits: Tensor = self.head(self.dropout(states[:, -1]))
        return logits


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
    """Build the network: input (n, channels, times), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (channels, times) of a sample.
        classes: number of classes; 0 for regression.
        filters: channels of each convolution.
        kernel: length of each convolution.
        convolutions: how many; each is followed by a pooling that halves the times.
        lstms: how many.
        units: of each LSTM.
        activation: of ``ACTIVATIONS``.
        dropout: after the convolutions and after the LSTMs, from 0 to below 1.

    Raises:
        ExperimentError: the samples are no series, are too short, or a parameter is out of range.
    """
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
            f"model: {convolutions} convolutions of {kernel} instants, each followed by pooling, leave nothing of "
            f"{input_shape[1]} instants; choose fewer or shorter ones"
        )
    return TimeSeries(input_shape[0], classes, **counts, activation=activation, dropout=check_dropout(dropout))


def harb(input_shape: tuple[int, ...], classes: int, number: int) -> nn.Module:
    """Build one of the FedAKD thesis's ten models for HARB: its number in Table 3.3, from 0 to 9.

    Input (n, channels, times), output (n, classes).

    Raises:
        ExperimentError: the table has no model of this number, or the samples do not fit.
    """
    row = HARB[check_number(number, len(HARB))]
    return build(
        input_shape, classes, row.filters, row.kernel, row.convolutions, row.lstms, row.units, row.activation
    )  # fmt: skip
