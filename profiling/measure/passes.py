"""What is visited where several tokens are taken at once: passes of several sizes, and whole texts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiling.measure.visits import CaseVisit
from profiling.results.record import PassSample, WrittenSample
from variants.drafting import PromptLookup, write


@dataclass(frozen=True)
class Passes(CaseVisit):
    """Passes over each of `sizes` tokens of the case's text behind a context, in shuffled order.

    Each scores every token and takes the argmaxes, as a draft is judged; a pass over one token is a step.
    """

    entropy: int
    context: int
    sizes: Sequence[int]
    into: list[PassSample]

    def __call__(self, number: int) -> None:
        case, decoder = self.case, self.case.decoder
        case.load(self.context)
        for size in random.Random(f"{self.entropy} {number} {case.name}").sample(self.sizes, len(self.sizes)):
            ms = []
            for _ in range(case.warm_up + case.steps):
                ms += self.clock.each_ms(self._pass(size), 1)
                case.put_back(self.context)
            self.into.append(
                PassSample(
                    round=number,
                    variant=case.name,
                    context=self.context,
                    tokens=size,
                    ms=ms[case.warm_up :],
                )
            )
        decoder.verify()

    def _pass(self, size: int) -> Callable[[], object]:
        decoder, end = self.case.decoder, self.context + size
        tokens = self.case.inputs.tokens[:, self.context : end]
        return decoder.advance if size == 1 else lambda: decoder.extend(tokens).argmax(dim=-1)


@dataclass(frozen=True)
class Writing(CaseVisit):
    """`new` tokens behind a prompt by greedy decoding: with drafts and without, in drawn order."""

    entropy: int
    prompt: Sequence[int]
    new: int
    drafts: PromptLookup
    into: list[WrittenSample]

    def __call__(self, number: int) -> None:
        for drafted in random.Random(f"{self.entropy} {number} {self.case.name}").sample((False, True), 2):
            self.into.append(self._text(number, drafted))

    def _text(self, number: int, drafted: bool) -> WrittenSample:
        decoder, text = self.case.decoder, list(self.prompt)
        decoder.prefill(decoder.token.new_tensor([text]))
        text.append(int(decoder.token))
        end, passes_ms, proposed = len(self.prompt) + self.new, list[float](), list[int]()

        def one() -> None:
            draft = self.drafts(text)[: end - len(text) - 1] if drafted else []
            text.extend(write(decoder, draft))
            proposed.append(len(draft))

        while len(text) < end:
            passes_ms += self.clock.each_ms(one, 1)
        return WrittenSample(
            round=number,
            variant=self.case.name,
            drafted=drafted,
            passes_ms=passes_ms,
            proposed=proposed,
            tokens=text[len(self.prompt) :],
        )
