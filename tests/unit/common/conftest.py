"""What tests of several packages share."""

from __future__ import annotations

import pytest


@pytest.fixture
def plain_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute convolutions without oneDNN, which would compile code for each new shape."""
    import torch

    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
