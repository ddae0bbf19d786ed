"""FedAIoT's BiLSTM for CASAS (FedAIoT thesis, section 2.3.3.5): an embedding, a bidirectional LSTM, a linear layer.

196,108 parameters for a vocabulary of 2,000 sensor events, 64 units and twelve activities. The sequences of ``casas``
have 2,000 events, padded with 0 at the start; event 0 has an embedding of zeros that is not trained. As in the
published code, the linear layer takes both directions' outputs at the last event.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fedquilt_common.errors import ExperimentError
from fedquilt_common.models.shapes import check_size
from fedquilt_common.models.words import embed_words


class BiLstm(nn.Module):
    """Classifies sequences of events by the last one and those before it."""

    def __init__(self, vocabulary: int, classes: int, units: int) -> None:
        super().__init__()
        self.embedding = embed_words(vocabulary, units, padding=0)
        self.lstm = nn.LSTM(units, units, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * units, max(classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map numbers of events, int64 of shape (n, length), to logits of shape (n, classes)."""
        states: Any = self.lstm(self.embedding(x))[0]
        logits: Tensor = self.fc(states[:, -1])
        return logits


def build(input_shape: tuple[int, ...], classes: int, vocabulary: int = 2000, units: int = 64) -> nn.Module:
    """Build the network: input (n, length) of whole numbers, output (n, classes), or (n, 1) for regression.

    Args:
        input_shape: (length,) of a sequence.
        classes: number of classes; 0 for regression.
        vocabulary: number of different events with the padding; the samples' numbers are smaller.
        units: length of an embedding, and units of the LSTM in each direction.

    Raises:
        ExperimentError: the samples are no sequences, or a size is not positive.
    """
    if len(input_shape) != 1:
        raise ExperimentError(
            f"model.name = casas-bilstm: samples of shape {tuple(input_shape)} are no sequences of events; choose "
            "another model, such as mlp"
        )
    check_size("vocabulary", vocabulary)
    check_size("units", units)
    return BiLstm(vocabulary, classes, units)
