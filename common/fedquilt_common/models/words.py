"""Embeddings of word or event numbers that report a number beyond their vocabulary."""

from __future__ import annotations

from torch import Tensor, nn

from fedquilt_common.errors import DataUnavailableError


def embed_words(vocabulary: int, units: int, padding: int | None = None) -> nn.Embedding:
    """Return an embedding that checks its input; it stays an ``nn.Embedding``, so that sub-models can be cut from it.

    Args:
        vocabulary: number of different words; the samples' numbers are from 0 and smaller.
        units: length of an embedding.
        padding: the word whose embedding is zeros and is not trained; None: none.

    Returns:
        Its call raises DataUnavailableError if a number is not in the vocabulary.
    """
    embedding = nn.Embedding(vocabulary, units, padding_idx=padding)
    embedding.register_forward_pre_hook(_check_words)
    return embedding


def _check_words(embedding: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    words, most = inputs[0], getattr(embedding, "num_embeddings", 0)
    if words.is_meta or words.numel() == 0:
        return
    least, greatest = (int(number) for number in words.aminmax())
    if least < 0 or greatest >= most:
        raise DataUnavailableError(
            f"the samples hold numbers from {least} to {greatest}, but the model's vocabulary has {most}; choose a "
            "larger model.vocabulary if the model has one, else number the words from 0"
        )
