"""Makes the report of a run folder, from the folder alone. Never imports torch."""

from __future__ import annotations

from pathlib import Path

from profiling.metrics import Measured
from profiling.record import RunFolder


def build(path: Path) -> None:
    Measured(RunFolder.load(path).data).ladder()
