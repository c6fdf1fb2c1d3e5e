"""Single steps in alternation: what decides is timed side by side, not minutes apart.

Every turn plays one block of each deciding contrast (replay against parent, parent against a plain read of
what it must read) and of the A/A pair, in each trunk that has a replay, and every few turns one of all other
rungs against their parents; a step whose gap decides is traced beside plain steps, spread over the duel.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from torch.profiler import profile

from profiling.measure.cases import Case
from profiling.measure.clock import Clock, activities
from profiling.measure.tracing import traced
from profiling.results.duel import MIN_TRACES, TRACE_EVERY, next_look, read_of
from profiling.results.record import DuelBlock, DuelSteps, DuelTrace, Peaks, replaced
from variants.ladder import OURS, THEIRS

OTHERS_EVERY = 4  # turns
PLAIN_STEPS = 6  # around a trace, half before and half after it
COST_STEPS = 12  # with the profiler, and on either side of it without

Pair = tuple[str, str]
Timed = Callable[[], float]  # one step at the duel's context, or one plain read: ms


@dataclass(frozen=True)
class Plan:
    """Contrasts by the names of two contestants; `traced` are those whose gaps decide."""

    deciding: Sequence[Pair]
    others: Sequence[Pair]
    traced: Sequence[str] = ()


def contrasts(parents: Mapping[str, str | None]) -> Plan | None:
    """The contrasts of these contestants, each with its parent; None where there is nothing to compare.

    The baselines of two trunks have no parents here, and are compared with each other.

    In each trunk the replay against its parent decides, with the parent against the plain read, and the
    parent against itself is the A/A pair. Without a replay the A/A pair is the baseline's, and nothing is
    read or traced.
    """
    pairs = [(parent, name) for name, parent in parents.items() if parent is not None and parent in parents]
    roots = [(OURS.baseline, THEIRS.baseline)] if {OURS.baseline, THEIRS.baseline} <= parents.keys() else []
    pairs = [*roots, *pairs]
    if not pairs:
        return None
    of_trunks = [
        next((n for n in trunk.replays if parents.get(n) in parents), None) for trunk in (OURS, THEIRS)
    ]
    replays = {str(parents[replay]): replay for replay in of_trunks if replay}
    decides = [
        pair
        for first, replay in replays.items()
        for pair in ((first, replay), (first, read_of(first)), (first, first))
    ]
    ends = [(pairs[0][0], pairs[-1][1])]  # the whole ladder: its first rung against its last
    others = [pair for pair in dict.fromkeys([*pairs, *ends]) if pair not in decides]
    return Plan(decides or [(pairs[0][0], pairs[0][0])], others, tuple(replays))


class _Crash(Exception):
    """A contestant that failed in its step."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


def stepping(case: Case, context: int, clock: Clock) -> Timed:
    """A contestant: the case, loaded now, and put back to its context before each step."""
    case.load(context)
    decoder = case.decoder

    def step_ms() -> float:
        case.put_back(context)
        (ms,) = clock.each_ms(decoder.advance, 1)
        decoder.verify()
        return ms

    return step_ms


class Ring:
    """The contestants of a duel by name: times blocks of two, and loses who crashes."""

    def __init__(
        self, contestants: Mapping[str, Timed], entropy: int, failed: Callable[[str, Exception], None]
    ) -> None:
        """`failed` is told of a contestant that crashes; it leaves, and the others go on."""
        self.contestants, self.entropy, self.failed = dict(contestants), entropy, failed

    def step_ms(self, name: str) -> float:
        try:
            return self.contestants[name]()
        except Exception as error:
            raise _Crash(name, error) from error

    def block(self, pair: Pair, number: int) -> DuelBlock:
        """The `number`-th block of a pair, its order drawn."""
        first, second = pair
        mirrored = random.Random(f"{self.entropy} {first} {second} {number}").random() < 0.5
        outer, inner = (second, first) if mirrored else (first, second)
        self.step_ms(outer)
        a, b, c, d = (self.step_ms(name) for name in (outer, inner, inner, outer))
        return DuelBlock(first, second, mirrored, (a, b, c, d))

    def turn(self, plan: Plan, number: int) -> list[DuelBlock]:
        """One block of each contrast that is due, in shuffled order."""
        due = [*plan.deciding, *(plan.others if number % OTHERS_EVERY == 0 else ())]
        order = random.Random(f"{self.entropy} {number}").sample(due, len(due))
        blocks = []
        for pair in order:
            if not self.contestants.keys() >= set(pair):
                continue
            try:
                blocks.append(self.block(pair, number))
            except _Crash as crash:
                del self.contestants[crash.name]
                self.failed(crash.name, crash.error)
        return blocks


def traced_beside(
    case: Case, narrow: Case, context: int, clock: Clock, path: Path, peaks: Peaks
) -> DuelTrace:
    """A trace between plain steps, and what the profiler adds to an event: seen on the narrow model of as
    many ops, whose step is short enough for it, and at the same time, since it changes with the machine.
    """

    def plain() -> list[float]:
        step_ms = stepping(case, context, clock)
        return [step_ms() for _ in range(PLAIN_STEPS // 2 + 1)][1:]  # the first one after a load is slow

    before, trace, after = plain(), traced(case, path, peaks), plain()
    cost_ms, events = profiler_cost_ms(narrow, context, clock), trace.counts.host_ops
    event_us = 1e3 * cost_ms / events if events else None
    return DuelTrace(median([*before, *after]), event_us, trace, case.name)


def profiler_cost_ms(case: Case, context: int, clock: Clock) -> float:
    """Time that the profiler adds to one step of this case: its fastest step with it less its fastest
    without, since whatever disturbs a step only adds to it.
    """
    step_ms = stepping(case, context, clock)

    def fastest() -> float:
        return min(step_ms() for _ in range(COST_STEPS))

    before = fastest()
    with profile(activities=activities(case.decoder.model.device)):
        profiled = fastest()
    return max(0.0, profiled - min(before, fastest()))


def fight(
    ring: Ring,
    plan: Plan,
    steps: DuelSteps,
    max_seconds: float,
    trace: Callable[[str], DuelTrace] | None,
    keep: Callable[[DuelSteps], None],
    decided: Callable[[], bool],
    progress: Callable[[int, int], None],
) -> None:
    """Add turns to `steps` until a look decides or the time is spent, which is a look too.

    `keep` is handed the steps after every turn. No look is judged on fewer than `MIN_TRACES` traces of each
    rung that is traced.
    """
    end = time.monotonic() + max_seconds
    turns = steps.turns
    traced = [] if trace is None else plan.traced

    def add_traces() -> None:
        for name in traced:
            if trace is not None and name in ring.contestants:
                steps.traces.append(trace(name))

    while True:
        look = next_look(steps.looks)
        while turns < look and time.monotonic() < end:
            if turns % TRACE_EVERY == 0:
                progress(turns, look)
                add_traces()
            steps.blocks.extend(ring.turn(plan, turns))
            turns += 1
            keep(replaced(steps, turns=turns))
        for _ in range(MIN_TRACES - len(steps.traces) // max(1, len(traced))):
            add_traces()
        if turns not in (0, *steps.looks):
            steps.looks.append(turns)
        if decided() or time.monotonic() >= end:
            return
