"""Two measurements of paging beside its steps: a queue over one memory, and prefills over one pool.

Prompts that begin alike are computed once and held once, in the blocks of a paged cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from profiling.gate.oracle import random_stream
from profiling.measure.clock import Clock
from profiling.results.record import PrefixPrompt, Queue, SharedPrefix
from profiling.sizing.serving import Blocks, Slabs, Store, lengths, serve
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import GPT
from variants.slots.blocks import BLOCK, BlockPool, blocks_for
from variants.slots.paged_cache import PagedCache

SLABS = 8  # the memory of the queue: as many slabs of the model's limit
STAMP = 3  # tokens of a timestamp or request id, different in every request


def queue(requests: int, limit: int, seed: int) -> Queue:
    """The three ways to hand out the same memory to the same requests."""
    slots, mix = SLABS * limit, lengths(requests, limit, seed)
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
    total, rung, found = sum(sizes.values()), ladder(precision)["paged"], {}

    def part(name: str, number: int) -> Tensor:
        """The system prompt is the same for all; time and question are everyone's own."""
        own = {"system": 0, "time": 1000 + number, "question": 2000 + number}[name]
        return random_stream(vocabulary, 1, sizes[name], seed + own).to(model.device)

    for layout in layouts:
        decoder, alone = (Decoder.of(rung, model, capacity=total) for _ in range(2))
        assert isinstance(decoder.cache, PagedCache)
        decoder.cache.share(BlockPool(model.config, prompts * blocks_for(total), model.like))
        texts = [torch.cat([part(p, n) for p in layout.split(", ")], dim=1) for n in range(prompts)]
        rows = [_prefilled(decoder, alone, text) for text in texts]
        used = decoder.cache.pool.blocks - len(decoder.cache.pool.free)
        found[layout] = SharedPrefix(prompts=rows, blocks=used)
    return found


@torch.inference_mode()
def prefill_shared(decoder: Decoder, tokens: Tensor) -> tuple[Tensor, int]:
    """As `decoder.prefill`, but a prefix that the pool holds is shared and only the rest is computed.

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


def _prefilled(decoder: Decoder, alone: Decoder, text: Tensor) -> PrefixPrompt:
    """One prompt over what the pool holds, timed, and the same passes in a decoder that shares nothing."""
    made: list[tuple[Tensor, int]] = []
    (ms,) = Clock(text.device).each_ms(lambda: made.append(prefill_shared(decoder, text)), 1)
    ((logits, held),) = made
    alone.reset()
    if held:
        alone.prefill(text[:, :held])
    same = torch.equal(alone.extend(text[:, held:])[:, -1], logits)
    return PrefixPrompt(tokens=text.size(1), shared=held, ms=ms, bit_equal=same)
