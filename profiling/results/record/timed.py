"""The records of experiments that a runner measures."""

from __future__ import annotations

from typing import Literal

from profiling.results.record.base import Measurement, Record
from profiling.results.record.duel import DuelSteps
from profiling.results.record.entry import StepPrediction
from profiling.results.record.part import Count, Ms, Part, Size
from profiling.results.record.proof import GateResult
from profiling.results.record.samples import (
    GenerationSample,
    PassSample,
    PrefillSample,
    WrittenSample,
)


class FloorRecord(Measurement, frozen=True, tag="floor"):
    """The ladder of variants."""


class PeersRecord(Measurement, frozen=True, tag="peers"):
    """Engines of others beside the ladder's rungs."""


class ContextRecord(Measurement, frozen=True, tag="context"):
    """Steps over context."""


class GrowthRecord(Record, frozen=True, tag="growth"):
    """Steps over bytes: every point is a run of its own, below this one's folder."""


class PointRecord(Measurement, frozen=True, tag="growth point"):
    """One point of growth."""


class DuelRecord(Record, frozen=True, kw_only=True, tag="duel"):
    """Steps of two versions of this project in alternation; `tokens`: what each side wrote first."""

    variant: str = ""
    context: Count = 0
    duel: DuelSteps = DuelSteps()
    tokens: dict[str, list[int]] = {}


class Batch(Part, frozen=True, kw_only=True):
    """One batch size: whether it is proven here, what its step should cost, and bytes of its cache."""

    status: Literal["proven", "fail", "left out"]
    reason: str = ""
    gate: GateResult | None = None
    prediction: StepPrediction | None = None
    cache_bytes: Size | None = None


class BatchRecord(Measurement, frozen=True, kw_only=True, tag="batch"):
    """Steps over batch, by batch size, and prefills over prompt length."""

    batches: dict[int, Batch] = {}
    prefills: list[PrefillSample] = []


class SpeculateRecord(Measurement, frozen=True, kw_only=True, tag="speculate"):
    """Passes over several tokens, and a text written with drafts and without."""

    passes: list[PassSample] = []
    written: list[WrittenSample] = []


class WatchedLoop(Part, frozen=True):
    """An untimed loop of `new` tokens: positions that entered the first block, and multiply-accumulates."""

    new: Size
    tokens: Count
    macs: Count


class ThroughputRecord(Measurement, frozen=True, kw_only=True, tag="throughput"):
    """Whole generations; `new` are the numbers of new tokens that are compared."""

    counted: dict[str, WatchedLoop] = {}
    generations: list[GenerationSample] = []
    new: list[Size] = []


class Served(Part, frozen=True):
    """Means over ticks while requests waited, over all where none did; used, reserved: token slots, running:
    requests.

    refused_with_room: ticks in which the next request did not fit although enough slots were free, not in one
    piece. recomputed: tokens of requests that were put back into the queue when the blocks ran out.
    """

    ticks: Count
    running: float
    reserved: float
    used: float
    refused_with_room: Count
    recomputed: Count


class Queue(Part, frozen=True, kw_only=True):
    """The same requests, (prompt, final) tokens in `mix`, over `slots` handed out in several ways."""

    slots: Size
    block: Size
    mix: list[tuple[int, int]]
    served: dict[str, Served]


class PrefixPrompt(Part, frozen=True, kw_only=True):
    """One prompt of `tokens`, of which `shared` were found in the pool, and its time to the first token."""

    tokens: Size
    shared: Count
    ms: Ms
    bit_equal: bool


class SharedPrefix(Part, frozen=True, kw_only=True):
    """Prompts of one layout over one pool, and the blocks that it took for all."""

    prompts: list[PrefixPrompt]
    blocks: Count

    @property
    def bit_equal(self) -> bool:
        """Whether every prompt gave the logits of a decoder that shares nothing."""
        return all(prompt.bit_equal for prompt in self.prompts)


class PagingRecord(Measurement, frozen=True, kw_only=True, tag="paging"):
    """What a paged cache saves, and what it costs per step; `prefixes` by layout of the prompt.

    `routing`: a conversation's second turn by the node that it goes to; `eviction`: prompts that come back to
    a full pool, by whether they were used in between.
    """

    queue: Queue | None = None
    prefixes: dict[str, SharedPrefix] = {}
    routing: dict[str, PrefixPrompt] = {}
    eviction: dict[str, PrefixPrompt] = {}
