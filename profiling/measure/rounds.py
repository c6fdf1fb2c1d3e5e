"""The one loop that measures: whatever is compared is visited once in every round, in shuffled order.

A slow minute of the machine then hits everything that is compared. What a visit does stands in
`profiling.measure.visits`, and for other engines in `profiling.peers.visits`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol


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
