"""Where the time of a step goes: the traces' parts, what is left above the memory floor, op by op."""

from __future__ import annotations

from typing import Any

from profiling.effects import rest
from reports import figures
from reports.content import (
    Block,
    Bullets,
    Figure,
    Section,
    Study,
    Table,
    Text,
    Timeline,
    code,
    joined,
    number,
)

COUNTS = ("kernels", "launches", "graph_launches", "host_ops", "syncs")


def parts(study: Study) -> Section | None:
    traced = {
        name: e["trace"] for name, e in study.variants.items() if e.get("trace") and name in study.timed
    }
    if not traced:
        return None
    kinds = list(dict.fromkeys(part for t in traced.values() for part in t["analysis"]["parts_us"]))
    stacks = {name: t["analysis"]["parts_us"] for name, t in traced.items()}
    alt = (
        f"Stacked bars of {', '.join(kinds)} per traced step for {len(stacks)} variants: "
        + "; ".join(
            f"{name} {', '.join(f'{p} {number(us / 1e3)} ms' for p, us in s.items())}"
            for name, s in stacks.items()
        )
        + "."
    )
    blocks: list[Block] = [
        Text(
            "Means per traced step; the parts sum to the step. A trace gives shares and counts: its times "
            "contain the profiler's own cost (last column: step under the profiler over step without)."
        ),
        Figure("parts", alt, "Where the time of one traced step goes.", lambda: figures.parts(stacks)),
        _parts_table(study, traced, kinds),
        *_rest(study),
    ]
    problems = [f"{code(n)}: {p}" for n, t in traced.items() for p in t["analysis"]["problems"]]
    if problems:
        blocks += [Text("Traces that are not to be trusted:"), Bullets(problems)]
    return Section("Where the time goes", blocks)


def _parts_table(study: Study, traced: dict[str, Any], kinds: list[str]) -> Table:
    seen = [k for k in COUNTS if any(t["analysis"]["counts"].get(k) for t in traced.values())]
    rows = [
        [
            code(name),
            *(
                number(us / 1e3) if (us := t["analysis"]["parts_us"].get(k)) is not None else ""
                for k in kinds
            ),
            *(number(t["analysis"]["counts"].get(k), 4) for k in seen),
            number(study.measured.profiler_ratio(name)),
        ]
        for name, t in traced.items()
    ]
    heads = ["variant", *(f"{k.replace('_', ' ')}, ms" for k in kinds), *(k.replace("_", " ") for k in seen)]
    return Table([*heads, "profiled / plain"], rows)


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
    return [Text(text), Table(["variant", *kinds], rows)]


def timeline(study: Study) -> Section | None:
    data = study.timeline
    if not data or not data["steps"]:
        return None
    names = joined([step["variant"] for step in data["steps"]])
    lengths = ", ".join(f"{s['variant']} {number(s['length_us'] / 1e3)} ms" for s in data["steps"])
    alt = f"One traced step each of {names.replace('`', '')} on one time axis, op by op: {lengths}."
    caption = f"One step of {names} on the same time axis, as traced."
    picture = Figure("timeline", alt, caption, lambda: figures.timeline(data))
    return Section("One step, op by op", [Timeline(data, picture)])
