"""What became of inputs that were made wrong, and of runs that were killed."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from profiling.results.record.base import Record
from profiling.results.record.part import Count, Part


class Fuzzed(Part, frozen=True):
    """Inputs of one kind: how many were read, refused in one line, or failed."""

    read: Count
    refused: Count
    failed: Count
    slowest_s: Annotated[float, Meta(ge=0)]

    @property
    def inputs(self) -> int:
        return self.read + self.refused + self.failed


class FuzzRecord(Record, frozen=True, kw_only=True, tag="fuzz"):
    """Hostile inputs by kind; floor runs that were killed, by how far they had come; what failed.

    `asked_inputs`, `asked_kills`: how many were asked for; where it was stopped there are fewer.
    """

    seed: int = 0
    asked_inputs: Count | None = None
    asked_kills: Count | None = None
    kinds: dict[str, Fuzzed] = {}
    kills: dict[str, Count] = {}
    whole: Count = 0  # runs that were gone on with to their end
    faults: list[str] = []

    @property
    def inputs(self) -> int:
        return sum(kind.inputs for kind in self.kinds.values())

    @property
    def killed(self) -> int:
        return sum(self.kills.values())

    @property
    def partial(self) -> bool:
        return self.inputs < (self.asked_inputs or 0) or self.killed < (self.asked_kills or 0)
