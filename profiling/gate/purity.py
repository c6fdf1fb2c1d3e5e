"""Whether earlier states depend on later tokens: in a model with its mask, without it, with a mixing norm."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor, nn

from profiling.gate.oracle import random_stream
from profiling.results.record import Agreement, Purity
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import GPT
from variants.slots.head import all_positions

TOKENS = 128  # of all texts of one context together
SHOWN = 4  # attention rows that are kept, as the article prints
KV = list[tuple[Tensor, Tensor]]


class SequenceNorm(nn.Module):
    """A norm whose statistics span the sequence: per channel, over all positions of the pass."""

    def __init__(self, norm: Any) -> None:
        """`norm`: the LayerNorm or RMSNorm whose weight, bias and eps it takes over."""
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        """[B,T,C] -> [B,T,C]."""
        spread = x.var(dim=1, keepdim=True, correction=0)
        scaled = (x - x.mean(dim=1, keepdim=True)) * (spread + self.norm.eps).rsqrt()
        normed: Tensor = scaled * self.norm.weight
        return normed if isinstance(self.norm, nn.RMSNorm) else normed + self.norm.bias


@dataclass
class Pass:
    """logits [T,V], per layer queries [H,T,D], attention weights [H,T,S], keys and values [1,Hkv,S,D]."""

    logits: Tensor
    queries: list[Tensor]
    weights: list[Tensor]
    kv: KV


@torch.inference_mode()
def run(model: GPT, tokens: Tensor, past: KV | None = None, masked: bool = True) -> Pass:
    """tokens [1,T] int64 after what `past` holds. Without a mask every query sees all keys that there are."""
    held = past[0][0].size(2) if past else 0
    queries: list[Tensor] = []
    weights: list[Tensor] = []
    kv: KV = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if past:
            k, v = torch.cat([past[layer][0], k], dim=2), torch.cat([past[layer][1], v], dim=2)
        queries.append(q[0])
        kv.append((k, v))
        shared_by = q.size(1) // k.size(1)
        keys, values = k.repeat_interleave(shared_by, dim=1), v.repeat_interleave(shared_by, dim=1)
        scores = q @ keys.transpose(-1, -2) / q.size(-1) ** 0.5
        if masked:
            visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril(held)
            scores = scores.masked_fill(~visible, float("-inf"))
        weights.append(scores.softmax(dim=-1)[0])
        return weights[-1][None] @ values

    positions = torch.arange(held, held + tokens.size(1), device=tokens.device)
    logits = model(tokens, positions, attend, all_positions)[0]
    return Pass(logits, queries, weights, kv)


def measure(model: GPT, kind: str, context: int, seed: int) -> Purity:
    """One token after `context` random ones; kind: causal, unmasked, or norm (causal, with mixing norms)."""
    if kind == "norm":
        model = copy.deepcopy(model)
        for block in model.blocks:
            block.ln_1 = SequenceNorm(block.ln_1)
    texts = max(1, TOKENS // context)
    ones = [_one_text(model, kind != "unmasked", context, seed + number) for number in range(texts)]
    flipped = [one for one in ones if one.flips]
    return replace(
        ones[0],
        texts=texts,
        appended=max(one.appended for one in ones),
        replaced=max(one.replaced for one in ones),
        drift=max(one.drift for one in ones),
        kv=max(one.kv or 0.0 for one in ones),
        shown=[shown for one in ones for shown in one.shown],
        drifts=[one.drift for one in ones],
        flips=len(flipped),
        argmax=(flipped or ones)[0].argmax,
    )


def _one_text(model: GPT, masked: bool, context: int, seed: int) -> Purity:
    text = random_stream(model.config.vocab_size, 1, context + 1, seed).to(model.device)
    other = text.clone()
    other[0, -1] = (other[0, -1] + 1) % model.config.vocab_size
    before, after = run(model, text[:, :-1], masked=masked), run(model, text, masked=masked)
    replaced = run(model, other, masked=masked)
    cached = run(model, text[:, -1:], before.kv, masked)
    argmax = int(after.logits[-1].argmax()), int(cached.logits[-1].argmax())
    corner = min(SHOWN, context)
    rows = before.weights[0][0, :corner, :corner], after.weights[0][0, :corner, : corner + 1]
    return Purity(
        context=context,
        texts=1,
        appended=max(map(_apart, before.weights, _earlier(after.weights, context))),
        replaced=max(map(_apart, _states(after, context), _states(replaced, context))),
        drift=_apart(cached.logits[-1], after.logits[-1]),
        flips=int(argmax[0] != argmax[1]),
        argmax=argmax,
        before=rows[0].tolist(),
        after=rows[1].tolist(),
        shown=[_apart(rows[0], rows[1][:, :corner])],
        kv=max(map(_apart, _keys_and_values(before, context), _keys_and_values(after, context))),
    )


def _earlier(weights: list[Tensor], n: int) -> list[Tensor]:
    """The first n rows, over the first n keys."""
    return [rows[:, :n, :n] for rows in weights]


def _states(one: Pass, n: int) -> list[Tensor]:
    """All that the first n tokens left behind: attention rows, keys, values."""
    return [*_earlier(one.weights, n), *_keys_and_values(one, n)]


def _keys_and_values(one: Pass, n: int) -> list[Tensor]:
    """Of the first n tokens, layer by layer."""
    return [part[:, :, :n] for pair in one.kv for part in pair]


def _apart(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())


def norms_of_queries(model: GPT, prompt: Tensor, new: int) -> tuple[Tensor, list[float]]:
    """`new` greedy tokens behind a prompt [1,P], one cached pass each -> (all tokens [P+new], and of the last
    layer's query, all heads together, the norm in each step)."""
    text, fed, past = prompt, prompt, None
    norms = []
    for _ in range(new):
        step = run(model, fed, past)
        norms.append(float(step.queries[-1][:, -1].norm()))
        past, fed = step.kv, step.logits[-1:].argmax(dim=-1, keepdim=True)
        text = torch.cat([text, fed], dim=1)
    return text[0], norms


def agreement(model: GPT, precision: str, prompt: int, new: int, seed: int) -> dict[str, Agreement]:
    """Every cached rung that runs here without a compiler, against naive, over `new` greedy tokens.

    Per rung: max |difference| of all steps' logits with naive's tokens fed to both, and whether its own
    greedy tokens are naive's.
    """
    rungs = ladder(precision)
    tokens = random_stream(model.config.vocab_size, 1, prompt, seed).to(model.device)
    reference, truth = greedy(Decoder.of(rungs["naive"], model), tokens, new)
    per_rung = {}
    for variant in rungs.values():
        exact = variant.precision.name == precision and not variant.kv.narrow
        if (
            not variant.cache.keeps
            or not exact
            or variant.executor.compiles
            or variant.why_not(model.device.type)
        ):
            continue
        decoder = Decoder.of(variant, model)
        wrote, _ = greedy(decoder, tokens, new)
        fed = reference[:, :-1].split(1, dim=1)
        logits = [decoder.prefill(tokens), *(decoder.step(token) for token in fed)]
        per_rung[variant.name] = Agreement(_apart(torch.cat(logits), truth), torch.equal(wrote, reference))
    return per_rung


def greedy(decoder: Decoder, prompt: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """(new greedy tokens [1,new], the logits that chose them [new,V])."""
    logits = [decoder.prefill(prompt).clone()]
    tokens = [decoder.token.clone()]
    for _ in range(new - 1):
        logits.append(decoder.advance().clone())
        tokens.append(decoder.token.clone())
    return torch.cat(tokens, dim=1), torch.cat(logits)
