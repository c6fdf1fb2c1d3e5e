"""A serving queue over one memory: how many requests fit, and what is reserved for nothing.

Requests of random lengths wait in line; whoever fits runs, one token per tick. Three ways to hand out the
same number of token slots: a slab of the model's limit, a slab of exactly the final length (which a real
server does not know), and blocks on demand from the pool that the paged decoder uses.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from statistics import mean
from typing import Protocol

import torch

from profiling.results.record import Served
from variants.config import GPTConfig
from variants.slots.blocks import BLOCK, BlockPool, blocks_for

# one value per token: the books are real, the memory is not
BOOKS = GPTConfig(n_layer=1, n_head=1, n_embd=1, vocab_size=2)


@dataclass(eq=False)
class Request:
    """`held` tokens are in the cache; it ends at `final` tokens."""

    prompt: int
    final: int
    held: int = 0


class Store(Protocol):
    def admit(self, request: Request) -> bool:
        """Make room for its first `held` tokens and one more; False where that does not fit."""
        ...

    def grow(self, request: Request) -> bool:
        """Room for one token after `held`."""
        ...

    def free(self, request: Request) -> None: ...

    @property
    def reserved(self) -> int:
        """Token slots that nobody else can get."""
        ...

    def has_room_in_pieces(self, request: Request) -> bool:
        """Whether as many slots as it asks for are free, wherever they are."""
        ...


class Slabs:
    """A contiguous slab per request, first fit; `limit`: slots of each, or None for the final length."""

    def __init__(self, slots: int, limit: int | None) -> None:
        self.slots, self.limit = slots, limit
        self.taken: dict[Request, tuple[int, int]] = {}  # request -> start, end

    def admit(self, request: Request) -> bool:
        size, at = self._size(request), 0
        for start, end in [*sorted(self.taken.values()), (self.slots, self.slots)]:
            if start - at >= size:
                self.taken[request] = at, at + size
                return True
            at = end
        return False

    def grow(self, request: Request) -> bool:
        return True

    def free(self, request: Request) -> None:
        del self.taken[request]

    @property
    def reserved(self) -> int:
        return sum(end - start for start, end in self.taken.values())

    def has_room_in_pieces(self, request: Request) -> bool:
        return self.slots - self.reserved >= self._size(request)

    def _size(self, request: Request) -> int:
        return self.limit or request.final


class Blocks:
    """Blocks on demand."""

    def __init__(self, slots: int) -> None:
        self.pool = BlockPool(BOOKS, slots // BLOCK, torch.zeros(1))
        self.rows: dict[Request, list[int]] = {}

    def admit(self, request: Request) -> bool:
        if blocks_for(request.held + 1, self.pool.size) > self.pool.available:
            return False
        self.rows[request] = []
        self.pool.grow([self.rows[request]], 0, request.held + 1)
        return True

    def grow(self, request: Request) -> bool:
        row = self.rows[request]
        if blocks_for(request.held + 1, self.pool.size) - len(row) > self.pool.available:
            return False
        self.pool.grow([row], request.held, request.held + 1)
        return True

    def free(self, request: Request) -> None:
        self.pool.release(self.rows.pop(request))

    @property
    def reserved(self) -> int:
        return (self.pool.blocks - len(self.pool.free)) * self.pool.size

    def has_room_in_pieces(self, request: Request) -> bool:
        return False  # any free block will do: what does not fit has no room


def lengths(requests: int, limit: int, seed: int) -> list[tuple[int, int]]:
    """(prompt, final) tokens: lognormal, most far below the limit, a few near it."""
    rng = random.Random(seed)
    mix = []
    for _ in range(requests):
        prompt, reply = (
            max(1, round(limit * share * rng.lognormvariate(0, 0.8))) for share in (1 / 16, 1 / 10)
        )
        prompt = min(prompt, limit // 2)
        mix.append((prompt, min(prompt + reply, limit)))
    return mix


def serve(mix: list[tuple[int, int]], store: Store) -> Served:
    """Run all requests to their end, first come first served."""
    waiting = deque(Request(prompt, final, prompt) for prompt, final in mix)
    running: list[Request] = []
    samples: list[tuple[int, int, int]] = []
    ticks = refused = recomputed = 0
    while waiting or running:
        while waiting and store.admit(waiting[0]):
            running.append(waiting.popleft())
        if waiting:
            refused += store.has_room_in_pieces(waiting[0])
            samples.append((len(running), store.reserved, sum(r.held for r in running)))
        for request in list(running):
            while request in running and not store.grow(request):
                newest = running.pop()  # it has the least to lose, and the first in line goes on
                store.free(newest)
                waiting.appendleft(newest)
                recomputed += newest.held
            if request in running:
                request.held += 1
                if request.held >= request.final:
                    running.remove(request)
                    store.free(request)
        ticks += 1
    at_once, reserved, used = (float(mean(column)) for column in zip(*samples or [(0, 0, 0)], strict=True))
    return Served(ticks, at_once, reserved, used, refused, recomputed)
