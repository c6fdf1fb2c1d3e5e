"""What is fed to a decoder under test and the truth about it, the session that drives it and compares, and
what it gave, to be asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from profiling.gate.evidence import LOGITS, Errors, Evidence, Mismatch
from profiling.gate.oracle import KV, Truth, random_stream
from profiling.gate.stress import Scene
from variants.backends.plugin import NotAnswered, PluginTrunk, process_of
from variants.decoder import Decoder
from variants.model import Model
from variants.slots.cache import Preallocated

PROMPT = 10
# The second prompt is longer than a bucket of 128 and than the prompt whose prefill is timed. It is also
# where tokens that do not continue the text are taken from.
OTHER_PROMPT = 140
WARM = 130  # tokens held when a chunk follows and most of them are forgotten again
FREE = FORCED = 3  # steps at every context: the first enters it, the next read what the first left there
NOISE = 1e4  # in slots that nobody may read
AGAIN_UNITS = 2.0  # of rounding, against the scale: the same code mostly gives the same bits


class Session:
    """Drives a decoder, and compares what it computed with the truth whenever it turns to another text.

    After every call the token that is fed back must have the greatest of the logits that were given, and the
    cache's own length be the number of tokens held: rounding excuses neither. What was loaded may not change.
    """

    def __init__(self, decoder: Decoder, truth: Truth, inside: bool = True) -> None:
        """`inside`: compare what the cache holds, too."""
        self.decoder, self.truth = decoder, truth
        has_contents = decoder.variant.cache.keeps and not isinstance(decoder.modules, PluginTrunk)
        self.inside = inside and has_contents
        self.text = decoder.token.new_empty(decoder.batch, 0)
        self._position = self._slot = 0  # of the first logits, and of the first keys and values, to compare
        self._logits: list[Tensor] = []
        self._loaded: list[Tensor] = []
        self._parts: list[Evidence] = []

    # -- uses ---------------------------------------------------------------------------------

    def prefill(self, tokens: Tensor) -> None:
        """tokens [B,T] from an empty cache."""
        self._turn_to(tokens, position=tokens.size(1) - 1, slot=0)
        self._gave(self.decoder.prefill(tokens)[:, None])

    def load(self, text: Tensor, n: int) -> None:
        """The first n tokens of text [B,T], with the truth's keys and values; noise in all other slots."""
        kv: KV = []
        if self.decoder.variant.cache.keeps:
            kv = self.truth.kv(text[:, :n])
        self._turn_to(text[:, :n], position=n, slot=n)
        self.decoder.load(text[:, :n], kv)
        if isinstance(self.decoder.cache, Preallocated):
            self.decoder.cache.poison(n, NOISE)
        self._loaded = self._contents(0, n)

    def feed(self, tokens: Tensor) -> Tensor:
        """tokens [B,T] one by one -> the last logits [B,V]."""
        for token in tokens.split(1, dim=1):
            self.decoder.token.fill_(0)  # what a replay reads must be what is fed, not what was left there
            self.text = torch.cat([self.text, token], dim=1)
            logits = self.decoder.step(token)
            self._gave(logits[:, None])
        return logits

    def generate(self, n: int) -> None:
        """n steps that feed themselves."""
        for _ in range(n):
            self.text = torch.cat([self.text, self.decoder.token], dim=1)
            self._gave(self.decoder.advance()[:, None].clone())

    def extend(self, tokens: Tensor) -> None:
        """tokens [B,T] at once."""
        self.text = torch.cat([self.text, tokens], dim=1)
        self._gave(self.decoder.extend(tokens))

    def rewind(self, n: int) -> None:
        """Forget all but the first n tokens."""
        self._turn_to(self.text[:, :n], position=n, slot=n)
        self.decoder.rewind(n)

    def evidence(self, where: str = "", stressed: str = "") -> Evidence:
        """The errors of all uses so far, layer by layer."""
        self._turn_to(self.text, position=self.text.size(1), slot=self.text.size(1))
        parts, self._parts = self._parts, []
        return Evidence.worst(parts, where, stressed)

    # -- what came out ------------------------------------------------------------------------

    def _gave(self, logits: Tensor) -> None:
        """logits [B,T,V] of the last tokens of the text."""
        self._logits.append(logits)
        n, newest = self.text.size(1), logits[:, -1]
        chosen = newest.gather(-1, self.decoder.token)[:, 0]
        if not torch.equal(chosen, newest.amax(dim=-1)):  # equal logits may be told apart either way
            raise Mismatch(f"after {n} tokens the token that is fed back is not the argmax of the logits")
        for name, length in (("decoder", self.decoder.length), ("cache", self.decoder.cache.held())):
            if length != n:
                raise Mismatch(f"after {n} tokens the {name}'s own length is {length}")

    def _turn_to(self, text: Tensor, position: int, slot: int) -> None:
        """Compare what was given about the text so far, and go on with this one."""
        if self._logits:
            n = self.text.size(1)
            right = self.truth.answer(self.text, self._position, self._slot)
            by_layer = {LOGITS: Errors.of(torch.cat(self._logits, dim=1), right.logits)}
            ours = self._contents(self._slot, n) if n > self._slot else []
            for layer, stored in enumerate(ours):
                by_layer[layer] = Errors.of(stored, torch.stack(right.kv[layer]))
            self._parts.append(Evidence(by_layer))
        loaded = self._loaded
        if loaded and not all(map(torch.equal, self._contents(0, loaded[0].size(3)), loaded)):
            raise Mismatch("keys and values of earlier tokens have changed")
        self.text, self._position, self._slot = text, position, slot
        self._logits, self._loaded = [], []

    def _contents(self, first: int, end: int) -> list[Tensor]:
        """Per layer the keys and values [2,B,Hkv,T,D] of these slots."""
        if not self.inside:
            return []
        layers = range(self.decoder.model.config.n_layer)
        pairs = (self.decoder.cache.contents(layer, end) for layer in layers)
        return [torch.stack([k[:, :, first:], v[:, :, first:]]) for k, v in pairs]


@dataclass(frozen=True)
class Trial:
    """A decoder under test, the truth, the texts to feed, and how many steps to prove."""

    decoder: Decoder
    root: Model  # whose weights the decoder stores in its own way
    truth: Truth
    text: Tensor  # [B,capacity], random; prompt and contexts are beginnings of it
    other: Tensor  # [B,T], another random text
    steps: int  # that feed themselves
    forced: int
    timed: tuple[int, ...]  # contexts
    scenes: Callable[[], Sequence[Scene]]  # of this very model, made when they are asked for
    tie: float  # logits closer than this may swap places

    @staticmethod
    def of(
        decoder: Decoder,
        root: Model,
        truth: Truth,
        steps: int,
        forced: int,
        timed: Iterable[int],
        scenes: Callable[[], Sequence[Scene]],
        tie: float,
        seed: int,
    ) -> Trial:
        """What does not fit into the decoder is left out or made smaller."""
        vocabulary, capacity = decoder.model.config.vocab_size, decoder.capacity

        def stream(n: int, offset: int) -> Tensor:
            return random_stream(vocabulary, decoder.batch, n, seed + offset).to(decoder.token.device)

        text, other = stream(capacity, 0), stream(min(OTHER_PROMPT, capacity // 2), 1)
        other[:, 0] = (text[:, 0] + 1) % vocabulary  # another text, from the first token on
        room = capacity - min(PROMPT, capacity // 4)
        steps, forced = min(steps, room), min(forced, room)
        return Trial(decoder, root, truth, text, other, steps, forced, tuple(timed), scenes, tie)

    @property
    def cached(self) -> bool:
        return self.decoder.variant.cache.keeps

    @property
    def prompt(self) -> Tensor:
        return self.text[:, : min(PROMPT, self.text.size(1) // 4)]

    @property
    def warm(self) -> int:
        return min(WARM, self.text.size(1) // 2)

    @property
    def contexts(self) -> list[int]:
        """Contexts of proven steps: the timed ones, and both ends of every bucket.

        Steps that start FREE slots before a bucket's end fill its last slot and go on in the next one.
        Without a cache a step is a whole text and the same code at every context: the longest is the one
        that fills the capacity.
        """
        last = self.decoder.capacity - FREE - FORCED
        if not self.cached:
            return sorted(self.timed)[:-1]
        ends = (slots - FREE for slots in self.decoder.buckets)
        return sorted({max(1, min(n, last)) for n in (*self.timed, last, *ends)})

    def needs(self, what: str) -> None:
        """Raises NotAnswered where the decoder is somebody else's and lacks this."""
        if isinstance(self.decoder.modules, PluginTrunk):
            self.decoder.modules.needs(what)

    def session(self, inside: bool = True) -> Session:
        """Raises NotAnswered where the decoder gives no logits that the truth could be held against."""
        engine = process_of(self.decoder.modules)
        if engine is not None and (engine.unproven or not engine.gives_logits):
            raise NotAnswered(engine.unproven or "it gives no logits")
        return Session(self.decoder, self.truth, inside)

    def after_prompt(self, n: int) -> Tensor:
        """The n tokens int64 [B,n] of the text that follow the prompt."""
        at = self.prompt.size(1)
        return self.text[:, at : at + n]

    def elsewhere(self, n: int) -> Tensor:
        """n tokens int64 [B,n] that do not follow in the text."""
        return self.other[:, -n:]

    def fitting(self, sizes: Iterable[int]) -> list[int]:
        """The sizes, of these, that fit behind the prompt one after the other."""
        room = self.text.size(1) - self.prompt.size(1)
        chosen: list[int] = []
        for size in sizes:
            if sum(chosen) + size <= room:
                chosen.append(size)
        return chosen


class KeptSteps:
    """What a decoder gave when it was proven, to be asked for again once it was timed.

    One step at each context, entered by `load`.
    """

    def __init__(self, decoder: Decoder, contexts: Iterable[int], load: Callable[[int], None]) -> None:
        self.decoder, self.load = decoder, load
        self.logits = {context: self._step(context) for context in contexts}

    def why_not_again(self) -> str | None:
        """None where the same steps give what they gave before, else what differs."""
        unit = AGAIN_UNITS * self.decoder.variant.precision.rounding
        for context, before in self.logits.items():
            errors = Errors.of(self._step(context), before.double())
            if not errors.rms <= unit * errors.scale:
                return (
                    f"after it was timed, the step at context {context} gives other logits than when it was "
                    f"proven: they differ by {errors.rms:.2g} (rms), at a scale of {errors.scale:.2g}"
                )
        return None

    def _step(self, context: int) -> Tensor:
        """Logits [B,V], kept on the host."""
        self.load(context)
        return self.decoder.advance().cpu().clone()
