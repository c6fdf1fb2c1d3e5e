"""What does a pass over several tokens cost, and how often must a draft be right for it to pay? Torch-free.

A pass over n tokens scores the token that is fed back and a draft of n - 1. Were each token of a draft right
with probability a, independently, it would write (1 - a^n) / (1 - a) tokens on average (Leviathan, Kalman,
Matias, "Fast Inference from Transformers via Speculative Decoding", ICML 2023, equation 1, gamma = n - 1).
Plain decoding writes one per step: a pass pays where that is more than its price, its time over a step's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from profiling.results.record import PassSample, SpeculateRecord, WrittenSample
from profiling.results.stats import Interval, ratio_interval


def expected_tokens(acceptance: float, tokens: int) -> float:
    """Tokens that a pass over so many writes on average: 1 + a + ... + a^(tokens - 1)."""
    return sum(acceptance**i for i in range(tokens))


def break_even(price: float, tokens: int) -> float | None:
    """The acceptance at which a pass over so many tokens writes as many as the steps it costs.

    0 where it costs no more than a step; None where even a draft that is always right does not pay.
    """
    from scipy.optimize import brentq  # half a second to import

    if price <= 1:
        return 0.0
    if price > tokens:
        return None
    return float(brentq(lambda a: expected_tokens(a, tokens) - price, 0.0, 1.0))


@dataclass(frozen=True)
class Written:
    """A text that was written plainly and with drafts, in the same rounds.

    `proposed`, `kept`: tokens of drafts, and those of them that greedy decoding wrote too; `same`: of the
    `new` tokens those before the first that differs.
    """

    new: int
    passes: int
    proposed: int
    kept: int
    same: int
    plain_per_s: float
    drafted_per_s: float
    speedup: Interval | None


@dataclass(frozen=True)
class Speculation:
    """The numbers of one record."""

    record: SpeculateRecord

    @property
    def sizes(self) -> list[int]:
        """Tokens of the passes that were timed, ascending, from one on."""
        return sorted({one.tokens for one in self.record.passes})

    @property
    def variants(self) -> list[str]:
        """Those with times, in ladder order."""
        timed = {one.variant for one in self.record.passes}
        entries = self.record.variants.items()
        return [name for name, entry in entries if name in timed and entry.status == "proven"]

    def pass_ms(self, variant: str, tokens: int) -> float:
        """Median over rounds of a pass over so many tokens, ms; over one it is the step."""
        return median(self._rounds(variant, tokens).values())

    def price(self, variant: str, tokens: int) -> Interval | None:
        """A pass over so many tokens over a step, within the rounds; None for fewer than two."""
        passes, steps = self._rounds(variant, tokens), self._rounds(variant, 1)
        both = sorted(passes.keys() & steps.keys())
        if len(both) < 2:
            return None
        return ratio_interval([passes[n] for n in both], [steps[n] for n in both])

    def acceptance_needed(self, variant: str, tokens: int) -> float | None:
        """Break-even acceptance of a draft of tokens - 1, from the medians."""
        return break_even(self.pass_ms(variant, tokens) / self.pass_ms(variant, 1), tokens)

    def written(self, variant: str) -> Written | None:
        """What drafts brought in this variant; None where nothing was written."""
        plain, drafted = (self._texts(variant, way) for way in (False, True))
        both = sorted(plain.keys() & drafted.keys())
        if not both:
            return None
        plain_ms, drafted_ms = ([sum(texts[n].passes_ms) for n in both] for texts in (plain, drafted))
        right, one = plain[both[0]].tokens, drafted[both[0]]
        differ = (i for i, (a, b) in enumerate(zip(right, one.tokens, strict=True)) if a != b)
        new = len(right) - 1  # the first is the prefill's, which is not timed here
        return Written(
            new=new,
            passes=len(one.passes_ms),
            proposed=sum(one.proposed),
            kept=new - len(one.passes_ms),
            same=next(differ, len(right)) - 1,
            plain_per_s=1e3 * new / median(plain_ms),
            drafted_per_s=1e3 * new / median(drafted_ms),
            speedup=ratio_interval(plain_ms, drafted_ms) if len(both) > 1 else None,
        )

    def _rounds(self, variant: str, tokens: int) -> dict[int, float]:
        """By round the median of its passes, ms."""
        chosen: Sequence[PassSample] = self.record.passes
        return {one.round: median(one.ms) for one in chosen if (one.variant, one.tokens) == (variant, tokens)}

    def _texts(self, variant: str, drafted: bool) -> dict[int, WrittenSample]:
        return {
            one.round: one for one in self.record.written if (one.variant, one.drafted) == (variant, drafted)
        }
