"""Progress of long work on stderr: redrawn in place on a terminal, sparse plain lines elsewhere.

It draws only when it is called, never from a thread of its own: nothing is drawn while a step is timed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

PLAIN_EVERY_S = 10.0  # a log file wants few lines
BAR = 20  # characters


class ProgressLine:
    """Call it with (what is done, how many, of how many); use it as a context manager.

    `table` makes what a terminal shows below the line, a rich renderable or None.
    """

    def __init__(self, quiet: bool, table: Callable[[], Any] | None = None) -> None:
        self.quiet, self.table = quiet, table
        self.on_terminal = sys.stderr.isatty() and not quiet
        self.started = self.printed = time.monotonic()
        self.what, self.done, self.total = "", 0, 0
        self.first = 0  # where counting began: a resumed run does not begin at 0
        self.live: Any = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def pause(self) -> None:
        """Take the line off the terminal, so that something can be printed; the next call brings it back."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def __call__(self, what: str, done: int, total: int) -> None:
        new = total != self.total or done < self.done or (done == 0 and what != self.what)
        if new:
            self.started, self.first = time.monotonic(), done
        changed, self.what, self.done, self.total = what != self.what, what, done, total
        if self.on_terminal:
            self._redraw()
        elif not self.quiet and (changed or done == total or self._due()):
            self.printed = time.monotonic()
            sys.stderr.write(f"{what}: {done}/{total}{self._time_left()}\n")
            sys.stderr.flush()

    def _due(self) -> bool:
        return time.monotonic() - self.printed >= PLAIN_EVERY_S

    def _time_left(self) -> str:
        """Time left at the rate so far; nothing before there is a rate."""
        if not self.first < self.done < self.total:
            return ""
        seconds = (time.monotonic() - self.started) / (self.done - self.first) * (self.total - self.done)
        return f", {seconds:.0f} s left" if seconds < 100 else f", {seconds / 60:.0f} min left"

    def _redraw(self) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        full = BAR * self.done // max(1, self.total)
        line = f"{'━' * full}{'╌' * (BAR - full)} {self.what}: {self.done}/{self.total}{self._time_left()}"
        text = Text(line, no_wrap=True, overflow="ellipsis")
        table = self.table() if self.table else None
        if self.live is None:
            self.live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self.live.start()
        self.live.update(Group(text, *([table] if table else [])), refresh=True)
