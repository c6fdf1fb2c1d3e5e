"""The rule book of the verdict as data: contrasts of drop, gap and excess, and the words that they give.

The drop is what a replay takes off its parent's step; the gap g is the time in the parent's step in which no
op was busy, the most that removing launches could close; the excess is what the step takes beyond its memory
floor. Code, report and docs read `CONTRASTS` and `RULES`. Torch-free.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from profiling.results.stats import CONFIDENCE, Estimate, Interval, combined

UNDECIDED, NOT_ASKED = "INCONCLUSIVE", "Not asked"
UNSTEADY = "the step differs from itself: the machine was not steady"


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of drop, gap and excess: what it is above or below zero decides."""

    name: str
    text: str
    drop: float
    gap: float
    excess: float


CONTRASTS = (
    Contrast("C1", "drop - g/2", 1, -1 / 2, 0),
    Contrast("C2", "g - excess/2", 0, 1, -1 / 2),
    Contrast("C3", "drop - g/10", 1, -1 / 10, 0),
    Contrast("C4", "g - excess/10", 0, 1, -1 / 10),
)


@dataclass(frozen=True)
class Rule:
    """The word holds where all of `above` lie above zero and, if any are named, one of `below` below it."""

    word: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    meaning: str

    @property
    def text(self) -> str:
        """'C1 > 0 and C2 > 0', as report and docs print it."""
        parts = [f"{name} > 0" for name in self.above]
        below = " or ".join(f"{name} < 0" for name in self.below)
        if below:
            parts.insert(0, f"({below})" if parts else below)
        return " and ".join(parts)

    def holds(self, bounds: dict[str, Interval]) -> bool:
        below = not self.below or any(bounds[name].high < 0 for name in self.below)
        return below and all(bounds[name].low > 0 for name in self.above)

    def excluded(self, bounds: dict[str, Interval]) -> bool:
        """Whether the word cannot hold, however long is measured."""
        never_below = bool(self.below) and all(bounds[name].low > 0 for name in self.below)
        return never_below or any(bounds[name].high < 0 for name in self.above)


RULES = (
    Rule("CONFIRMED", ("C1", "C2"), (), "most of what can be saved in a step is the launching of its ops"),
    Rule("REFUTED", (), ("C3", "C4"), "launching small operations is not what makes a step slow here"),
    Rule(
        "PARTLY",
        ("C3", "C4"),
        ("C1", "C2"),
        "launching costs a real share, but not most of what can be saved",
    ),
)


@dataclass(frozen=True)
class Numbers:
    """What decides, ms; `aa` is the step of the parent less itself, `python` what of the gap is Python."""

    drop: Estimate
    gap: Estimate
    excess: Estimate
    aa: Estimate
    step: float
    confidence: float = CONFIDENCE
    python: Estimate | None = None

    def interval(self, of: Estimate) -> Interval:
        return of.interval(self.confidence)

    @property
    def noise(self) -> float:
        """How far the step may stray from itself, ms."""
        low, _, high = self.interval(self.aa)
        return max(abs(low), abs(high))

    def as_intervals(self) -> dict[str, Interval | float]:
        """Intervals of drop, gap and excess, and the noise, by name, ms, as `--json` prints them."""
        parts = {"drop": self.drop, "gap": self.gap, "excess": self.excess}
        return {**{name: self.interval(part) for name, part in parts.items()}, "noise": self.noise}

    @cached_property
    def bounds(self) -> dict[str, Interval]:
        """Per contrast; each end is a one-sided bound at half the error, since two contrasts can refute."""
        return {c.name: self.interval(self.contrast(c)) for c in CONTRASTS}

    def contrast(self, c: Contrast) -> Estimate:
        terms = ((c.drop, self.drop), (c.gap, self.gap), (c.excess, self.excess))
        return combined(*(term for term in terms if term[0]))

    @property
    def launching(self) -> tuple[float, float] | None:
        """Share of the excess that launching explains: at least the drop, and at most the gap, which bounds
        what removing launches can close; a drop that is provably larger bounds it itself.

        None where the excess may be nothing.
        """
        if self.interval(self.excess).low <= 0:
            return None
        drop, gap = (self.interval(self._of_excess(part)) for part in (self.drop, self.gap))
        low = max(0.0, drop.low)
        high = max(low, gap.high if drop.low <= gap.high else drop.high)
        return min(low, 1.0), min(high, 1.0)

    @property
    def python_share(self) -> tuple[float, float] | None:
        """Share of the excess that Python between the ops takes, a part of the gap; None where unknown."""
        if self.python is None or self.launching is None:
            return None
        low, _, high = self.interval(self._of_excess(self.python))
        return min(max(0.0, low), 1.0), min(max(0.0, high), 1.0)

    @property
    def parts(self) -> dict[str, Interval]:
        """Parts of the step by name, ms: the first three sum to it, the fourth is a part of the third."""
        slow, floor = combined((1, self.excess), (-1, self.gap)), self.interval(self.excess)
        divided = {
            "memory floor": Interval(self.step - floor.high, self.step - floor.mid, self.step - floor.low),
            "slow ops": self.interval(slow),
            "launching": self.interval(self.gap),
        }
        return divided if self.python is None else {**divided, "of it Python": self.interval(self.python)}

    def _of_excess(self, part: Estimate) -> Estimate:
        share = part.mid / self.excess.mid
        error = combined((1 / self.excess.mid, part), (-share / self.excess.mid, self.excess))
        return Estimate(share, error.error, error.freedom)


def blocks_factor(n: Numbers, rule: Rule) -> float:
    """Times as many blocks until this rule holds, if what is estimated is the truth; infinite if never."""
    times = {
        name: ((b.high - b.mid) / abs(b.mid)) ** 2 if b.mid else float("inf") for name, b in n.bounds.items()
    }
    above = [times[name] if n.bounds[name].mid > 0 else float("inf") for name in rule.above]
    below = [times[name] if n.bounds[name].mid < 0 else float("inf") for name in rule.below]
    return max([*above, *([min(below)] if below else [])])


def judge(numbers: Numbers) -> tuple[str, str, tuple[str, ...]]:
    """The word, the rule, and the words that are excluded, from the numbers alone."""
    if not numbers.interval(numbers.aa).contains(0.0):
        return UNDECIDED, UNSTEADY, ()
    if numbers.interval(numbers.excess).low <= 0:
        return UNDECIDED, "the step is not measurably above the memory floor: no excess to explain", ()
    excluded = tuple(rule.word for rule in RULES if rule.excluded(numbers.bounds))
    for rule in RULES:
        if rule.holds(numbers.bounds):
            return rule.word, rule.text, excluded
    left = " or ".join(rule.word for rule in RULES if rule.word not in excluded)
    return UNDECIDED, f"the bounds leave open {left or 'nothing'}", excluded
