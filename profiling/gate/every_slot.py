"""Caches of the full-size model in which every slot counts, at the contexts that are timed.

Where attention is spread over a thousand slots, one that is lost moves the output by a thousandth, which is
less than eight bits round. Here, by turns of heads and layers,

- values cancel: slots come in pairs, drawn at random, of one key and opposite values. Whatever attention a
  pair is given, its two shares add up to nothing, in any order and precision; a slot that is lost, read twice
  or mistaken for another leaves a good part of a value behind;
- keys point away from the query, and only the token's own slot counts.

In a layer with a window, what lies before it has values as large, which nothing cancels: one that is seen
shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from profiling.gate.oracle import KV, random_stream
from profiling.gate.stress import Scene, attention, directions
from variants.model import GPT
from variants.slots.head import all_positions

STEPS = 2  # of every scene: the one that fills a bucket's last slot, and the first of the next bucket
NAME = "every slot"
SPREAD = 0.25  # standard deviation of the scores: no slot has less than half of the average attention
LEFT = 0.5  # of a value of the model's own: what a lost slot of average attention leaves behind
AWAY = 30.0  # score that all slots but the newest stay below it: exp(-30) of a thousand is nothing


def contexts(timed: Iterable[int], buckets: Iterable[int]) -> list[int]:
    """Contexts of the scenes: the timed ones, and the last slot of every bucket; the last is the capacity."""
    buckets = list(buckets)
    last = buckets[-1] - STEPS
    return sorted({max(1, min(n, last)) for n in (*timed, *(slots - 1 for slots in buckets))})


@torch.no_grad()
def every_slot(model: GPT, batch: int, context: int, seed: int) -> Scene:
    """STEPS tokens on this many arranged slots, on the model's device."""
    generator = torch.Generator().manual_seed(seed + context)
    text = random_stream(model.config.vocab_size, batch, context + STEPS, seed + context).to(model.device)
    kv: KV = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        window = model.config.window(layer)
        kv.append(_arranged(layer, q, v, context, window, generator))
        held = [x.to(q) for x in kv[-1]]
        keys, values = (torch.cat(pair, dim=2) for pair in zip(held, (k, v), strict=True))
        return attention(q, keys, values, window)

    positions = torch.arange(context, context + STEPS, device=model.device)
    model(text[:, context:], positions, attend, all_positions)
    return Scene(f"context {context}", text, kv, stressed=NAME)


def _arranged(
    layer: int, q: Tensor, v: Tensor, n: int, window: int | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Keys and values [B,Hkv,n,D] for q [B,H,STEPS,D], beside the tokens' own values v [B,Hkv,STEPS,D]."""
    seen_by_all = 0 if window is None else min(n, max(0, n + STEPS - window))
    seen_by_some = max(0, seen_by_all - STEPS + 1)
    B, heads, _, D = v.shape
    keys, values = torch.randn(2, B, heads, n, D, generator=generator).to(v.device)
    queries = q.float().unflatten(1, (heads, -1)).transpose(0, 1)
    size = _rms(v)
    large = 2.0 ** round(math.log2(LEFT * size * n))  # exact in every precision
    for head in range(heads):
        if (head + layer) % 2:
            keys[:, head] = -AWAY * directions(queries[head]).sum(dim=1, keepdim=True)
            values[:, head] *= size
        else:
            pairs = (n - seen_by_all) // 2
            one, other = seen_by_all + torch.randperm(n - seen_by_all, generator=generator)[: 2 * pairs].view(
                2, -1
            )
            keys[:, head] *= SPREAD / _rms(queries[head])
            own = values[:, head, seen_by_some:seen_by_all] * size
            values[:, head] = large * values[:, head].sign()
            values[:, head, seen_by_some:seen_by_all] = own
            keys[:, head, other], values[:, head, other] = keys[:, head, one], -values[:, head, one]
    return keys.bfloat16(), values.bfloat16()


def _rms(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())
