"""The record of other engines at the same work."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from profiling.results.record.base import Record
from profiling.results.record.part import Count, Part, Size
from profiling.results.record.samples import EngineSample, FloorRead


class PeersWorkload(Part, frozen=True, kw_only=True):
    """What every engine is asked for; `warm_up` steps of a visit are not timed."""

    contexts: Annotated[list[Size], Meta(min_length=1)]
    rounds: Size
    warm_up: Count
    steps: Size
    threads: Size
    seed: int


class PeerEntry(Part, frozen=True, kw_only=True):
    """One engine: `precision` is its class, `version` None where it is not installed. `step_bytes` that a
    step must read, by context; none in records of before."""

    ours: bool
    precision: str
    package: str
    version: str | None
    settings: str
    status: Literal["measured", "left out"]
    reason: str = ""
    step_bytes: dict[int, Size] = {}


class PeersRecord(Record, frozen=True, kw_only=True, tag="peers"):
    """Other engines at the same work."""

    workload: PeersWorkload | None = None
    entropy: Count = 0
    engines: dict[str, PeerEntry] = {}
    samples: list[EngineSample] = []
    floors: list[FloorRead] = []
