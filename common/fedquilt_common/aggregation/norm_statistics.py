"""The statistics of static batch norms over all samples (HeteroFL, section 3).

Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous Clients",
ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedquilt_common.aggregation.exact_numbers import from_bits
from fedquilt_common.algorithm_api import Reply
from fedquilt_common.submodels.slices import Anatomy
from fedquilt_common.types import Arrays, ClientId

_LARGEST: Final = float(np.finfo(np.float32).max)
_MEAN, _VARIANCE = "running_mean", "running_var"


def pool_statistics(replies: Mapping[ClientId, Reply], anatomy: Anatomy) -> dict[str, NDArray[Any]]:
    """Pool means and variances over all clients' samples.

    Args:
        replies: each with the bits of ``running_mean`` and ``running_var`` of each static norm, shape (channels,), and
            its number of samples as weight.
        anatomy: names the statistics.

    Returns:
        Float32 mean and variance over all samples in the same shapes, and what makes the norms use them.
    """
    result: dict[str, NDArray[Any]] = {}
    ordered = [replies[client] for client in sorted(replies)]
    weights = np.array([reply.weight for reply in ordered]) / sum(reply.weight for reply in ordered)
    for name in anatomy.statistics:
        if not name.endswith(_MEAN):
            continue
        variance_name = name.removesuffix(_MEAN) + _VARIANCE
        means, spread = (
            np.stack([from_bits(np.asarray(reply.arrays[kind]), _LARGEST) for reply in ordered])
            for kind in (name, variance_name)
        )
        mean = np.tensordot(weights, means, 1)
        result[name] = mean.astype(np.float32)
        variance = np.tensordot(weights, np.maximum(spread, 0.0) + (means - mean) ** 2, 1)
        result[variance_name] = np.minimum(variance, _LARGEST).astype(np.float32)
    return use_statistics(result)


def use_statistics(measured: Arrays) -> dict[str, NDArray[Any]]:
    """Return measured statistics with what makes the norms of a model use them.

    Args:
        measured: ``running_mean`` and ``running_var`` of each static norm, shape (channels,).
    """
    norms = [name.removesuffix(_MEAN) for name in measured if name.endswith(_MEAN)]
    counters = {f"{norm}num_batches_tracked": np.array(1, np.int64) for norm in norms}
    return {**measured, **counters}
