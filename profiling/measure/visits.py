"""What is visited in a round, and the one loop that measures: all that is compared is visited once in each.

The order is shuffled: a slow minute of the machine then hits everything that is compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from profiling.measure.cases import Case
from profiling.measure.clock import Clock
from profiling.measure.expect import floor_bytes, step_reads
from profiling.measure.guard import Energy, wait_for_quiet
from profiling.measure.peaks import FloorReader, SquareMatmul, page_sizes
from profiling.results.duel import READ
from profiling.results.record import (
    FirstToken,
    FloorRead,
    GenerationSample,
    MatmulSample,
    PrefillSample,
    Sample,
)

RELOADED_WARM_UP = 1  # untimed steps after a case was put at another context: its own code is warm already
ALWAYS = 1 << 30  # rounds of what is part of every round


@dataclass(frozen=True)
class CaseVisit:
    """A visit of a decoder."""

    case: Case
    clock: Clock

    @property
    def subject(self) -> str:
        return self.case.decoder.variant.name

    @property
    def rounds(self) -> int:
        return ALWAYS


@dataclass(frozen=True)
class Steps(CaseVisit):
    """Single steps at every context, in shuffled order."""

    entropy: int
    into: list[Sample]
    energy: Energy = field(default_factory=Energy)

    @property
    def rounds(self) -> int:
        return self.case.rounds

    def __call__(self, number: int) -> None:
        case = self.case
        contexts = random.Random(f"{self.entropy} {number} {case.name}").sample(
            case.contexts, len(case.contexts)
        )
        for place, context in enumerate(contexts):
            warm_up = case.warm_up if place == 0 else min(case.warm_up, RELOADED_WARM_UP)
            self.into.append(self._sample(number, context, warm_up))

    def _sample(self, number: int, context: int, warm_up: int) -> Sample:
        case, decoder = self.case, self.case.decoder
        energy = pipelined = None
        if engine := case.elsewhere:
            wait_for_quiet()  # threads of this process spin on after their last step
            steps = engine.timed(case.inputs.tokens[:, :context], warm_up, case.steps).steps_ms
        else:
            case.load(context)
            self.clock.each_ms(decoder.advance, warm_up)
            before = self.energy.read()
            steps = self.clock.each_ms(decoder.advance, case.steps)
            energy = self.energy.joules_since(before)
        if decoder.model.device.type != "cpu":  # a CPU step is done when its call returns
            pipelined = self.clock.pipelined_ms(decoder.advance, case.steps)
            energy = None  # the processor's, which waits
        decoder.verify()
        return Sample(
            round=number,
            variant=case.name,
            width=case.width,
            context=context,
            batch=decoder.batch,
            steps_ms=steps,
            pipelined_ms=pipelined,
            energy_j=energy,
        )


@dataclass(frozen=True)
class Prompt(CaseVisit):
    """The prefill of the workload's prompt."""

    into: list[FirstToken]

    @property
    def rounds(self) -> int:
        return self.case.workload.ttft_rounds

    def __call__(self, number: int) -> None:
        n = self.case.workload.prompt
        if engine := self.case.elsewhere:
            wait_for_quiet()
            ms = engine.timed(self.case.inputs.tokens[:, :n], 0, 0).first_ms
        else:
            (ms,) = self.clock.each_ms(prefill(self.case, n), 1)
        self.into.append(FirstToken(round=number, variant=self.case.name, ms=ms))


@dataclass(frozen=True)
class Prefills(CaseVisit):
    """Time to first token over prompt length.

    In the first round an untimed prefill of each length goes before: it also chooses the shape's kernels.
    """

    lengths: Sequence[int]
    into: list[PrefillSample]

    def __call__(self, number: int) -> None:
        for n in self.lengths:
            action = prefill(self.case, n)
            if number == 0:
                action()
            (ms,) = self.clock.each_ms(action, 1)
            self.into.append(PrefillSample(round=number, variant=self.case.name, prompt=n, ms=ms))


@dataclass(frozen=True)
class Generation(CaseVisit):
    """`new` tokens after `prompt` ones: a prefill, which gives the first, and a step for each further one.

    Every token is timed with a sync, so the sum of the first n is the latency of n tokens.
    """

    prompt: int
    new: int
    into: list[GenerationSample]

    def __call__(self, number: int) -> None:
        first = self.clock.each_ms(prefill(self.case, self.prompt), 1)
        rest = self.clock.each_ms(self.case.decoder.advance, self.new - 1)
        name, tokens = self.case.name, [*first, *rest]
        self.into.append(GenerationSample(round=number, variant=name, prompt=self.prompt, tokens_ms=tokens))


def prefill(case: Case, n: int) -> Callable[[], object]:
    """A function that runs the pass over the first n tokens of the case's text, for the clock."""
    return lambda: case.decoder.prefill(case.inputs.tokens[:, :n])


@dataclass(frozen=True)
class PlainRead:
    """The memory floor of so many bytes."""

    reader: FloorReader
    size: int
    pages: str
    times: int
    into: list[FloorRead]

    subject = READ
    rounds = ALWAYS

    def __call__(self, number: int) -> None:
        ms = self.reader.read_ms(self.size, warm_up=1, times=self.times)
        self.into.append(FloorRead(round=number, bytes=self.size, pages=self.pages, ms=ms))


@dataclass(frozen=True)
class PlainMatmul:
    """A large product, whose FLOP/s are what this machine reaches while it is measured."""

    product: SquareMatmul
    clock: Clock
    times: int
    into: list[MatmulSample]

    subject = "plain matmul"
    rounds = ALWAYS

    def __call__(self, number: int) -> None:
        self.product()
        ms = self.clock.each_ms(self.product, self.times)
        self.into.append(MatmulSample(round=number, flops=self.product.flops, ms=ms))


def plain_reads(cases: Sequence[Case], times: int, into: list[FloorRead]) -> list[PlainRead]:
    """Reads of every step's bytes: where the case's weights lie, and in a buffer on every page size."""
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
        add(step_reads(decoder).whole, sizes, decoder.variant.pages.name, "default")
    for pages in page_sizes(device):
        add([], [size for size, _ in reads], pages, pages)
    return list(reads.values())


def reading(case: Case) -> Callable[[], float]:
    """A function that reads what a step of this case must read at its smallest context, and gives the ms."""
    decoder, size = case.decoder, floor_bytes(case.decoder, case.contexts[0])
    reader = FloorReader(step_reads(decoder).whole, size, decoder.model.device, decoder.variant.pages.name)
    return lambda: reader.read_ms(size, warm_up=0, times=1)[0]


class Visit(Protocol):
    """One thing that is timed once in a round and that stores what it timed."""

    @property
    def subject(self) -> str:
        """What is timed: all visits of a subject leave together when one of them fails."""

    @property
    def rounds(self) -> int:
        """How many rounds it is part of: the first ones."""

    def __call__(self, number: int) -> None:
        """Time it in round `number`."""


def in_rounds(
    visits: Sequence[Visit], entropy: int, numbers: range, failed: Callable[[str, Exception], None]
) -> Iterator[float]:
    """Run these rounds; yields after each visit how many rounds are done, a whole number at a round's end.

    The order is drawn from `entropy`. A visit that raises leaves with its subject once `failed` was told,
    which may raise instead.
    """
    left: set[str] = set()
    for number in numbers:
        present = [visit for visit in visits if number < visit.rounds]
        order = random.Random(f"{entropy} {number}").sample(present, len(present))
        for place, visit in enumerate(order, start=1):
            if visit.subject not in left:
                try:
                    visit(number)
                except Exception as error:
                    left.add(visit.subject)
                    failed(visit.subject, error)
            yield number + place / len(order)
