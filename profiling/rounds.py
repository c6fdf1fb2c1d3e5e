"""One round of timing: every subject at every context, the first token, and the memory floor of their bytes.

Subjects are visited in shuffled order, and in a visit every context. What was timed goes into the record.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profiling.ceilings import FloorReader, page_sizes
from profiling.clock import Clock
from profiling.expect import floor_bytes, weights_read_whole
from profiling.subjects import Subject
from profiling.workload import Workload
from variants.errors import one_line

Readers = dict[tuple[int, str], FloorReader]  # by bytes and page size

RELOADED_SETTLE = 1  # untimed steps after a subject was put at another context: its own code is warm already


class Rounds:
    """Rounds over `subjects`. One that crashes while it is timed leaves the list, and the rest go on."""

    def __init__(
        self, record: dict[str, Any], workload: Workload, subjects: list[Subject], clock: Clock
    ) -> None:
        self.record, self.workload, self.subjects, self.clock = record, workload, subjects, clock
        self.device = subjects[0].decoder.model.device
        self.readers = _readers(subjects, self.device)

    def time(self, number: int) -> None:
        """Time round `number`."""
        visits: list[Callable[[], None]] = []
        for subject in self.subjects:
            if number < subject.rounds:
                visits.append(self._visit(number, subject))
            if number < self.workload.ttft_rounds and subject.full_size:
                visits.append(self._first_token(number, subject))
        visits += [self._floor(number, size, pages) for size, pages in self.readers]
        random.Random(f"{self.workload.seed} {number}").shuffle(visits)
        for visit in visits:
            visit()

    def _visit(self, number: int, subject: Subject) -> Callable[[], None]:
        def visit() -> None:
            if subject not in self.subjects:
                return  # dropped earlier in this round, under its other name
            contexts = list(subject.contexts)
            random.Random(f"{self.workload.seed} {number} {subject.name}").shuffle(contexts)
            try:
                for place, context in enumerate(contexts):
                    settle = subject.settle if place == 0 else min(subject.settle, RELOADED_SETTLE)
                    sample = self._timed(subject, context, settle)
                    self.record["samples"].append({"round": number, **sample})
            except Exception as error:
                self._drop(subject, error)

        return visit

    def _timed(self, subject: Subject, context: int, settle: int) -> dict[str, Any]:
        decoder = subject.decoder
        subject.load(context)
        self.clock.each_ms(decoder.advance, settle)
        steps = self.clock.each_ms(decoder.advance, subject.steps)
        pipelined = None
        if self.device.type != "cpu":  # a CPU step is done when its call returns
            pipelined = self.clock.pipelined_ms(decoder.advance, subject.steps)
        decoder.verify()
        return {
            "variant": subject.name,
            "width": subject.width,
            "context": context,
            "batch": decoder.batch,
            "steps_ms": steps,
            "pipelined_ms": pipelined,
        }

    def _first_token(self, number: int, subject: Subject) -> Callable[[], None]:
        def visit() -> None:
            prompt = subject.material.tokens[:, : self.workload.prompt]
            (ms,) = self.clock.each_ms(lambda: subject.decoder.prefill(prompt), 1)
            self.record["ttft"].append({"round": number, "variant": subject.name, "ms": ms})

        return visit

    def _floor(self, number: int, size: int, pages: str) -> Callable[[], None]:
        def visit() -> None:
            ms = self.readers[size, pages].read_ms(size, settle=1, times=self.workload.steps)
            self.record["floors"].append({"round": number, "bytes": size, "pages": pages, "ms": ms})

        return visit

    def _drop(self, subject: Subject, error: Exception) -> None:
        name = subject.decoder.variant.name
        self.record["variants"][name].update(status="failed", reason=one_line(error))
        self.subjects[:] = [s for s in self.subjects if s.decoder.variant.name != name]


def _readers(subjects: list[Subject], device: torch.device) -> Readers:
    """One for every number of bytes, on every page size: that of a subject's weights, or of a mere buffer."""
    readers: Readers = {}

    def add(weights: list[Tensor], sizes: list[int], of_weights: str, of_buffer: str) -> None:
        if new := [size for size in sizes if (size, of_weights) not in readers]:
            reader = FloorReader(weights, max(new), device, of_buffer)
            readers.update({(size, of_weights): reader for size in new})

    for subject in subjects:
        decoder = subject.decoder
        sizes = [floor_bytes(decoder, n) for n in (0, *subject.contexts)]
        add(weights_read_whole(decoder.model), sizes, decoder.variant.pages, "default")
    for pages in page_sizes(device):
        add([], [size for size, _ in readers], pages, pages)
    return readers
