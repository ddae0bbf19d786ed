"""What differential privacy allows any membership inference to reach.

Training that is (epsilon, delta)-private bounds every test that tells apart whether a sample was in the training
set: TPR <= e^epsilon FPR + delta, and the same with the errors exchanged, 1 - FPR <= e^epsilon (1 - TPR) + delta
(Kairouz, Oh and Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015, theorem 2.1).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PrivacyBound:
    """The bound of a guarantee.

    Attributes:
        epsilon: what training has spent on the samples.
        delta: probability with which the guarantee may fail.
    """

    epsilon: float
    delta: float

    def limit_tpr(self, fpr: float) -> float:
        """Return the largest part of the members that a test can find.

        Args:
            fpr: part of the non-members that the test classifies as members, in [0, 1].
        """
        swapped = 1 - math.exp(-self.epsilon) * (1 - self.delta - fpr)
        return min(1.0, self._grow(fpr), max(swapped, 0.0))

    def of_group(self, size: int) -> PrivacyBound:
        """Return the bound for ``size`` units that change together.

        Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014, section 2.3.
        """
        grown = size * math.exp(min((size - 1) * self.epsilon, 700.0)) * self.delta
        return PrivacyBound(size * self.epsilon, min(grown, 1.0))

    @property
    def auc(self) -> float:
        """The area under the curve of ``limit_tpr``, the largest AUC; e^epsilon / (1 + e^epsilon) for delta 0."""
        corner = (1 - self.delta) / (1 + self._grow_by)  # both bounds are equal there
        corners = [(0.0, self.delta), (corner, 1 - corner), (1 - self.delta, 1.0), (1.0, 1.0)]
        return sum((right - left) * (low + high) / 2 for (left, low), (right, high) in itertools.pairwise(corners))

    @property
    def _grow_by(self) -> float:
        return math.exp(min(self.epsilon, 700.0))  # e^710 overflows

    def _grow(self, fpr: float) -> float:
        return self._grow_by * fpr + self.delta
