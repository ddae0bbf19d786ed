"""What a machine without the extra says."""

from __future__ import annotations

import sys

import pytest

from fedquilt_common.errors import PackageMissingError
from fedquilt_common.secure_aggregation.packages import check_packages


@pytest.mark.parametrize("module", ["cryptography.hazmat.primitives.ciphers", "Crypto.Protocol.SecretSharing"])
def test_without_a_package_the_error_explains_its_installation(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PackageMissingError, match=r"'fedquilt\[secure\]'.*fedquilt upgrade.*the image"):
        check_packages()
