"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fedquilt", deadline=None)  # no test depends on how fast the machine is
settings.load_profile("fedquilt")
