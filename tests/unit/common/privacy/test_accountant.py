"""What a machine without Opacus reports; ``test_privacy_golden.py`` compares the numbers with Opacus's own."""

from __future__ import annotations

import sys

import pytest

from fedquilt_common.errors import PackageMissingError
from fedquilt_common.privacy.accountant import Charge, epsilon_of


def test_without_opacus_the_error_explains_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(PackageMissingError, match=r"'fedquilt\[dp\]'.*a board .*fedquilt upgrade.* build the image"):
        epsilon_of([Charge(1.0, 0.1, 10)], 1e-5, "rdp")
