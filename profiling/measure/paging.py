"""Paging beside its steps: a queue over one memory, and prefills over one pool.

In the queue requests of random lengths wait in line; whoever fits runs, one token per tick. Three ways to
hand out the same number of token slots: a slab of the model's limit, a slab of exactly the final length
(which a real server does not know), and blocks on demand from the pool that the paged decoder uses.

Prompts that begin alike are computed once and held once, in the blocks of a paged cache.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Protocol

import torch
from torch import Tensor

from profiling.gate.oracle import random_stream
from profiling.measure.clock import Clock
from profiling.results.record import PrefixPrompt, Queue, Served, SharedPrefix
from variants.config import GPTConfig
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import GPT
from variants.slots.blocks import BLOCK, BlockPool, blocks_for
from variants.slots.paged_cache import PagedCache

# one value per token: the books are real, the memory is not
BOOKS = GPTConfig(n_layer=1, n_head=1, n_embd=1, vocab_size=2)
SLABS = 8  # the memory of the queue: as many slabs of the model's limit
STAMP = 3  # tokens of a timestamp or request id, different in every request


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
        """Make room for one token after `held`; False where there is none."""
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
    busy, all_ticks = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    ticks = refused = recomputed = 0
    while waiting or running:
        while waiting and store.admit(waiting[0]):
            running.append(waiting.popleft())
        all_ticks.append((len(running), store.reserved, sum(r.held for r in running)))
        if waiting:
            refused += store.has_room_in_pieces(waiting[0])
            busy.append(all_ticks[-1])
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
    at_once, reserved, used = (float(mean(column)) for column in zip(*busy or all_ticks, strict=True))
    return Served(ticks, at_once, reserved, used, refused, recomputed)


def queue(mix: list[tuple[int, int]], limit: int) -> Queue:
    """The three ways to hand out the same memory to the same requests, (prompt, final) tokens each."""
    slots = SLABS * limit
    stores: dict[str, Store] = {
        "slab of the limit": Slabs(slots, limit),
        "slab of the final length": Slabs(slots, None),
        "blocks": Blocks(slots),
    }
    served = {name: serve(mix, store) for name, store in stores.items()}
    return Queue(slots=slots, block=BLOCK, mix=mix, served=served)


def prefixes(
    model: GPT, precision: str, layouts: Sequence[str], prompts: int, seed: int
) -> dict[str, SharedPrefix]:
    """Prefills that share a system prompt, per layout: tokens not computed, TTFT, equality to the bit."""
    limit, vocabulary = model.config.n_ctx, model.config.vocab_size
    sizes = {"system": min(256, limit // 2), "time": STAMP, "question": min(24, limit // 8)}
    total, by_layout = sum(sizes.values()), {}

    def part(name: str, number: int) -> Tensor:
        """The system prompt is the same for all; time and question are everyone's own."""
        offset = {"system": 0, "time": 1000 + number, "question": 2000 + number}[name]
        return random_stream(vocabulary, 1, sizes[name], seed + offset).to(model.device)

    for layout in layouts:
        decoder, alone = (_node(model, precision, total, prompts) for _ in range(2))
        assert isinstance(decoder.cache, PagedCache)
        texts = [torch.cat([part(p, n) for p in layout.split(", ")], dim=1) for n in range(prompts)]
        rows = [_timed_prompt(decoder, alone, text) for text in texts]
        used = decoder.cache.pool.blocks - len(decoder.cache.pool.free)
        by_layout[layout] = SharedPrefix(prompts=rows, blocks=used)
    return by_layout


def routing(model: GPT, precision: str, seed: int) -> dict[str, PrefixPrompt]:
    """A conversation's second turn on the node that holds its first, and on another one, which has a pool of
    its own."""
    limit = model.config.n_ctx
    first = min(256, limit // 2)
    text = random_stream(model.config.vocab_size, 1, first + limit // 8, seed).to(model.device)
    same, other, alone = (_node(model, precision, text.size(1), prompts=2) for _ in range(3))
    prefill_shared(same, text[:, :first])
    return {
        "the node that has the cache": _timed_prompt(same, alone, text),
        "another node": _timed_prompt(other, alone, text),
    }


def eviction(model: GPT, precision: str, seed: int) -> dict[str, PrefixPrompt]:
    """Two prompts over a pool that has no room for a third: one is used again before that comes, then both
    come back."""
    size = 2 * BLOCK + 1  # two full blocks each, which are published
    texts = random_stream(model.config.vocab_size, 3, size, seed).to(model.device)
    again, once, third = texts.split(1)
    decoder, alone = (_node(model, precision, size, prompts=2) for _ in range(2))
    assert isinstance(decoder.cache, PagedCache)
    decoder.cache.share(BlockPool(model.config, 2 * 2 + 1, model.like))
    for text in (again, once, again, third):
        prefill_shared(decoder, text)
    return {
        "used again before": _timed_prompt(decoder, alone, again),
        "used once": _timed_prompt(decoder, alone, once),
    }


def _node(model: GPT, precision: str, capacity: int, prompts: int) -> Decoder:
    """A paged decoder over a pool of its own, with room for so many prompts of its capacity."""
    decoder = Decoder.of(ladder(precision)["paged"], model, capacity=capacity)
    assert isinstance(decoder.cache, PagedCache)
    decoder.cache.share(BlockPool(model.config, prompts * blocks_for(capacity), model.like))
    return decoder


@torch.inference_mode()
def prefill_shared(decoder: Decoder, tokens: Tensor) -> tuple[Tensor, int]:
    """Prefill, but share the longest prefix that the pool holds and compute only the rest.

    tokens [B,P] int64 -> logits [B,V] after the last, and how many tokens of each row were not computed. The
    last token always is: its logits are asked for. The prompt's full blocks are published.
    """
    cache = decoder.cache
    assert isinstance(cache, PagedCache)
    decoder.reset()
    decoder.length = cache.adopt(tokens[:, :-1])
    held = decoder.length
    logits = decoder.extend(tokens[:, held:])[:, -1]
    cache.publish(tokens)
    return logits, held


def _timed_prompt(decoder: Decoder, alone: Decoder, text: Tensor) -> PrefixPrompt:
    """One prompt over what the pool holds, timed, and the same passes in a decoder that shares nothing."""
    outputs: list[tuple[Tensor, int]] = []
    (ms,) = Clock(text.device).each_ms(lambda: outputs.append(prefill_shared(decoder, text)), 1)
    ((logits, held),) = outputs
    alone.reset()
    if held:
        alone.prefill(text[:, :held])
    same = torch.equal(alone.extend(text[:, held:])[:, -1], logits)
    return PrefixPrompt(tokens=text.size(1), shared=held, ms=ms, bit_equal=same)
