"""What the sections of a floor's report are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.results.metrics import Measured
from profiling.results.record import Entry, Measurement
from profiling.results.record.pictures import Steps
from profiling.results.verdict import Verdict


@dataclass(frozen=True)
class Study:
    """The tables of one record, its verdict on each trunk, and what the folder holds."""

    measured: Measured
    verdicts: Sequence[Verdict]
    folder: str
    traces: Sequence[str] = ()
    timeline: Steps | None = None

    @property
    def judged(self) -> Verdict:
        """The verdict on the first trunk, ours where it was measured."""
        return self.verdicts[0]

    @property
    def record(self) -> Measurement:
        return self.measured.record

    @property
    def variants(self) -> dict[str, Entry]:
        return self.record.variants

    @property
    def timed(self) -> list[str]:
        """Variants with times, in ladder order."""
        return [name for name in self.variants if self.measured.has_times(name)]

    @property
    def short(self) -> int:
        """The smallest context: what is compared is compared there."""
        return self.measured.contexts[0]
