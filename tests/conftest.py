"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("fedquilt", deadline=None)  # no test depends on how fast the machine is
settings.load_profile("fedquilt")

os.environ["FEDQUILT_VALIDATE"] = "1"  # every coordinator that a test starts checks its machine after every event
