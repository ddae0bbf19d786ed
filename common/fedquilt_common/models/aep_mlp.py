"""FedAIoT's perceptron for AEP (FedAIoT thesis, section 2.3.3.6): layers of 210, 420, 840, 420, 210, with dropout.

888,091 parameters for the 18 features of ``aep`` and one target. It is ``mlp`` with these sizes. The thesis states a
dropout of 0.3, the default here; the published code has 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedquilt_common.models import mlp

HIDDEN = (210, 420, 840, 420, 210)


def build(
    input_shape: tuple[int, ...], classes: int, hidden: Sequence[int] = HIDDEN, dropout: float = 0.3
) -> nn.Module:
    """Build the network: input (n, *input_shape), output (n, 1) for regression, or (n, classes); ReLU between layers.

    Args:
        input_shape: shape of one sample, such as (18,).
        classes: number of classes; 0 for regression.
        hidden: outputs of the hidden layers.
        dropout: after each hidden layer, from 0 to below 1.

    Raises:
        ExperimentError: ``hidden`` is not a list of positive whole numbers, or ``dropout`` is out of range.
    """
    return mlp.build(input_shape, classes, hidden, dropout=dropout)
