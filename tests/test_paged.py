"""Blocks are never lost, never written by two sequences, and sharing a prefix changes no bit."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from profiling.measure.paging import prefill_shared
from tests.conftest import CONFIGS
from variants.config import GPTConfig
from variants.decoder import Decoder
from variants.errors import UserError
from variants.executors.executor import TAPE
from variants.ladder import ladder
from variants.slots.blocks import BlockPool, blocks_for
from variants.slots.paged_cache import PagedCache
from variants.spec import Variant

ONE = GPTConfig(n_layer=1, n_head=1, n_embd=1, n_ctx=64, vocab_size=4)
SIZE, BLOCKS = 4, 9


class Request:
    """A sequence of the model under test: its tokens as they should be, and its blocks."""

    def __init__(self, row: list[int], text: list[int]) -> None:
        self.row, self.text = row, text


class Pool(RuleBasedStateMachine):
    """Random allocate, append, fork, rewind, publish, adopt and free over a small pool.

    A token's key stands for all tokens up to it, as in a model: whoever reads a wrong one sees it.
    """

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(ONE, BLOCKS, torch.zeros(1, dtype=torch.float64), SIZE)
        self.live: list[Request] = []
        self.known: dict[tuple[int, ...], float] = {}

    def value(self, text: list[int]) -> float:
        return self.known.setdefault(tuple(text), float(len(self.known) + 1))

    def write(self, request: Request, new: list[int]) -> None:
        held = len(request.text)
        request.text = request.text + new
        for t in range(held, len(request.text)):
            block, place = request.row[t // SIZE], t % SIZE
            self.pool.k[0][block, 0, place] = self.value(request.text[: t + 1])
            self.pool.v[0][block, 0, place] = -self.value(request.text[: t + 1])

    def append_to(self, request: Request, new: list[int]) -> None:
        held, before = len(request.text), (list(request.row), list(self.pool.owners))
        try:
            self.pool.grow([request.row], held, held + len(new))
        except UserError:
            assert (request.row, self.pool.owners) == before
            assert self.pool.available < len(new) // SIZE + 2
            return
        self.write(request, new)

    @rule(target=requests, text=st.lists(st.integers(0, 1), min_size=1, max_size=11))
    def allocate(self, text: list[int]) -> Request:
        row = self.pool.adopt(torch.tensor(text[:-1], dtype=torch.int64))
        request = Request(row, text[: len(row) * SIZE])
        self.live.append(request)
        self.append_to(request, text[len(request.text) :])
        return request

    @rule(request=requests, new=st.lists(st.integers(0, 1), min_size=1, max_size=6))
    def append(self, request: Request, new: list[int]) -> None:
        self.append_to(request, new)

    @rule(target=requests, request=requests, share=st.floats(0, 1))
    def fork(self, request: Request, share: float) -> Request:
        n = int(share * len(request.text))
        forked = Request(self.pool.fork(request.row, n), request.text[:n])
        self.live.append(forked)
        return forked

    @rule(request=requests, share=st.floats(0, 1))
    def rewind(self, request: Request, share: float) -> None:
        request.text = request.text[: int(share * len(request.text))]
        self.pool.release(request.row, len(request.text))

    @rule(request=requests)
    def publish(self, request: Request) -> None:
        self.pool.publish(request.row, torch.tensor(request.text, dtype=torch.int64))

    @rule(request=consumes(requests))
    def free(self, request: Request) -> None:
        self.pool.release(request.row)
        self.live.remove(request)

    @precondition(lambda self: self.live)
    @rule()
    def rows_of_a_batch_grow_together(self) -> None:
        rows = [r for r in self.live if len(r.text) == len(self.live[0].text)]
        held = len(rows[0].text)
        try:
            self.pool.grow([r.row for r in rows], held, held + 1)
        except UserError:
            return
        for number, request in enumerate(rows):
            self.write(request, [number % 2])

    @invariant()
    def every_block_is_counted_and_in_one_place(self) -> None:
        held = Counter(block for request in self.live for block in request.row)
        assert self.pool.owners == [held[block] for block in range(BLOCKS + 1)]
        idle = [block for block in self.pool.published if not held[block]]
        assert sorted([*held, *idle, *self.pool.free]) == list(range(1, BLOCKS + 1))
        assert {block: key for key, block in self.pool.prefixes.items()} == self.pool.published

    @invariant()
    def everybody_reads_their_own_tokens(self) -> None:
        for request in self.live:
            assert len(request.row) >= blocks_for(len(request.text), SIZE)
            seen = self.pool.k[0][request.row].flatten()[: len(request.text)].tolist()
            assert seen == [self.value(request.text[: t + 1]) for t in range(len(request.text))]


Pool.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, suppress_health_check=list(HealthCheck)
)
TestPool = Pool.TestCase


@pytest.fixture(params=["paged", "onelaunch-paged"])
def rung(request: pytest.FixtureRequest) -> Variant:
    variant = ladder()[request.param]
    if reason := variant.why_not("cpu"):
        pytest.skip(reason)
    return variant


def sharing(rung: Variant, model, decoders: int, batch: int = 1) -> list[Decoder]:
    """Paged decoders over the first one's pool."""
    paged = [Decoder.of(rung, model, batch=batch) for _ in range(decoders)]
    for decoder in paged[1:]:
        decoder.cache.share(paged[0].cache.pool)
    return paged


def text_for(model, batch: int, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(model.config.vocab_size, (batch, n), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("batch", [1, 2])
def test_sharing_a_prefix_is_bit_equal_to_not_sharing(rung, model, batch: int) -> None:
    first, second = sharing(rung, model, 2, batch)
    (alone,) = sharing(rung, model, 1, batch)
    first.cache.pool.free.reverse()  # the second sequence's own blocks lie elsewhere than those of `alone`
    system, question = text_for(model, batch, 20), text_for(model, batch, 5, seed=1)
    prefill_shared(first, system)
    got, held = prefill_shared(second, torch.cat([system, question], dim=1))
    assert held == 16 and [r[:1] for r in first.cache.rows] == [r[:1] for r in second.cache.rows]
    alone.prefill(system)  # as the first did: 16 tokens at once may take other kernels than 20
    alone.rewind(16)
    logits = alone.extend(torch.cat([system[:, 16:], question], dim=1))
    assert torch.equal(got, logits[:, -1])
    for _ in range(4):
        assert torch.equal(second.advance(), alone.advance())
        first.advance()
    first.reset()
    assert torch.equal(second.advance(), alone.advance())


def test_a_fork_copies_only_when_one_of_them_writes(rung: Variant, tiny) -> None:
    parent, child = sharing(rung, tiny, 2)
    text = text_for(tiny, 1, 21)
    parent.prefill(text)
    pool = parent.cache.pool
    child.cache.rows = [pool.fork(parent.cache.rows[0], 18)]
    child.cache.rewind(18)
    child.length = 18
    assert pool.copies == 0 and len(pool.free) == pool.blocks - 2
    other = text_for(tiny, 1, 3, seed=2)
    ours = child.extend(other)
    assert pool.copies == 1  # the block that both hold in part; the full one stays shared
    fresh = Decoder.of(rung, tiny)
    fresh.prefill(text[:, :18])
    assert torch.equal(ours, fresh.extend(other))
    continued = parent.step(text[:, :1])
    fresh.prefill(text)
    assert torch.equal(continued, fresh.step(text[:, :1]))


def test_out_of_blocks_is_refused_and_changes_nothing(rung: Variant, tiny) -> None:
    first, second = sharing(rung, tiny, 2)
    first.prefill(text_for(tiny, 1, 40))
    second.prefill(text_for(tiny, 1, 16, seed=1))
    with pytest.raises(UserError, match=r"out of blocks: 1 more are needed, 0 of 4"):
        second.step(torch.tensor([[1]]))
    assert second.length == 16
    first.rewind(32)
    fresh = Decoder.of(rung, tiny)
    fresh.prefill(text_for(tiny, 1, 16, seed=1))
    assert torch.equal(second.step(torch.tensor([[1]])), fresh.step(torch.tensor([[1]])))


def test_prefixes_that_nobody_holds_are_evicted_the_oldest_first(rung: Variant, tiny) -> None:
    (decoder,) = sharing(rung, tiny, 1)
    pool = decoder.cache.pool
    old, new = text_for(tiny, 1, 33), text_for(tiny, 1, 33, seed=1)
    prefill_shared(decoder, old)
    prefill_shared(decoder, new)  # 2 + 3 blocks of 4: the end of the old text goes
    assert pool.evictions == 1
    assert prefill_shared(decoder, old)[1] == 16
    assert prefill_shared(decoder, old)[1] == 32


def test_a_rewind_into_a_published_block_withdraws_it(rung: Variant, tiny) -> None:
    (decoder,) = sharing(rung, tiny, 1)
    text = text_for(tiny, 1, 33)
    prefill_shared(decoder, text)
    decoder.rewind(20)
    decoder.extend(text_for(tiny, 1, 12, seed=5))
    assert prefill_shared(decoder, text)[1] == 16


def test_the_pool_grows_with_the_text_and_not_with_the_capacity(rung: Variant, tiny) -> None:
    decoder = Decoder.of(rung, tiny)
    assert isinstance(decoder.cache, PagedCache)
    held = []
    for n in (1, 16, 17, 48):
        decoder.prefill(text_for(tiny, 1, n))
        held.append(decoder.cache.pool.blocks - len(decoder.cache.pool.free))
    assert held == [1, 1, 2, 3]
    decoder.reset()
    assert len(decoder.cache.pool.free) == decoder.cache.pool.blocks


def test_a_recorded_step_reads_the_block_table_from_memory() -> None:
    """The tape's arguments never change: blocks handed out later must reach it through the table."""
    from variants.model import random_model

    model = random_model(CONFIGS["grouped"], 1)
    recorded = ladder()["paged"].then("paged-tape", "the model's Python", executor=TAPE)
    tape, eager = Decoder.of(recorded, model), Decoder.of(ladder()["paged"], model)
    for decoder in (tape, eager):
        decoder.prefill(text_for(model, 1, 14))
    for _ in range(24):
        assert torch.equal(tape.advance(), eager.advance())
