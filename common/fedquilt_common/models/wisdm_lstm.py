"""FedAIoT's LSTM for WISDM (FedAIoT thesis, section 2.3.3.1): one LSTM, all its outputs flattened, two linear layers.

155,612 parameters for windows of 6 axes and 200 times and twelve classes, as ``wisdm-w`` and ``wisdm-p`` have them: an
LSTM of 6 units, 1,200 outputs, 128 hidden ones. Torch's LSTM has two vectors of biases, which both count.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.activations import check_dropout
from fedquilt_common.models.shapes import check_size


class WindowLstm(nn.Module):
    """An LSTM over the times of a window, and a perceptron on its outputs of all times."""

    def __init__(self, channels: int, times: int, classes: int, units: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, units, batch_first=True)
        self.flatten = nn.Flatten()
        self.dropout1 = nn.Dropout(dropout)
        self.fc1 = nn.Linear(times * units, hidden)
        self.relu = nn.ReLU()
        self.dropout2 = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, max(classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map signals of shape (n, channels, times) to logits of shape (n, classes)."""
        states: Any = self.lstm(x.mT)[0]
        inner = self.relu(self.fc1(self.dropout1(self.flatten(states))))
        logits: Tensor = self.fc2(self.dropout2(inner))
        return logits


def build(
    input_shape: tuple[int, ...], classes: int, units: int = 6, hidden: int = 128, dropout: float = 0.2
) -> nn.Module:
    """Build the network: input (n, channels, times), output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (channels, times) of a window, such as (6, 200) or, of the accelerometer alone, (3, 200).
        classes: number of classes; 0 for regression.
        units: of the LSTM.
        hidden: outputs of the hidden linear layer.
        dropout: before each linear layer, from 0 to below 1.

    Raises:
        ExperimentError: the samples are no series, or a parameter is out of range.
    """
    if len(input_shape) != 2:
        raise ExperimentError(
            f"model.name = wisdm-lstm: samples of shape {tuple(input_shape)} are no series (channels, times); choose "
            "another model, such as mlp"
        )
    check_size("units", units)
    check_size("hidden", hidden)
    return WindowLstm(*input_shape, classes, units, hidden, check_dropout(dropout))
