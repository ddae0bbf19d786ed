"""WISDM-P: twelve activities of daily life, windows of 10 s of the six inertial axes of a phone, 51 persons.

Weiss, Yoneda and Hayajneh, "Smartphone and Smartwatch-Based Biometrics Using Activities of Daily Living", IEEE
Access 7, 2019; UCI Machine Learning Repository, data set 507. Reads the raw files such as
``data_1600_accel_phone.txt`` anywhere in ``<FEDQUILT_DATA>/wisdm2019``: in folders, packed one by one, or in tar and
zip archives. The preparation is FedAIoT's; docs/datasets.md describes it.
"""

from __future__ import annotations

from pathlib import Path

from fedquilt_common.datasets.wisdm import load_device
from fedquilt_common.types import Dataset


def load(folder: Path | None = None) -> Dataset:
    """Load the phone: ``x`` float32 of shape (n, 6 axes, 200 times), ``y`` int64 of shape (n,) from 0 to 11.

    Each axis has mean 0 and variance 1 in the training samples; the accelerometer's axes come first.

    Raises:
        DataUnavailableError: files are missing or damaged; the error names file and line.
    """
    return load_device(folder, "wisdm-p", "phone")
