"""One round of timing: every case at every context, the first token, and the memory floor of their bytes.

Cases are visited in shuffled order, and in a visit every context. What was timed goes into the record.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profiling.measure.cases import Case
from profiling.measure.clock import Clock
from profiling.measure.expect import floor_bytes, weights_read_whole
from profiling.measure.peaks import FloorReader, page_sizes
from profiling.measure.workload import Workload
from variants.errors import one_line

Readers = dict[tuple[int, str], FloorReader]  # by bytes and page size

RELOADED_SETTLE = 1  # untimed steps after a case was put at another context: its own code is warm already


class Rounds:
    """Rounds over `cases`. One that crashes while it is timed leaves the list, and the rest go on."""

    def __init__(self, record: dict[str, Any], workload: Workload, cases: list[Case], clock: Clock) -> None:
        self.record, self.workload, self.cases, self.clock = record, workload, cases, clock
        self.device = cases[0].decoder.model.device
        self.readers = _readers(cases, self.device)

    def time(self, number: int) -> None:
        """Time round `number`."""
        visits: list[Callable[[], None]] = []
        for case in self.cases:
            if number < case.rounds:
                visits.append(self._visit(number, case))
            if number < self.workload.ttft_rounds and case.full_size:
                visits.append(self._first_token(number, case))
        visits += [self._floor(number, size, pages) for size, pages in self.readers]
        random.Random(f"{self.workload.seed} {number}").shuffle(visits)
        for visit in visits:
            visit()

    def _visit(self, number: int, case: Case) -> Callable[[], None]:
        def visit() -> None:
            if case not in self.cases:
                return  # dropped earlier in this round, under its other name
            contexts = list(case.contexts)
            random.Random(f"{self.workload.seed} {number} {case.name}").shuffle(contexts)
            try:
                for place, context in enumerate(contexts):
                    settle = case.settle if place == 0 else min(case.settle, RELOADED_SETTLE)
                    sample = self._timed(case, context, settle)
                    self.record["samples"].append({"round": number, **sample})
            except Exception as error:
                self._drop(case, error)

        return visit

    def _timed(self, case: Case, context: int, settle: int) -> dict[str, Any]:
        decoder = case.decoder
        case.load(context)
        self.clock.each_ms(decoder.advance, settle)
        steps = self.clock.each_ms(decoder.advance, case.steps)
        pipelined = None
        if self.device.type != "cpu":  # a CPU step is done when its call returns
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

    def _first_token(self, number: int, case: Case) -> Callable[[], None]:
        def visit() -> None:
            prompt = case.inputs.tokens[:, : self.workload.prompt]
            (ms,) = self.clock.each_ms(lambda: case.decoder.prefill(prompt), 1)
            self.record["ttft"].append({"round": number, "variant": case.name, "ms": ms})

        return visit

    def _floor(self, number: int, size: int, pages: str) -> Callable[[], None]:
        def visit() -> None:
            ms = self.readers[size, pages].read_ms(size, settle=1, times=self.workload.steps)
            self.record["floors"].append({"round": number, "bytes": size, "pages": pages, "ms": ms})

        return visit

    def _drop(self, case: Case, error: Exception) -> None:
        name = case.decoder.variant.name
        self.record["variants"][name].update(status="failed", reason=one_line(error))
        self.cases[:] = [s for s in self.cases if s.decoder.variant.name != name]


def _readers(cases: list[Case], device: torch.device) -> Readers:
    """One for every number of bytes, on every page size: that of a case's weights, or of a mere buffer."""
    readers: Readers = {}

    def add(weights: list[Tensor], sizes: list[int], of_weights: str, of_buffer: str) -> None:
        if new := [size for size in sizes if (size, of_weights) not in readers]:
            reader = FloorReader(weights, max(new), device, of_buffer)
            readers.update({(size, of_weights): reader for size in new})

    for case in cases:
        decoder = case.decoder
        sizes = [floor_bytes(decoder, n) for n in (0, *case.contexts)]
        add(weights_read_whole(decoder.model), sizes, decoder.variant.pages, "default")
    for pages in page_sizes(device):
        add([], [size for size, _ in readers], pages, pages)
    return readers
