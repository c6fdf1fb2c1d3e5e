"""Visits of other engines' processes, and of the floors of their bytes, in the same rounds."""

from __future__ import annotations

import random
from dataclasses import dataclass

from profiling.measure.visits import ALWAYS, PlainRead
from profiling.peers.worker import Request, Worker, wait_for_quiet
from profiling.results.record import EngineSample


@dataclass(frozen=True)
class EngineVisit:
    """Greedy steps after a prompt that is every engine's in this round."""

    name: str
    worker: Worker
    context: int
    warm_up: int
    steps: int
    vocabulary: int
    entropy: int
    into: list[EngineSample]

    rounds = ALWAYS

    @property
    def subject(self) -> str:
        return self.name

    def __call__(self, number: int) -> None:
        draw = random.Random(f"{self.entropy} {number} {self.context}")
        prompt = tuple(draw.randrange(self.vocabulary) for _ in range(self.context))
        timed = self.worker.visit(Request(prompt, self.warm_up, self.steps))
        self.into.append(
            EngineSample(
                engine=self.name, context=self.context, round=number, ms=timed.ms, tokens=timed.tokens
            )
        )


@dataclass(frozen=True)
class QuietRead(PlainRead):
    """A plain read by this process, whose threads then rest before an engine is visited."""

    def __call__(self, number: int) -> None:
        super().__call__(number)
        wait_for_quiet()
