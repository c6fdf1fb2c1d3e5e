"""What the sections of a floor's report are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profiling.results.metrics import Measured
from profiling.results.verdict import Verdict


@dataclass(frozen=True)
class Study:
    """The tables of one record, its verdict, and what the folder holds."""

    measured: Measured
    judged: Verdict
    folder: str
    traces: Sequence[str] = ()
    timeline: dict[str, Any] | None = None

    @property
    def record(self) -> dict[str, Any]:
        return self.measured.record

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self.record["variants"]
        return found

    @property
    def timed(self) -> list[str]:
        """Variants with times, in ladder order."""
        return [name for name in self.variants if self.measured.has_times(name)]

    @property
    def short(self) -> int:
        """The smallest context: what is compared is compared there."""
        return self.measured.contexts[0]
