"""What is fed to a decoder under test, and the truth about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from profiling.gate.oracle import Truth, random_stream
from profiling.gate.session import Session
from profiling.gate.stress import Scene
from variants.decoder import Decoder
from variants.model import Model

PROMPT = 10
# The second prompt is longer than a bucket of 128 and than the prompt whose prefill is timed. It is also
# where tokens that do not continue the text are taken from.
OTHER_PROMPT = 140
WARM = 130  # tokens held when a chunk follows and most of them are forgotten again
FREE = FORCED = 3  # steps at every context: the first enters it, the next read what the first left there
# Kernels that take keys in chunks of 256 have a partly full one behind a full one there. Both cross or follow
# it, and neither is near a bucket's end.
BEHIND_A_CHUNK = (253, 300)


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
    scenes: Sequence[Scene]  # of this very model
    tie: float  # logits closer than this may swap places

    @staticmethod
    def of(
        decoder: Decoder,
        root: Model,
        truth: Truth,
        steps: int,
        forced: int,
        timed: Iterable[int],
        scenes: Sequence[Scene],
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
        """Contexts of proven steps: the timed ones, both ends of every bucket, and behind a full chunk.

        Steps that start FREE slots before a bucket's end fill its last slot and go on in the next one.
        Without a cache a step is a whole text and the same code at every context: the longest is the one
        that fills the capacity.
        """
        last = self.decoder.capacity - FREE - FORCED
        if not self.cached:
            return sorted(self.timed)[:-1]
        ends = (slots - FREE for slots in self.decoder.buckets)
        entered = {*self.timed, last, *ends, *(n for n in BEHIND_A_CHUNK if n < last)}
        return sorted({max(1, min(n, last)) for n in entered})

    def session(self, inside: bool = True) -> Session:
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
