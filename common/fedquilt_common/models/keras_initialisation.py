"""Keras's initialisation of layers, for papers whose models were trained with Keras.

Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks", AISTATS 2010, equation
16: uniform weights within sqrt(6 / (inputs + outputs)), where torch has a bound that depends on the inputs only. Biases
are 0. An LSTM's recurrent weights are orthogonal, and the bias of its forget gate is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import Tensor, nn
from torch.nn import init

_EMBEDDING: Final = 0.05
"""Bound of the uniform numbers of an embedding."""


def initialise_as_keras(module: nn.Module) -> nn.Module:
    """Draw new numbers for the layers of a module, in place, from torch's generator; the same for the same seed.

    Linear layers, convolutions, recurrent layers and embeddings get Keras's defaults. Norms already have them. Other
    layers keep theirs. Tensors on the meta device have no numbers and stay as they are.

    Returns:
        The module itself.
    """
    for layer in module.modules():
        for kinds, initialise in _RULES:
            if isinstance(layer, kinds) and not any(tensor.is_meta for tensor in layer.parameters(recurse=False)):
                initialise(layer)
    return module


def _initialise_weights(layer: Any) -> None:
    init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        init.zeros_(layer.bias)


def _initialise_embedding(layer: nn.Embedding) -> None:
    init.uniform_(layer.weight, -_EMBEDDING, _EMBEDDING)
    if layer.padding_idx is not None:
        init.zeros_(layer.weight[layer.padding_idx].detach())


def _initialise_recurrent(layer: nn.RNNBase) -> None:
    for name, tensor in layer.named_parameters(recurse=False):
        if name.startswith("weight_hh"):
            init.orthogonal_(tensor)
        elif name.startswith("weight"):
            init.xavier_uniform_(tensor)
        else:
            _initialise_bias(tensor, layer.hidden_size, isinstance(layer, nn.LSTM) and name.startswith("bias_ih"))


def _initialise_bias(bias: Tensor, units: int, forgets: bool) -> None:
    """Set a recurrent layer's biases to 0; those of the forget gate, the second one, to 1 if ``forgets``."""
    init.zeros_(bias)
    if forgets:
        init.ones_(bias.detach()[units : 2 * units])


_RULES: Final[tuple[tuple[Any, Callable[[Any], None]], ...]] = (
    ((nn.Linear, nn.modules.conv._ConvNd), _initialise_weights),
    (nn.Embedding, _initialise_embedding),
    (nn.RNNBase, _initialise_recurrent),
)
