"""Rich's console for texts that somebody else may have written."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def make_console(**options: Any) -> Console:
    """Return a console that prints ``:wave:`` as it is, as in ``my_models:wave``, and not as an emoji.

    Args:
        options: as those of ``rich.console.Console``.
    """
    return Console(emoji=False, **options)
