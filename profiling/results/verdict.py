"""Does per-step launch overhead set the floor? The rules, applied to the numbers of one record. Torch-free.

The rung that keeps the kernels and removes the launches decides: the CUDA graph, on a CPU the op tape. The
drop is what it takes off its parent's step; the gap g is the time in the parent's step in which no op was
busy, the most that removing launches could close; the excess is what the step takes beyond its memory floor.
All at the smallest context. `CONTRASTS` and `RULES` are the whole rule book: code, report and docs read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from profiling.results.duel import READ, Duel, gap_share
from profiling.results.metrics import REPLAYS, Measured
from profiling.results.record import Trace, replaced
from profiling.results.stats import CONFIDENCE, Estimate, Interval, combined, estimate

QUESTION = "Does launch overhead set the floor?"
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
        """What `--json` prints of them, ms."""
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
        """What the step consists of, ms: the first three sum to it, the fourth is a part of the third."""
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


@dataclass(frozen=True)
class Verdict:
    """`word` and the rule that gave it; `numbers` is None where something was missing."""

    word: str
    rule: str
    replay: str | None = None
    parent: str | None = None
    numbers: Numbers | None = None
    blocks: int = 0
    excluded: tuple[str, ...] = field(default=())

    @property
    def decided(self) -> bool:
        return self.word not in (UNDECIDED, NOT_ASKED)

    @property
    def headline(self) -> str:
        """The word, and where none is reached what is excluded all the same."""
        bounds = self.bounds
        if self.word == UNDECIDED and bounds and "CONFIRMED" in self.excluded:
            return f"{self.word}, but not the cause: at most {bounds['launching'][1]:.0%}"
        return self.word

    @property
    def bounds(self) -> dict[str, tuple[float, float]] | None:
        """Shares of the excess, [low, high]; `python` is part of `launching`. None where they are unknown."""
        launching = self.numbers.launching if self.numbers else None
        if launching is None:
            return None
        low, high = launching
        python = self.numbers.python_share if self.numbers else None
        bounds = {"launching": (low, high), "slow ops": (1 - high, 1 - low)}
        return bounds if python is None else {**bounds, "python": python}

    @property
    def sentence(self) -> str:
        """What can be said whatever the word: the share that launching explains, and where the rest is."""
        n, bounds = self.numbers, self.bounds
        if n is None:
            return f"{self.rule[:1].upper()}{self.rule[1:]}."
        if bounds is None:
            return f"A step of `{self.parent}` is not measurably above its memory floor: nothing to explain."
        low, high = bounds["launching"]
        share = f"{low:.0%} to {high:.0%}" if low > 0 else f"at most {high:.0%}"
        if "python" in bounds:
            share += f" (Python between the operations at most {bounds['python'][1]:.0%})"
        floor = n.step - n.excess.mid
        where = "inside its operations"
        if floor > 0:
            slower = max(1.0, (n.step - n.gap.mid) / floor)
            where += f", which take {slower:.2g} times as long as a plain read of what they must read"
        return (
            f"Of the {n.excess.mid:.3g} ms by which a step of `{self.parent}` ({n.step:.3g} ms) exceeds its "
            f"memory floor, launching explains {share}; the rest is {where}."
        )

    @property
    def blocks_needed(self) -> int | None:
        """How many blocks in all would decide, were all errors to shrink as theirs do; None where decided."""
        if self.decided or self.numbers is None or not self.blocks:
            return None
        ratios = [_needed(self.numbers, rule) for rule in RULES if rule.word not in self.excluded]
        times = min(ratios, default=float("inf"))
        return round(self.blocks * max(1.0, times)) if times < float("inf") else None


def _needed(n: Numbers, rule: Rule) -> float:
    """Times as many blocks until this rule holds, if what is estimated is the truth; infinite if never."""
    times = {
        name: ((b.high - b.mid) / abs(b.mid)) ** 2 if b.mid else float("inf") for name, b in n.bounds.items()
    }
    above = [times[name] if n.bounds[name].mid > 0 else float("inf") for name in rule.above]
    below = [times[name] if n.bounds[name].mid < 0 else float("inf") for name in rule.below]
    return max([*above, *([min(below)] if below else [])])


def verdict(measured: Measured) -> Verdict:
    """The verdict of a run."""
    variants = measured.record.variants
    status = {name: variants[name].status for name in REPLAYS if name in variants}
    replay = next((name for name in status if status[name] == "proven"), None)
    parent = variants[replay].parent if replay else None
    if replay is None or parent not in variants:
        word = UNDECIDED if "failed" in status.values() else NOT_ASKED
        return Verdict(word, "no rung that replays the step without launches was measured")
    trace, duel = variants[parent].trace, measured.duel
    traces = [*([trace] if trace else []), *(duel.traces if duel else ())]
    problems = [problem for found in traces for problem in found.problems]
    if problems:
        return Verdict(UNDECIDED, f"unreliable trace: {problems[0]}", replay, parent)
    if not traces:
        return Verdict(UNDECIDED, f"{parent} was not traced, so its gap is unknown", replay, parent)
    numbers = _numbers(measured, replay, parent, duel)
    blocks = duel.count(parent, replay) if duel else 0
    if numbers is None:
        return Verdict(UNDECIDED, "too few blocks or rounds for intervals", replay, parent, blocks=blocks)
    word, rule, excluded = judge(numbers)
    return Verdict(word, rule, replay, parent, numbers, blocks, excluded)


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


def _numbers(measured: Measured, replay: str, parent: str, duel: Duel | None) -> Numbers | None:
    """All are measured as shares of the parent's step, which a slow minute stretches as a whole."""
    context = measured.contexts[0]
    quantiles = measured.step_quantiles(parent, context)
    steps, reads = measured.steps(parent, context), measured.memory_floor(parent, context)
    excess = measured.share(steps - reads, steps)
    if duel is not None:
        drop, gap = duel.drop_share(parent, replay), estimate(duel.gap_shares)
        aa = duel.drop_share(parent, parent)
        excess = duel.drop_share(parent, READ) or excess  # older records read in the rounds alone
        python = estimate(duel.python_shares)
    else:
        python = None
        drop = measured.share(steps - measured.steps(replay, context), steps)
        gap = _gap_of_one_trace(measured, parent)
        again = measured.steps(measured.again, context)
        aa = measured.share(again - measured.steps(measured.record.baseline, context), again)
    if quantiles is None or drop is None or gap is None or excess is None or aa is None:
        return None
    step, confidence = quantiles.median, duel.confidence if duel else CONFIDENCE
    drop, gap, excess, aa = (combined((step, share)) for share in (drop, gap, excess, aa))
    python = combined((step, python)) if python else None
    return Numbers(drop, gap, excess, aa, step, confidence, python)


def _gap_of_one_trace(measured: Measured, parent: str) -> Estimate | None:
    """Records without a duel have one trace: its steps stand for traces."""
    trace = measured.record.variants[parent].trace
    plain = measured.step_quantiles(parent, trace.context) if trace else None
    if trace is None or plain is None:
        return None
    each = [replaced(trace, steps_parts_us=[parts]) for parts in trace.steps_parts_us]
    return estimate([gap_share(one, plain.median, None) for one in each])


def busy_ms(trace: Trace, plain_ms: float) -> float:
    """Time in which ops computed, per step, without the profiler's own share.

    The profiler costs about the same for every event, so of what it adds to a step the computing ops on a
    CPU carry their share of the events; device events of a GPU are timed by the device and carry none.
    """
    added_ms = max(0.0, trace.mean_profiled_ms - plain_ms)
    return trace.busy_us / 1e3 - added_ms * trace.busy_share_of_events
