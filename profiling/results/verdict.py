"""Does per-step launch overhead set the floor? The rules, applied to the numbers of one record. Torch-free.

The rung that keeps the kernels and removes the launches decides: the CUDA graph, on a CPU the op tape. All
numbers are those of the smallest context. A run of our decoder and of others' code has a verdict on each.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from profiling.results.duel import Duel, gap_share
from profiling.results.metrics import Measured
from profiling.results.record import Trace, replaced
from profiling.results.rules import NOT_ASKED, RULES, UNDECIDED, Numbers, blocks_factor, judge
from profiling.results.stats import CONFIDENCE, Estimate, combined, estimate
from variants.ladder import OURS, THEIRS, Roles

QUESTION = "Does launch overhead set the floor?"


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
        """Share of the excess that launching explains, and where the rest is; it holds whatever the word."""
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
        ratios = [blocks_factor(self.numbers, rule) for rule in RULES if rule.word not in self.excluded]
        times = min(ratios, default=float("inf"))
        return round(self.blocks * max(1.0, times)) if times < float("inf") else None


def verdict(measured: Measured) -> Verdict:
    """The verdict of a run, on our decoder where it was asked about that."""
    return verdicts(measured)[0]


def verdicts(measured: Measured) -> list[Verdict]:
    """One for each trunk that the question was asked of; where it was asked of none, why not."""
    each = [_of_trunk(measured, trunk) for trunk in (OURS, THEIRS)]
    return [one for one in each if one.word != NOT_ASKED] or each[:1]


def _of_trunk(measured: Measured, trunk: Roles) -> Verdict:
    variants = measured.record.variants
    status = {name: variants[name].status for name in trunk.replays if name in variants}
    replay = next((name for name in status if status[name] == "proven"), None)
    parent = variants[replay].parent if replay else None
    if replay is None or parent not in variants:
        word = UNDECIDED if "failed" in status.values() else NOT_ASKED
        return Verdict(word, "no rung that replays the step without launches was measured")
    trace, duel = variants[parent].trace, measured.duel
    if duel is not None and not duel.count(parent, parent):  # it was about another trunk
        duel = None
    beside = [one.trace for one in duel.traces(parent)] if duel else []
    traces = [*([trace] if trace else []), *beside]
    problems = [problem for one in traces for problem in one.problems]
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


def _numbers(measured: Measured, replay: str, parent: str, duel: Duel | None) -> Numbers | None:
    """All are measured as shares of the parent's step, which a slow minute stretches as a whole."""
    context = measured.contexts[0]
    quantiles = measured.step_quantiles(parent, context)
    steps, reads = measured.steps(parent, context), measured.memory_floor(parent, context)
    excess = measured.share(steps - reads, steps)
    if duel is not None:
        drop, gap = duel.drop_share(parent, replay), estimate(duel.gap_shares(parent))
        aa = duel.drop_share(parent, parent)
        excess = duel.excess_share(parent) or excess  # older records read in the rounds alone
        python = estimate(duel.python_shares(parent))
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
    """Time per step in which ops computed, ms, without the profiler's own share.

    The profiler costs about the same for every event, so of what it adds to a step the computing ops on a
    CPU carry their share of the events; device events of a GPU are timed by the device and carry none.
    """
    added_ms = max(0.0, trace.mean_profiled_ms - plain_ms)
    return trace.busy_us / 1e3 - added_ms * trace.busy_share_of_events
