"""The live block of a run on a terminal: a few lines that are drawn again in place."""

from __future__ import annotations

import sys
import time

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from fedquilt_server.status.console import ERROR_CONSOLE
from fedquilt_server.status.run_lines import HistoryDigest, LineName, choose_lines, fit, run_lines
from fedquilt_server.status.snapshot import Snapshot
from fedquilt_server.status.units import whole_duration


class LiveBlock:
    """Draws the latest snapshot, or what the program does before there is one.

    Args:
        rounds: number of rounds of the run.
    """

    def __init__(self, rounds: int) -> None:
        self._snapshot, self._digest = Snapshot(rounds=rounds), HistoryDigest()
        self._stage, self._notice = "Starting", ""
        self._began = self._stage_began = time.monotonic()
        self._live = Live(
            get_renderable=self._render,
            console=ERROR_CONSOLE,
            auto_refresh=False,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )

    def start(self) -> None:
        """Begin to draw."""
        self._live.start(refresh=True)

    def refresh(self) -> None:
        """Draw the block again."""
        self._live.refresh()

    def stop(self) -> None:
        """Leave the last lines on the terminal, unless they are to vanish."""
        self._live.stop()

    def vanish(self) -> None:
        """Remove the block at its end, because a summary follows."""
        self._live.transient = True

    def stage(self, text: str) -> None:
        """Show what the program does before the run begins."""
        self._stage, self._stage_began = text, time.monotonic()

    def notice(self, text: str) -> None:
        """Show a sentence instead of a problem from now on."""
        self._notice = text

    def show(self, snapshot: Snapshot) -> None:
        """Show a run; a snapshot without a name comes from a program that has not begun its run."""
        if snapshot.name or snapshot.history:
            self._digest = self._digest.follow(snapshot.history)
            self._snapshot, self._stage = snapshot, ""

    def _render(self) -> RenderableType:
        width, height = ERROR_CONSOLE.size
        now, lines = time.monotonic(), dict[LineName, Text]()
        if self._stage:
            lines["round"] = fit(f"{self._stage} ({whole_duration(now - self._stage_began)})", width, "bold")
        else:
            ascii_only = ERROR_CONSOLE.options.ascii_only
            lines |= run_lines(
                self._snapshot, self._digest, time.time(), now - self._began, width, ascii_only=ascii_only
            )
        if self._notice:
            lines["problem"] = fit(self._notice, width, "bold")
        return Group(*choose_lines(lines, height - 1))
