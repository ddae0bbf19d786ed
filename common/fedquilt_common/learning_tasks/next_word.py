"""Next word: at each place of a sequence the word that follows; cross entropy, scored by accuracy and perplexity.

The metrics count each number that is no padding, even those for unknown words and for the end of a sentence: a model
that names them is right there. Reddi et al., "Adaptive Federated Optimization", ICLR 2021, report a top-1 accuracy that
leaves these two out as well, ``accuracy_no_oov_or_eos`` in their code. It cannot be compared with ``accuracy`` here,
which is their code's ``accuracy_with_oov``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.errors import DataUnavailableError, ExperimentError
from fedquilt_common.learning_tasks.cross_entropy import bounded_sum, sum_cross_entropy
from fedquilt_common.learning_tasks.learning_task import WIDEN, LearningTask, ScoreCounts
from fedquilt_common.learning_tasks.metrics import ACCURACY, LOSS, PERPLEXITY, Metric
from fedquilt_common.types import Shapes

PADDING: Final = 0
"""The word that fills a sequence up; it counts neither in the loss nor in the metrics."""
_MOST_WORDS: Final = 1e15
_LARGEST_EXPONENT: Final = math.log(PERPLEXITY.high)


@dataclass(frozen=True)
class NextWord(LearningTask):
    """Labels are word numbers of shape (n, length), 0 pads; outputs are logits of shape (n, length, words).

    Outputs of shape (n, words) predict the word after the last place; then only that word counts.

    Attributes:
        words: size of the vocabulary with its special words; the data set's ``classes``.
    """

    name: ClassVar[str] = "next-word"
    metrics: ClassVar[tuple[Metric, ...]] = (ACCURACY, PERPLEXITY, LOSS)

    words: int

    @classmethod
    def for_labels(cls, classes: int, label_shape: tuple[int, ...]) -> NextWord:
        if classes < 2 or len(label_shape) != 1:
            raise DataUnavailableError(
                f"task 'next-word': the data set has {classes} classes and labels of shape {('n', *label_shape)}; its "
                "classes must be the size of the vocabulary, and its labels sequences of shape (n, length)"
            )
        return cls(classes)

    @property
    def count_shapes(self) -> Shapes:
        return {"words": (), "right": (), "loss": ()}

    def check(self, y: NDArray[Any]) -> None:
        if y.dtype.kind not in "iu" or not (y.min() >= 0 and y.max() < self.words):
            raise DataUnavailableError(
                f"words are {y.dtype} from {y.min()} to {y.max()}, but the vocabulary has {self.words}; number them "
                f"from 0, which pads, to {self.words - 1}"
            )

    def find_output_problem(self, shapes: Sequence[tuple[int, ...]], y: NDArray[Any], *, own_loss: bool) -> str:
        found = shapes[-1][-1] if shapes[-1] else 1
        if found != self.words:
            return f"the model has {found} outputs for a word, but the data set has {self.words} words; {WIDEN}"
        padded = int((y[:, -1] == PADDING).sum())
        if own_loss or all(len(shape) > 1 for shape in shapes) or not padded:
            return ""
        return (
            f"the model predicts the word at the last place alone, but there {padded} of {len(y)} sequences have "
            "padding, so it would learn nothing from them; choose a model with logits at each place, such as "
            "transformer with outputs: each"
        )

    def can_score(self, y: NDArray[Any]) -> bool:
        return bool((y != PADDING).any())

    def targets(self, y: NDArray[Any]) -> NDArray[Any]:
        return y.astype(np.int64)

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return the mean over the words of the batch; 0 where all are padding."""
        from torch.nn import functional

        outputs, targets = _align(outputs, targets)
        summed = functional.cross_entropy(outputs, targets, ignore_index=PADDING, reduction="sum")
        return summed / (targets != PADDING).sum().clamp(min=1)

    def count(self, outputs: NDArray[np.float32], targets: NDArray[Any]) -> ScoreCounts:
        """Return the numbers of ``words`` and of ``right`` answers, and the sum ``loss``; padding is left out."""
        outputs, targets = _align(outputs, targets)
        real = targets != PADDING
        logits, words = outputs[real], targets[real]
        sums = (float(len(words)), float((logits.argmax(axis=1) == words).sum()), sum_cross_entropy(logits, words))
        return {name: np.array(value) for name, value in zip(self.count_shapes, sums, strict=True)}

    def scores(self, counts: ScoreCounts) -> dict[str, float]:
        words, right = (float(counts[name]) for name in ("words", "right"))
        if not 1 <= words < _MOST_WORDS:
            return {}
        loss = bounded_sum(float(counts["loss"])) / words
        accuracy = min(max(right / words, 0.0), 1.0) if math.isfinite(right) else 0.0
        return {"accuracy": accuracy, "perplexity": math.exp(min(loss, _LARGEST_EXPONENT - 1)), "loss": loss}

    def average(self, values: Any, targets: Any) -> Any:
        """Return the mean over the words of the batch, or over its last words; 0 where all are padding."""
        real = (targets if values.ndim > 1 else targets[:, -1]) != PADDING
        if real.shape != values.shape:
            return values.mean()
        return (values * real).sum() / real.sum().clamp(min=1)

    def held_classes(self, y: NDArray[Any]) -> NDArray[np.bool_] | None:
        return np.bincount(y.astype(np.int64).ravel(), minlength=self.words) > 0


def _align(outputs: Any, targets: Any) -> tuple[Any, Any]:
    """Return logits of shape (words predicted, words) and the words, of shape (words predicted,).

    Raises:
        ExperimentError: the outputs are logits neither of each place nor of the last one.
    """
    if outputs.ndim == 2 and len(outputs) == len(targets):
        return outputs, targets[:, -1]
    if outputs.ndim != 3 or tuple(outputs.shape[:2]) != tuple(targets.shape):
        raise ExperimentError(
            f"the model's outputs have the shape {tuple(outputs.shape)}, but the next words {tuple(targets.shape)}; "
            "choose a model with logits at each place of a sequence, such as transformer with outputs: each"
        )
    return outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
