"""Where the time of a step goes: the traces' parts, what is left above the memory floor, op by op."""

from __future__ import annotations

from msgspec.structs import asdict

from profiling.results.effects import rest
from profiling.results.record import Counts, Phase, Trace
from profiling.results.record.page import Block, Bullets, Figure, Section, Sentence, Table
from profiling.results.record.pictures import Bar, Bars
from reports.numbers import code, count, joined, number
from reports.study import Study

COUNTS = Counts.__struct_fields__


def parts(study: Study) -> Section | None:
    traces = {name: trace for name in study.timed if (trace := study.variants[name].trace)}
    if not traces:
        return None
    traced = {name: trace.step_ms for name, trace in traces.items()}
    kinds = list(dict.fromkeys(part for ms in traced.values() for part in ms))
    alt = "Stacked bars of the parts of one traced step: " + "; ".join(
        f"{name} {', '.join(f'{part} {number(value)} ms' for part, value in ms.items() if value)}"
        for name, ms in traced.items()
    )
    caption = "Where the time of one traced step goes."
    blocks: list[Block] = [
        Sentence(
            "Means per traced step; the parts sum to the step. A trace gives shares and counts: its times "
            "contain the profiler's own cost (last column: step under the profiler over step without)."
        ),
        Figure("parts", caption, [_bars(traced)], f"{alt}."),
        _parts_table(study, traces, kinds),
        *_rest(study),
    ]
    problems = [f"{code(name)}: {problem}" for name, trace in traces.items() for problem in trace.problems]
    if problems:
        blocks += [Sentence("Traces that are not to be trusted:"), Bullets(problems)]
    return Section("Where the time goes", blocks)


def _bars(traced: dict[str, dict[str, float]]) -> Bars:
    rows = []
    for name, ms in traced.items():
        stacked = {part: value for part, value in ms.items() if part != "step"}
        rows.append(Bar(name, stacked, f"{number(ms['step'])} ms"))
    return Bars("per traced step, the profiler's cost included, ms", rows)


def _parts_table(study: Study, traces: dict[str, Trace], kinds: list[str]) -> Table:
    counts = {name: asdict(trace.counts) for name, trace in traces.items()}
    seen = [what for what in COUNTS if any(of_trace[what] for of_trace in counts.values())]
    rows = [
        [
            code(name),
            *(number(ms[kind]) if kind in ms else "" for kind in kinds),
            *(count(counts[name][what]) for what in seen),
            number(study.measured.profiler_ratio(name)),
        ]
        for name, ms in ((name, trace.step_ms) for name, trace in traces.items())
    ]
    heads = [f"{kind.replace('_', ' ')}, ms" for kind in kinds] + [what.replace("_", " ") for what in seen]
    return Table(["variant", *heads, "profiled / plain"], rows)


def _rest(study: Study) -> list[Block]:
    """The unprofiled step above its memory floor, divided."""
    divided = {name: rest(study.measured, name) for name in study.timed}
    known = {name: parts for name, parts in divided.items() if parts}
    if not known:
        return []
    kinds = list(dict.fromkeys(kind for parts in known.values() for kind in parts))
    rows = [[code(n), *(number(parts[k]) if k in parts else "" for k in kinds)] for n, parts in known.items()]
    text = (
        "What is left above the memory floor, without the profiler, ms: the time in ops (the profiler's "
        "share taken off) beyond the memory floor, and the gap between them divided as the trace divides "
        "it. A row's parts sum to its step."
    )
    missing = [name for name in study.timed if name not in known]
    if missing:
        text += (
            f" Unknown for {joined(missing)}: no sound trace, or ops longer under the profiler than the "
            "plain step."
        )
    return [Sentence(text), Table(["variant", *(kind.replace("_", " ") for kind in kinds)], rows)]


def phases(study: Study) -> Section | None:
    """The section on the phases of the steps that are one launch; None where there is none."""
    inside = {name: study.variants[name].trace for name in study.timed}
    known = {name: trace.phases for name, trace in inside.items() if trace and trace.phases}
    if not known:
        return None
    text = (
        "A step that is one launch, by its phases, from clocks inside it: medians over the traced steps of "
        "the work of the thread that finished last, ms, summed over the layers; in brackets how long the "
        "mean thread then waited for it. Weights are read in `qkv`, `out`, `up`, `down` and `head`."
    )
    names = list(dict.fromkeys(phase for of_launch in known.values() for phase in of_launch))
    rows = [[code(phase), *(_phase(of_launch.get(phase)) for of_launch in known.values())] for phase in names]
    total = [number(sum(p.slowest_us for p in of_launch.values()) / 1e3) for of_launch in known.values()]
    table = Table(["phase", *(code(name) for name in known)], [*rows, ["all", *total]])
    return Section("Inside the one launch", [Sentence(text), table, *_gains(study, known)])


def _gains(study: Study, phases: dict[str, dict[str, Phase]]) -> list[Block]:
    """What one launch takes off its parent's step is more than launches: divided where the gap is known."""
    judged, sentences = study.judged, []
    for name, of_launch in phases.items():
        rung, parent = study.measured.rung(name), judged.parent
        step = rung.steps[study.short]
        if (
            judged.numbers is None
            or parent is None
            or rung.parent != parent
            or not rung.removed_ms
            or not step
        ):
            continue
        outside = max(0.0, step.median - sum(p.slowest_us for p in of_launch.values()) / 1e3)
        launching = judged.numbers.gap.mid - outside
        inside = rung.removed_ms.mid - launching
        sentences.append(
            f"{code(name)} takes {number(rung.removed_ms.mid)} ms off the step of {code(parent)}: "
            f"{number(launching)} ms of launching (the gap of {code(parent)} less the {number(outside)} ms "
            f"that {code(name)} spends outside its phases) and {number(inside)} ms inside the operations, "
            "by other products, threads and reads"
        )
    return [Bullets(sentences)] if sentences else []


def _phase(phase: Phase | None) -> str:
    if phase is None:
        return ""
    return f"{number(phase.slowest_us / 1e3)} ({number(phase.waiting_us / 1e3)})"


def timeline(study: Study) -> Section | None:
    data = study.timeline
    if data is None:
        return None
    names = joined([step.variant for step in data.steps])
    lengths = ", ".join(f"{step.variant} {number(step.length_us)} us" for step in data.steps)
    alt = f"One traced step each of {names.replace('`', '')} on one time axis, op by op: {lengths}."
    caption = f"One step of {names} on the same time axis, as traced."
    return Section("One step, op by op", [Figure("timeline", caption, data, alt)])
