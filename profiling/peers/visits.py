"""A visit of another engine's process, in the same rounds as everything that is measured."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from profiling.measure.visits import ALWAYS
from profiling.peers.worker import Request, Worker


@dataclass(frozen=True)
class Engine:
    """Greedy steps after a prompt that is every engine's in this round.

    Stores {engine, context, round, ms, tokens}.
    """

    name: str
    worker: Worker
    context: int
    settle: int
    steps: int
    vocabulary: int
    entropy: int
    into: list[dict[str, Any]]

    rounds = ALWAYS

    @property
    def subject(self) -> str:
        return self.name

    def __call__(self, number: int) -> None:
        draw = random.Random(f"{self.entropy} {number} {self.context}")
        prompt = tuple(draw.randrange(self.vocabulary) for _ in range(self.context))
        timed = self.worker.visit(Request(prompt, self.settle, self.steps))
        self.into.append(
            {
                "engine": self.name,
                "context": self.context,
                "round": number,
                "ms": timed.ms,
                "tokens": timed.tokens,
            }
        )
