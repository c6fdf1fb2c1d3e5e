"""What the right answer is: float64 logits, keys and values of a token sequence, recomputed from nothing.

The reference is cheap: a whole sequence is one pass. If the argmax at every position is the next token of
what a variant produced, the two agree token for token, by induction over the positions. What follows a
beginning of a text that was learned is computed from the keys and values which that one pass left there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from profiling.gate.evidence import Errors, Mismatch
from profiling.results.record import Drift
from variants.backends.modules import Modules
from variants.config import GPTConfig
from variants.decoder import Decoder, Parts, build_parts
from variants.ladder import ladder
from variants.model import GPT
from variants.slots.exact import exact_copy
from variants.slots.growing_cache import ConcatCache
from variants.slots.kv import KvOption
from variants.slots.mask import Where
from variants.slots.narrow_cache import as_stored
from variants.slots.precision import PrecisionOption

KEPT_ANSWERS = 40  # more than a decoder is asked for: the variants of one run feed the same few texts
KV: TypeAlias = list[tuple[Tensor, Tensor]]  # per layer, keys and values [B,Hkv,T,D]


class Answer(NamedTuple):
    """float64: logits [B,T,V] of the positions, keys and values of the slots that were asked for."""

    logits: Tensor
    kv: KV


class Truth(ABC):
    """What a decoder is held against, in float64. Answers are kept: every variant asks for the same ones."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[object, ...], Answer] = OrderedDict()

    def answer(self, tokens: Tensor, position: int, slot: int) -> Answer:
        """About tokens [B,T] int64: logits from this position on, keys and values from this slot on.

        Raises Mismatch where they are not finite: nothing can be held against such a reference.
        """
        key = tokens.shape, tokens.cpu().numpy().tobytes(), position, slot
        if key not in self._answers:
            answer = self._compute(tokens, position, slot)
            if not all(bool(part.isfinite().all()) for part in (answer.logits, *chain(*answer.kv))):
                raise Mismatch("the reference itself is not finite: the weights hold NaN or infinity")
            self._answers[key] = answer
            if len(self._answers) > KEPT_ANSWERS:
                self._answers.popitem(last=False)
        self._answers.move_to_end(key)
        return self._answers[key]

    def logits(self, tokens: Tensor, position: int = 0) -> Tensor:
        """tokens [B,T] int64 -> logits float64 [B,T',V] from this position on."""
        return self.answer(tokens, position, tokens.size(1)).logits

    def learn(self, tokens: Tensor) -> None:
        """Many questions will be about beginnings of this text [B,T]."""
        return

    def arrange(self, tokens: Tensor, kv: KV) -> None:
        """Take these keys and values [B,Hkv,T,D] for those of this text [B,T]; what follows is computed."""
        raise TypeError(f"{type(self).__name__} computes keys and values, and takes none")

    @abstractmethod
    def kv(self, tokens: Tensor) -> KV:
        """Per layer, keys and values float64 [B,Hkv,T,D] of the whole text."""

    @abstractmethod
    def _compute(self, tokens: Tensor, position: int, slot: int) -> Answer:
        """The answer, without a reference to anything larger than itself."""


class RoundedCache(ConcatCache):
    """Keeps what slot `kv` would give back: every key and value encoded and decoded once."""

    def __init__(self, config: GPTConfig, batch: int, like: Tensor, kv: KvOption) -> None:
        super().__init__(config, batch, config.n_ctx, like)
        self.kv = kv

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        return super().append(layer, as_stored(k, self.kv), as_stored(v, self.kv), where)


@dataclass(frozen=True)
class _Known:
    """A text [B,T] with the states [B,T,C] before the head, and its keys and values."""

    tokens: Tensor
    hidden: Tensor
    kv: KV
    arranged: bool = False  # keys and values that no text leaves behind: they stand for the whole text only

    def prefix_length(self, tokens: Tensor) -> int:
        """How many of these tokens [B,T'] start this text too."""
        n = min(self.tokens.size(1), tokens.size(1))
        differs = (self.tokens[:, :n] != tokens[:, :n]).any(dim=0).nonzero()
        same = int(differs[0]) if len(differs) else n
        return 0 if self.arranged and same < self.tokens.size(1) else same

    def first(self, n: int) -> _Known:
        return _Known(self.tokens[:, :n], self.hidden[:, :n], first_slots(self.kv, n))


class Oracle(Truth):
    """Float64 truth for the weights as one precision stores them, and the cache as `kv` does."""

    def __init__(self, model: GPT, precision: PrecisionOption, kv: KvOption, batch: int) -> None:
        """`batch` rows per sequence."""
        super().__init__()
        exact = exact_copy(model, precision)
        # the head is applied afterwards, to the positions that are asked for
        self.head, exact.lm_head = exact.lm_head, nn.Identity()  # type: ignore[assignment]
        # One pass from an empty cache never reads a cached value: this is the naive function, and the
        # concat cache only keeps the keys and values it computed on the way.
        variant, capacity = ladder("float64")["lasthead"], model.config.n_ctx
        parts = build_parts(variant, exact, batch, capacity)
        if kv.narrow:
            plain = parts.modules
            assert isinstance(plain, Modules)
            rounded = RoundedCache(model.config, batch, plain.model.like, kv)
            modules = Modules(plain.model, rounded, plain.mask, plain.attention, plain.head)
            parts = Parts(modules, modules, parts.executor)
        self.decoder = Decoder(variant, parts, batch=batch, capacity=capacity)
        nothing = self.decoder.token.new_empty(batch, 0)
        self._texts = [_Known(nothing, exact.like.new_empty(batch, 0, model.config.n_embd), [])]

    def learn(self, tokens: Tensor) -> None:
        """Compute this text [B,T] once, so that its beginnings need no second pass."""
        if all(known.prefix_length(tokens) < tokens.size(1) for known in self._texts):
            self._texts.append(self._following(tokens))

    def arrange(self, tokens: Tensor, kv: KV) -> None:
        """See `Truth.arrange`."""
        if any(known.arranged and torch.equal(known.tokens, tokens) for known in self._texts):
            return
        hidden = self._texts[0].hidden.new_zeros(*tokens.shape, self.decoder.model.config.n_embd)
        self._texts.append(_Known(tokens, hidden, kv, arranged=True))

    def kv(self, tokens: Tensor) -> KV:
        return self._following(tokens).kv

    @torch.inference_mode()
    def _compute(self, tokens: Tensor, position: int, slot: int) -> Answer:
        whole = self._following(tokens)
        kv = [(k[:, :, slot:].clone(), v[:, :, slot:].clone()) for k, v in whole.kv]
        return Answer(self.head(whole.hidden[:, position:]), kv)

    def _following(self, tokens: Tensor) -> _Known:
        """These tokens; of those that start a known text nothing is computed again."""
        best = max(self._texts, key=lambda known: known.prefix_length(tokens))
        n, held = tokens.size(1), best.prefix_length(tokens)
        before = best.first(held)
        if held == n:
            return before
        self.decoder.reset()
        if held:
            self.decoder.load(before.tokens, before.kv)
        hidden = torch.cat([before.hidden, self.decoder.extend(tokens[:, held:])], dim=1)
        layers = range(self.decoder.model.config.n_layer)
        return _Known(tokens, hidden, [self.decoder.cache.contents(layer, n) for layer in layers])


def first_slots(kv: KV, n: int) -> KV:
    """The keys and values of the first n tokens."""
    return [(k[:, :, :n], v[:, :, :n]) for k, v in kv]


def greedy_agreement(tokens: Tensor, start: int, truth: Tensor, tie: float) -> tuple[int | None, int]:
    """Where a greedy continuation leaves the reference.

    tokens [B,T] produced greedily from position `start` on; truth [B,T-start+1,V] the reference's logits
    from position start - 1 on. Returns (first position that disagrees beyond a tie, or None; number of ties).
    A tie is a mismatch where the reference's two best logits are closer than `tie`.
    """
    predicted = truth[:, :-1]
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
