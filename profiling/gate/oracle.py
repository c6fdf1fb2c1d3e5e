"""What the right answer is: float64 logits, keys and values of a token sequence, recomputed from nothing.

The reference is cheap: a whole sequence is one pass. If the argmax at every position is the next token of
what a variant produced, the two agree token for token, by induction over the positions.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from profiling.results.record import Drift
from variants.backends.modules import Modules
from variants.config import GPTConfig
from variants.decoder import Decoder, Parts, build_parts
from variants.ladder import ladder
from variants.model import GPT
from variants.slots.growing_cache import ConcatCache
from variants.slots.kv import KvOption
from variants.slots.mask import Where
from variants.slots.narrow_cache import as_stored
from variants.slots.precision import PrecisionOption
from variants.slots.quantised import exact_copy

PIECE = 1 << 18  # values compared at once: logits of a whole text in float64 would not stay in any cache
KEPT_SEQUENCES = 12  # more than there are checks: the variants of one run feed the same few texts


@dataclass(frozen=True)
class Errors:
    """How far a tensor is from the float64 one: root mean square, maximum, and the scale of the truth."""

    rms: float
    max: float
    scale: float

    @staticmethod
    def of(got: Tensor, truth: Tensor) -> Errors:
        n, worst, squares, scale = truth.numel(), 0.0, 0.0, 0.0
        for ours, right in zip(got.flatten().split(PIECE), truth.flatten().split(PIECE), strict=True):
            difference = ours.double() - right
            largest = float(difference.abs().max())
            worst = max(worst, largest if math.isfinite(largest) else math.inf)
            squares += float(difference.dot(difference))
            scale += float(right.dot(right))
        return Errors(rms=math.sqrt(squares / n), max=worst, scale=math.sqrt(scale / n))

    def joined(self, other: Errors) -> Errors:
        return Errors(max(self.rms, other.rms), max(self.max, other.max), max(self.scale, other.scale))


class Truth(Protocol):
    """What a decoder is held against, in float64."""

    def logits(self, tokens: Tensor, last: int = 0) -> Tensor:
        """tokens [B,T] int64 -> logits float64 [B,T,V], or of the last `last` positions."""
        ...

    def kv(self, tokens: Tensor, last: int = 0) -> list[tuple[Tensor, Tensor]]:
        """Per layer, keys and values float64 [B,Hkv,T,D]."""
        ...


class RoundedCache(ConcatCache):
    """Keeps what slot `kv` would give back: every key and value encoded and decoded once."""

    def __init__(self, config: GPTConfig, batch: int, like: Tensor, kv: KvOption) -> None:
        super().__init__(config, batch, config.n_ctx, like)
        self.kv = kv

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        return super().append(layer, as_stored(k, self.kv), as_stored(v, self.kv), where)


class Oracle(Truth):
    """Float64 truth for the weights as one precision stores them, and the cache as `kv` does."""

    def __init__(self, model: GPT, precision: PrecisionOption, kv: KvOption, batch: int) -> None:
        """`batch` rows per sequence. The copy takes 8 bytes per parameter."""
        # One pass from an empty cache never reads a cached value: this is the naive function, and the
        # concat cache only keeps the keys and values it computed on the way.
        variant, capacity = ladder("float64")["lasthead"], model.config.n_ctx
        parts = build_parts(variant, exact_copy(model, precision), batch, capacity)
        if kv.narrow:
            plain = parts.modules
            assert isinstance(plain, Modules)
            rounded = RoundedCache(model.config, batch, plain.model.like, kv)
            modules = Modules(plain.model, rounded, plain.mask, plain.attention, plain.head)
            parts = Parts(modules, modules, parts.executor)
        self.decoder = Decoder(variant, parts, batch=batch, capacity=capacity)
        self._seen: OrderedDict[bytes, tuple[Tensor, list[tuple[Tensor, Tensor]]]] = OrderedDict()

    def logits(self, tokens: Tensor, last: int = 0) -> Tensor:
        """tokens [B,T] int64 -> logits float64 [B,T,V], or of the last `last` positions."""
        return self._run(tokens, last)[0]

    def kv(self, tokens: Tensor, last: int = 0) -> list[tuple[Tensor, Tensor]]:
        """Per layer, keys and values float64 [B,Hkv,T,D]."""
        return self._run(tokens, last)[1]

    def _run(self, tokens: Tensor, last: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        key = tokens.cpu().numpy().tobytes() + bytes([last])
        if key not in self._seen:
            self.decoder.reset()
            # the logits of a long text are large: only the positions that are asked for are kept
            head = tokens[:, : tokens.size(1) - last] if last else tokens[:, :0]
            if head.size(1):
                self.decoder.prefill(head)
            logits = self.decoder.extend(tokens[:, head.size(1) :])
            cache = self.decoder.cache
            n, layers = tokens.size(1), self.decoder.model.config.n_layer
            self._seen[key] = logits, [cache.contents(layer, n) for layer in range(layers)]
            if len(self._seen) > KEPT_SEQUENCES:
                self._seen.popitem(last=False)
        self._seen.move_to_end(key)
        return self._seen[key]


def greedy_agreement(tokens: Tensor, start: int, truth: Tensor, tie: float) -> tuple[int | None, int]:
    """Where a greedy continuation leaves the reference.

    tokens [B,T] produced greedily from position `start` on; truth [B,T,V] the reference's logits. Returns
    (first position that disagrees beyond a tie, or None; number of ties). A tie is a mismatch where the
    reference's two best logits are closer than `tie`.
    """
    predicted = truth[:, start - 1 : -1]
    produced = tokens[:, start:]
    wrong = predicted.argmax(-1) != produced
    margin = predicted.max(-1).values - predicted.gather(-1, produced[..., None])[..., 0]
    tied = wrong & (margin <= tie)
    beyond = (wrong & ~tied).any(dim=0).nonzero()
    first = int(beyond[0]) + start if len(beyond) else None
    return first, int(tied.sum())


def agreement_with(got: Tensor, truth: Tensor) -> Drift:
    """Damage of a reduced precision: logits [B,T,V] against the full-precision ones, position by position."""
    p, q = truth.double().log_softmax(-1), got.double().log_softmax(-1)
    same = got.argmax(-1) == truth.argmax(-1)
    differing = (~same).any(dim=0).nonzero()
    first = int(differing[0]) if len(differing) else None
    top2 = truth.double().topk(2, dim=-1).values
    return Drift(
        top1_agreement=float(same.double().mean()),
        mean_kl_nats=float((p.exp() * (p - q)).sum(-1).mean()),
        rms_logit_error=Errors.of(got, truth.double()).rms,
        first_divergence=first,
        margin_there=None if first is None else float((top2[..., 0] - top2[..., 1])[:, first].min()),
    )


def random_stream(vocab_size: int, batch: int, n: int, seed: int) -> Tensor:
    """Seeded random tokens int64 [batch, n]: greedy decoding of random weights loops, these do not."""
    return torch.randint(vocab_size, (batch, n), generator=torch.Generator().manual_seed(seed))
