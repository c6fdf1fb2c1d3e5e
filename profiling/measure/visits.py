"""What is visited in a round: steps of a decoder, its first token, whole generations, and a plain read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from profiling.measure.cases import Case
from profiling.measure.clock import Clock
from profiling.measure.expect import floor_bytes, weights_read_whole
from profiling.measure.peaks import FloorReader, page_sizes

RELOADED_SETTLE = 1  # untimed steps after a case was put at another context: its own code is warm already
ALWAYS = 1 << 30  # rounds of what is part of every round
Rows = list[dict[str, Any]]  # where a visit stores what it timed


@dataclass(frozen=True)
class CaseVisit:
    """A visit of a decoder."""

    case: Case
    clock: Clock
    into: Rows

    @property
    def subject(self) -> str:
        return self.case.decoder.variant.name

    @property
    def rounds(self) -> int:
        return ALWAYS


@dataclass(frozen=True)
class Steps(CaseVisit):
    """Single steps at every context, in shuffled order.

    Stores {round, variant, width, context, batch, steps_ms, pipelined_ms}.
    """

    entropy: int

    @property
    def rounds(self) -> int:
        return self.case.rounds

    def __call__(self, number: int) -> None:
        case = self.case
        contexts = random.Random(f"{self.entropy} {number} {case.name}").sample(
            case.contexts, len(case.contexts)
        )
        for place, context in enumerate(contexts):
            settle = case.settle if place == 0 else min(case.settle, RELOADED_SETTLE)
            self.into.append({"round": number, **self._timed(context, settle)})

    def _timed(self, context: int, settle: int) -> dict[str, Any]:
        case, decoder = self.case, self.case.decoder
        case.load(context)
        self.clock.each_ms(decoder.advance, settle)
        steps = self.clock.each_ms(decoder.advance, case.steps)
        pipelined = None
        if decoder.model.device.type != "cpu":  # a CPU step is done when its call returns
            pipelined = self.clock.pipelined_ms(decoder.advance, case.steps)
        decoder.verify()
        return {
            "variant": case.name,
            "width": case.width,
            "context": context,
            "batch": decoder.batch,
            "steps_ms": steps,
            "pipelined_ms": pipelined,
        }


@dataclass(frozen=True)
class FirstToken(CaseVisit):
    """The prefill of the workload's prompt. Stores {round, variant, ms}."""

    @property
    def rounds(self) -> int:
        return self.case.workload.ttft_rounds

    def __call__(self, number: int) -> None:
        (ms,) = self.clock.each_ms(prefill(self.case, self.case.workload.prompt), 1)
        self.into.append({"round": number, "variant": self.case.name, "ms": ms})


@dataclass(frozen=True)
class Prefills(CaseVisit):
    """Time to first token over prompt length. Stores {round, variant, prompt, ms}.

    In the first round an untimed prefill of each length goes before: it also chooses the shape's kernels.
    """

    lengths: Sequence[int]

    def __call__(self, number: int) -> None:
        for n in self.lengths:
            action = prefill(self.case, n)
            if number == 0:
                action()
            (ms,) = self.clock.each_ms(action, 1)
            self.into.append({"round": number, "variant": self.case.name, "prompt": n, "ms": ms})


@dataclass(frozen=True)
class Generation(CaseVisit):
    """`new` tokens after `prompt` ones: a prefill, which gives the first, and a step for each further one.

    Every token is timed with a sync, so the sum of the first n is the latency of n tokens.
    Stores {round, variant, prompt, tokens_ms[new]}.
    """

    prompt: int
    new: int

    def __call__(self, number: int) -> None:
        first = self.clock.each_ms(prefill(self.case, self.prompt), 1)
        rest = self.clock.each_ms(self.case.decoder.advance, self.new - 1)
        tokens = [*first, *rest]
        self.into.append(
            {"round": number, "variant": self.case.name, "prompt": self.prompt, "tokens_ms": tokens}
        )


def prefill(case: Case, n: int) -> Callable[[], object]:
    """The pass over the first n tokens of the case's text, ready to be timed."""
    return lambda: case.decoder.prefill(case.inputs.tokens[:, :n])


@dataclass(frozen=True)
class PlainRead:
    """The memory floor of so many bytes. Stores {round, bytes, pages, ms}."""

    reader: FloorReader
    size: int
    pages: str
    times: int
    into: Rows

    subject = "plain read"
    rounds = ALWAYS

    def __call__(self, number: int) -> None:
        ms = self.reader.read_ms(self.size, settle=1, times=self.times)
        self.into.append({"round": number, "bytes": self.size, "pages": self.pages, "ms": ms})


def plain_reads(cases: Sequence[Case], times: int, into: Rows) -> list[PlainRead]:
    """The bytes of every step: where the case's weights lie, and from a mere buffer on every page size."""
    device = cases[0].decoder.model.device
    reads: dict[tuple[int, str], PlainRead] = {}

    def add(weights: list[Tensor], sizes: list[int], of_weights: str, of_buffer: str) -> None:
        if new := [size for size in sizes if (size, of_weights) not in reads]:
            reader = FloorReader(weights, max(new), device, of_buffer)
            reads.update(
                {(size, of_weights): PlainRead(reader, size, of_weights, times, into) for size in new}
            )

    for case in cases:
        decoder = case.decoder
        sizes = [floor_bytes(decoder, n) for n in (0, *case.contexts)]
        add(weights_read_whole(decoder.model), sizes, decoder.variant.pages.name, "default")
    for pages in page_sizes(device):
        add([], [size for size, _ in reads], pages, pages)
    return list(reads.values())
