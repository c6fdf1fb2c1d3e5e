"""What each rung costs, what it changed, and whether it should have."""

from __future__ import annotations

from profiling.results.effects import effects as measured_effects
from profiling.results.effects import expectations as measured_expectations
from profiling.results.effects import unstable
from profiling.results.peaks import rates
from profiling.results.record.page import Block, Figure, Section, Sentence, Table
from profiling.results.record.pictures import Bar, Bars, Curves
from profiling.results.rung import Rung
from reports.numbers import UNKNOWN, code, interval, number, percent
from reports.sections.cost import GATES
from reports.study import Study

UNSTABLE_MARK = " †"


def ladder(study: Study) -> Section | None:
    rows = study.measured.ladder()
    if not rows:
        return None
    contexts = study.measured.contexts
    steps = Table(
        ["variant", "slot changed", "gate", *(f"context {n}" for n in contexts)],
        [[code(r.variant), change(study, r.variant), GATES[r.gate], *_steps(study, r)] for r in rows],
        text_columns=3,
    )
    blocks: list[Block] = [
        Sentence(
            "Step in ms, one device sync per step: **median / p95 / p99** of single steps, by tokens in the "
            "cache."
        ),
        steps,
    ]
    if any(unstable(study.measured, name, n) for name in study.timed for n in contexts):
        blocks.append(Sentence("† unstable: the interquartile range is more than 10 % of the median."))
    timed = [rung for rung in rows if rung.measured]
    if timed:
        blocks += [_figure(study, timed), *_ratios(study, timed), *_rates(study, timed)]
    return Section("The ladder", blocks)


def change(study: Study, name: str) -> str:
    """'cache: concat → static', computed from the two variants; with the slots a backend fills itself."""
    entry = study.variants[name]
    slots = f" (brings its own {', '.join(entry.owns)})" if entry.owns else ""
    slots += f" ({entry.implementation})" if entry.implementation else ""
    if entry.difference is None or entry.parent is None:
        return f"{'an engine of others' if entry.elsewhere else 'the root'}{slots}"
    slot, before, after = entry.difference
    return f"{slot}: {before} → {after} (from {code(entry.parent)}){slots}"


def _steps(study: Study, rung: Rung) -> list[str]:
    cells = []
    for context, step in rung.steps.items():
        if step is None:
            cells.append("")
            continue
        mark = UNSTABLE_MARK if unstable(study.measured, rung.variant, context) else ""
        cells.append(" / ".join(map(number, (step.median, step.p95, step.p99))) + mark)
    return cells


def _figure(study: Study, rungs: list[Rung]) -> Figure:
    bars = [
        (
            r.variant,
            step.median,
            r.memory_floor_ms,
            r.ratio_to_memory_floor.mid if r.ratio_to_memory_floor else None,
        )
        for r in rungs
        if (step := r.steps[study.short])
    ]
    slowest = max(bars, key=lambda bar: bar[1])
    quickest = min(bars, key=lambda bar: bar[1])
    alt = (
        f"Bars of the median step at context {study.short} for {len(bars)} variants, from {slowest[0]} with "
        f"{number(slowest[1])} ms down to {quickest[0]} with {number(quickest[1])} ms, each with a mark at "
        f"the memory floor of its own bytes, {number(quickest[2])} ms for {quickest[0]}."
    )
    caption = f"Median step at context {study.short} against the memory floor of the same bytes."
    rows_drawn = [_bar(*bar) for bar in bars]
    return Figure("ladder", caption, [Bars(f"median step at context {study.short}, ms", rows_drawn)], alt)


def _bar(name: str, step: float, floor: float | None, ratio: float | None) -> Bar:
    """A step in ms, up to the memory floor and above it."""
    reached = min(step, floor or 0.0)
    text = f"{number(step)} ms" + ("" if ratio is None else f"  ({number(ratio)} x floor)")
    return Bar(name, {"up to the memory floor": reached, "above it": step - reached}, text, floor)


def _ratios(study: Study, rungs: list[Rung]) -> list[Table | Sentence]:
    context = study.short
    pipelined = {r.variant: study.measured.pipelined(r.variant, context) for r in rungs}
    named = any(value is not None for value in pipelined.values())
    heads = [
        "variant",
        "TTFT, ms",
        "memory floor, ms",
        "step / memory floor",
        "step / parent",
        f"step / {code(study.record.baseline)}",
    ]
    table = [
        [
            code(r.variant),
            number(r.ttft_ms),
            number(r.memory_floor_ms),
            interval(r.ratio_to_memory_floor),
            interval(r.ratio_to_parent) if r.parent else "",
            interval(r.ratio_to_baseline),
            *([number(pipelined[r.variant])] if named else []),
        ]
        for r in rungs
    ]
    workload = study.record.workload
    prompt = workload.prompt if workload else UNKNOWN
    how = (
        "The last column is the step pipelined, with one sync at the end of a visit; all others are latency."
        if named
        else "All steps are latency, one sync each: on a CPU a step is done when its call returns, so "
        "there is no pipelined time beside it."
    )
    note = (
        f"At context {context}; ratios are trimmed means over rounds with their 95 % interval. TTFT: "
        f"prefill of "
        f"{prompt} tokens with the first token. {how}"
    )
    return [Sentence(note), Table([*heads, *(["pipelined, ms"] if named else [])], table)]


def _rates(study: Study, rungs: list[Rung]) -> list[Table | Sentence]:
    figures = {r.variant: rates(study.measured, r.variant, study.short) for r in rungs}
    known = any(row.joules_per_token for row in figures.values())
    energy = (
        "Energy is that of the processor's packages and their memory, what they take idle included."
        if known
        else "The energy of a token is unknown: this machine does not tell (on Linux the counters of RAPL, "
        "`/sys/class/powercap`, where they may be read)."
    )
    cells = [
        [
            code(name),
            number(row.tokens_per_s),
            number(row.gb_per_s),
            *([interval(row.joules_per_token)] if known else []),
        ]
        for name, row in figures.items()
    ]
    note = "The same steps as rates: tokens, and bytes that a step must read, over its median time."
    heads = ["variant", "tokens/s", "GB/s", *(["J per token"] if known else [])]
    return [Sentence(f"{note} {energy}"), Table(heads, cells)]


def effects(study: Study) -> Section | None:
    rungs = measured_effects(study.measured)
    if not rungs:
        return None
    rows = [
        [
            code(e.variant),
            e.removes,
            e.claim,
            interval(e.removed),
            number(e.noise),
            percent(e.share) if e.share is not None else "",
            interval(e.left),
        ]
        for e in rungs
    ]
    heads = [
        "rung",
        "should remove",
        "found",
        "removed, ms",
        "noise, ms",
        "share of excess",
        "excess left, ms",
    ]
    return Section(
        "What each rung removed",
        [
            Sentence(
                f"Against its parent at context {study.short}: trimmed mean over rounds with its 95 % "
                "interval. "
                "Nothing smaller than the noise is claimed, which is how far the baseline strays from "
                "itself. A share is of the parent's excess, given for what was found, where that excess is "
                "measurably above 0."
            ),
            Table(heads, rows, text_columns=3),
        ],
    )


QUANTITIES = {"short": "step at {short}", "long": "step at {long}", "ttft": "TTFT"}


def expectations(study: Study) -> Section | None:
    moves = measured_expectations(study.measured)
    if not moves:
        return None
    at = {"short": study.short, "long": study.measured.contexts[-1]}
    rows = [
        [
            code(e.variant),
            QUANTITIES[e.quantity].format(**at),
            f"{'faster' if e.matters else 'no change'}: {e.why}",
            e.outcome,
            interval(e.ratio),
            percent(e.noise),
        ]
        for e in moves
    ]
    return Section(
        "Where rungs should matter and where not",
        [
            Sentence(
                "Ratio of the rung to its parent; it counts as a change when its interval excludes 1 and it "
                "is larger than the noise, the A/A deviation of the same quantity. Not seen: too small for "
                "this run."
            ),
            Table(["rung", "quantity", "should be", "is", "ratio to parent", "noise"], rows, text_columns=4),
        ],
    )


def context(study: Study) -> Section | None:
    contexts = study.measured.contexts
    if not study.timed or len(contexts) < 2:
        return None
    curves = {}
    for name in study.timed:
        steps = [(n, study.measured.step_quantiles(name, n)) for n in contexts]
        curves[name] = [(n, step.median) for n, step in steps if step]
    cached = [name for name in study.timed if study.variants[name].parent or study.variants[name].elsewhere]
    of = study.judged.parent or study.timed[-1]
    floors = [(n, ms) for n in contexts if (ms := study.measured.memory_floor_ms(of, n)) is not None]
    rows = [
        [code(name), *(str(study.variants[name].slots.get(n, UNKNOWN)) for n in contexts)]
        for name in study.timed
    ]
    alt = f"Lines of the median step over {contexts[0]} to {contexts[-1]} tokens in the cache: " + "; ".join(
        f"{name} from {number(points[0][1])} to {number(points[-1][1])} ms" for name, points in curves.items()
    )
    caption = f"Median step over context, and the memory floor of `{of}`."
    tokens, bounds = "context: tokens in the cache", {"memory floor": floors}
    enlarged = {name: points if name in cached else [] for name, points in curves.items()}
    panels = [
        Curves(tokens, "median step, ms", curves, bounds, title="all"),
        Curves(tokens, "median step, ms", enlarged, bounds, log_x=False, log_y=False, title="with a cache"),
    ]
    return Section(
        "Step over context",
        [
            Figure("context", caption, panels, f"{alt}."),
            Sentence(
                "Slots that a step attends over, which is what it costs: a step of fixed shape attends over "
                "its bucket."
            ),
            Table(["variant", *(f"context {n}" for n in contexts)], rows),
        ],
    )
