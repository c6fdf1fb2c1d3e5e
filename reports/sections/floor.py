"""Where the time of a step goes, what of it is fixed, and whether that was predicted."""

from __future__ import annotations

from typing import Any

from profiling.effects import readings_agree, rest
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
    interval,
    joined,
    megabytes,
    number,
)


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
            "Means per traced step; the parts sum to the step. A trace gives shares and counts: its times contain the "
            "profiler's own cost (last column: step under the profiler over step without)."
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
    counts = [k for k in ("kernels", "launches", "graph_launches", "host_ops", "syncs")]
    seen = [k for k in counts if any(t["analysis"]["counts"].get(k) for t in traced.values())]
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
        "What is left above the memory floor, without the profiler, ms: the time in ops (the profiler's share taken "
        "off) beyond the memory floor, and the gap between them divided as the trace divides it. A row's parts sum to "
        "its step."
    )
    missing = [name for name in study.timed if name not in known]
    if missing:
        text += f" Unknown for {joined(missing)}: no sound trace, or ops longer under the profiler than the plain step."
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


def excess(study: Study) -> Section | None:
    rows, disagree = [], []
    for name in study.timed:
        full, narrow = study.measured.excess_full(name), study.measured.excess_narrow(name)
        if full is None and narrow is None:
            continue
        agree = readings_agree(study.measured, name)
        rows.append(
            [code(name), interval(full), interval(narrow), {True: "yes", False: "no", None: "unknown"}[agree]]
        )
        if agree is False:
            disagree.append((name, full, narrow))
    if not rows:
        return None
    blocks: list[Block] = [
        Text(
            "What is neither memory nor arithmetic, read twice: the floor less the memory floor at full size, and the "
            "step of a narrow model with the same op count less its own read."
        ),
        Table(["variant", "full size, ms", "narrow, ms", "agree"], rows),
    ]
    above = [name for name, full, narrow in disagree if full.mid > narrow.mid]
    if above:
        blocks.append(
            Text(
                f"**The two readings disagree for {joined(above)}**: the excess at full size is larger than what the "
                "same ops cost with hardly any data. The difference grows with the width, so it is inside the ops and "
                "not a fixed price per op."
            )
        )
    below = [name for name, full, narrow in disagree if full.mid < narrow.mid]
    if below:
        blocks.append(
            Text(
                f"**The two readings disagree for {joined(below)}**: at full size less is left than the narrow model "
                "pays, so part of the fixed price hides behind the reading of the weights."
            )
        )
    return Section("The excess, read twice", [*blocks, *_width_figure(study)])


def _width_figure(study: Study) -> list[Block]:
    curves = {}
    for name in study.timed:
        points = [(w, e) for w, e in study.measured.excess_by_width(name).items() if e is not None]
        if len(points) > 1:
            curves[name] = points
    if not curves:
        return []
    alt = "Lines of step less its own read over the model's width, one per variant: " + "; ".join(
        f"{name} from {number(p[0][1].mid)} ms at width {p[0][0]} to {number(p[-1][1].mid)} ms at {p[-1][0]}"
        for name, p in curves.items()
    )
    caption = f"Step less its own read over the model's width, at context {study.short}; a flat line is a fixed price."
    return [Figure("excess", f"{alt}.", caption, lambda: figures.excess(curves))]


def memory_floor(study: Study) -> Section | None:
    rows = study.measured.page_floors() if study.timed else []
    if not rows:
        return None
    rate = study.record["ceilings"]["read_gb_per_s"]
    cells = [
        [
            megabytes(r["bytes"]),
            number(r["default_ms"]),
            number(r["default_gb_per_s"]),
            number(r["huge_ms"]),
            number(r["huge_gb_per_s"]),
            interval(r["ratio"]),
        ]
        for r in rows
    ]
    heads = ["MB per step", "default pages, ms", "GB/s", "huge pages, ms", "GB/s ", "default / huge"]
    return Section(
        "The memory floor on both page sizes",
        [
            Text(
                "The fastest plain read, on all threads, of exactly the bytes that a step must read, in the same rounds "
                f"as the steps: median. Beside it, the read rate over a large buffer before the rounds: {number(rate)} GB/s."
            ),
            Table(heads, cells, text_columns=0),
        ],
    )


def prediction(study: Study) -> Section | None:
    rows = []
    for name, entry in study.variants.items():
        predicted = entry.get("prediction", {}).get(str(study.short)) if study.measured.contexts else None
        if not predicted:
            continue
        floor = study.measured.row(name).get("memory_floor_ms")
        step = study.measured.step_quantiles(name, study.short)
        rows.append(
            [
                code(name),
                megabytes(predicted["bytes"]),
                number(predicted["macs"] / 1e6),
                str(entry["ops"]["computing_ops"]),
                number(predicted["memory_ms"]),
                number(predicted["arithmetic_ms"]),
                number(floor),
                number(step["median"] if step else None),
            ]
        )
    if not rows:
        return None
    heads = ["variant", "MB read", "M MACs", "computing ops", "memory, ms", "arithmetic, ms"]
    return Section(
        "Predicted before anything was timed",
        [
            Text(
                f"One step at context {study.short}: bytes and MACs by formula, and the time that the ceilings measured "
                "beforehand give them; in the last two columns what was measured afterwards."
            ),
            Table([*heads, "memory floor measured, ms", "step measured, ms"], rows),
        ],
    )


def replay(study: Study) -> Section | None:
    predicted = study.record.get("predicted_replay")
    outcome = study.measured.replay_outcome(predicted) if predicted else None
    if not predicted or outcome is None:
        return None
    low, mid, high = (outcome[key] for key in ("low_ms", "mid_ms", "high_ms"))
    rows = [
        ["predicted", number(low), number(mid), number(high)],
        [
            f"measured, {code(outcome['variant'])}",
            *(number(outcome[k]) for k in ("p5_ms", "median_ms", "p95_ms")),
        ],
    ]
    verdict = {True: "inside the predicted range", False: "outside the predicted range"}[outcome["inside"]]
    return Section(
        "The replay, predicted from the eager trace",
        [
            Text(
                f"Stored before `{outcome['variant']}` was timed, from a trace of `{predicted['from']}`: "
                f"{predicted['kind']}. The measured median is {verdict}, {number(outcome['ratio'])} times the prediction."
            ),
            Table(["ms per step", "low", "mid", "high"], rows),
            Text("It assumes:"),
            Bullets(predicted["assumptions"]),
        ],
    )
