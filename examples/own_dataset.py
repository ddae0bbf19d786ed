"""A data set of your own: scikit-learn's breast cancer table, 569 samples of 30 features in two classes.

Run it with any model, here in the folder that contains ``examples/``::

    PYTHONPATH=examples fedquilt simulate deploy/experiments/digits-fedavg.yaml --out runs/own-dataset \\
        --set data.set=own_dataset:load --set training.lr=0.01
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import fedquilt as fq

TEST_EVERY = 5


def load(folder: Path | None = None) -> fq.Dataset:
    """Load the data set; fedquilt calls this on the coordinator and on every board, which must all get the same.

    The table has no official split, so every fifth sample is for testing. The features are scaled with the training
    samples' means and deviations.

    Args:
        folder: the folder of data sets that FEDQUILT_DATA names, or None. This data set comes with scikit-learn.

    Returns:
        ``x`` float32 of shape (n, 30), ``y`` int64 of shape (n,): 0 is malignant, 1 benign.
    """
    table = load_breast_cancer()
    is_test = np.arange(len(table.target)) % TEST_EVERY == 0
    mean, deviation = table.data[~is_test].mean(axis=0), table.data[~is_test].std(axis=0)
    x = ((table.data - mean) / deviation).astype(np.float32)
    y = table.target.astype(np.int64)
    return fq.Dataset(
        name="breast-cancer",
        train=fq.Examples(x[~is_test], y[~is_test]),
        test=fq.Examples(x[is_test], y[is_test]),
        classes=2,
    )
