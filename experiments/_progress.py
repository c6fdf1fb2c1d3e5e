"""Progress of long work on stderr: a bar with time left on a terminal, sparse plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

PLAIN_EVERY_S = 10.0  # a log file wants few lines


class ProgressLine:
    """Call it with (what is done, how many, of how many); use it as a context manager."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.live = quiet, sys.stderr.isatty() and not quiet
        self.started = self.printed = time.monotonic()
        self.phase = ""
        self.bar: Any = None

    def __enter__(self) -> ProgressLine:
        if self.live:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(20),
                TextColumn("{task.completed}/{task.total}"),
            )
            times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
            self.bar = Progress(*columns, *times, console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self.bar is not None:
            if what != self.phase:
                self.bar.reset(self.task, total=total, description=what)
            self.bar.update(self.task, completed=done, total=total)
        elif not self.quiet:
            self._plain(what, done, total)
        self.phase = what

    def _plain(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self.phase:
            self.started = now
        elif now - self.printed < PLAIN_EVERY_S and done < total:
            return
        self.printed = now
        left = f", {(now - self.started) / done * (total - done):.0f} s left" if 0 < done < total else ""
        sys.stderr.write(f"{what}: {done}/{total}{left}\n")
        sys.stderr.flush()
