"""The samples that each client of an experiment trains on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedquilt_common.aggregation.rebalance import ThresholdRule, class_threshold
from fedquilt_common.data_tools.summaries import TargetGroups, count_targets
from fedquilt_common.errors import ExperimentError
from fedquilt_common.experiment_tools import ExperimentTools


def count_client_targets(tools: ExperimentTools) -> TargetGroups:
    """Count the targets that each client trains on, with the wrong labels of ``data.label_noise``.

    Raises:
        ExperimentError: the data set cannot be partitioned as the experiment requires.
        DataUnavailableError: files of the data set are missing or damaged.
    """
    data, changed = tools.dataset, tools.changed_labels
    targets = np.concatenate([data.train.y, data.test.y])  # a share's indices count the training samples first
    groups = [
        (str(client), changed.apply(share.train, targets[share.train])) for client, share in enumerate(tools.shares)
    ]
    return count_targets(groups, data.classes, [len(share.test) for share in tools.shares])


def rebalance_counts(clients: TargetGroups, rule: ThresholdRule) -> TargetGroups:
    """Count the samples of FedReb's rebalanced data sets (thesis, section 3.2.1): of each class that a client has, t.

    Args:
        clients: the counts of the classes.
        rule: how t follows from a client's counts.

    Raises:
        ExperimentError: the data set has no classes.
    """
    if clients.kind != "classes":
        raise ExperimentError("--rebalanced: the data set has no classes; leave the option out")
    groups = []
    for group in clients.groups:
        counts = np.array(group.counts)
        threshold = class_threshold(counts, rule) if group.classes else 0
        balanced = tuple(threshold if count else 0 for count in group.counts)
        groups.append(replace(group, counts=balanced, samples=sum(balanced)))
    return replace(clients, groups=tuple(groups))
