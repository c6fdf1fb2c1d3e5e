"""How far a step is from the memory floor, whether that is a fixed price, and whether it was predicted."""

from __future__ import annotations

from profiling.results.effects import compare_readings
from profiling.results.peaks import read_rate
from profiling.results.record.page import Block, Bullets, Figure, Section, Sentence, Table
from profiling.results.record.pictures import Curves
from reports.numbers import UNKNOWN, code, interval, joined, megabytes, number
from reports.study import Study

AGREE = {"same": "yes", "full": "no", "narrow": "no", None: "unknown"}


def excess(study: Study) -> Section | None:
    rows = []
    larger: dict[str | None, list[str]] = {}
    for name in study.timed:
        full, narrow = study.measured.excess_full(name), study.measured.excess_narrow(name)
        compared = compare_readings(study.measured, name)
        larger.setdefault(compared, []).append(name)
        if full is not None or narrow is not None:
            rows.append([code(name), interval(full), interval(narrow), AGREE[compared]])
    if not rows:
        return None
    blocks: list[Block] = [
        Sentence(
            "What is neither memory nor arithmetic, read twice: the floor less the memory floor at full "
            "size, and the step of a narrow model with the same op count less its own read."
        ),
        Table(["variant", "full size, ms", "narrow, ms", "agree"], rows),
    ]
    if "full" in larger:
        blocks.append(
            Sentence(
                f"**The two readings disagree for {joined(larger['full'])}**: the excess at full size is "
                "larger than what the same ops cost with hardly any data. The difference grows with the "
                "width, so it is inside the ops and not a fixed price per op."
            )
        )
    if "narrow" in larger:
        blocks.append(
            Sentence(
                f"**The two readings disagree for {joined(larger['narrow'])}**: at full size less is left "
                "than the narrow model pays, so part of the fixed price hides behind the reading of the "
                "weights."
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
    caption = (
        f"Step less its own read over the model's width, at context {study.short}; a flat line is a fixed "
        "price."
    )
    lines = {name: [(w, e.mid, e.low, e.high) for w, e in curves.get(name, [])] for name in study.timed}
    widths, less = "width of the model (same layers, same ops)", "step less its own read, ms (95 % interval)"
    return [Figure("excess", caption, [Curves(widths, less, lines, log_x=False, log_y=False)], f"{alt}.")]


def memory_floor(study: Study) -> Section | None:
    rows = study.measured.page_floors() if study.timed else []
    if not rows:
        return None
    rate = read_rate(study.record)
    cells = [
        [
            ", ".join(map(str, sorted(r.contexts))),
            megabytes(r.bytes),
            number(r.default_ms),
            number(r.gb_per_s(r.default_ms)),
            number(r.huge_ms),
            number(r.gb_per_s(r.huge_ms)),
            interval(r.ratio),
        ]
        for r in rows
    ]
    heads = [
        "context",
        "MB per step",
        "default pages, ms",
        "GB/s",
        "huge pages, ms",
        "GB/s ",
        "default / huge",
    ]
    return Section(
        "The memory floor on both page sizes",
        [
            Sentence(
                "The fastest plain read, on all threads, of exactly the bytes that a step must read, in the "
                "same rounds as the steps: median. Weights are read where they lie, if a rung has them on "
                "that page size, else a buffer of as many bytes. The most bytes were read "
                f"at {interval(rate and rate.scaled(1e-9))} GB/s."
            ),
            Table(heads, cells),
        ],
    )


PREDICTED = ("MB read", "M MACs", "computing ops", "memory, ms", "arithmetic, ms")


def prediction_cells(study: Study) -> dict[str, list[str]]:
    """By variant what its step at the smallest context should need and cost, as `PREDICTED` names it."""
    rows = {}
    for name, entry in study.variants.items():
        expected = entry.prediction.get(study.short) if study.measured.contexts else None
        if expected:
            rows[name] = [
                megabytes(expected.bytes),
                number(None if expected.macs is None else expected.macs / 1e6),
                str(entry.ops.computing_ops) if entry.ops else UNKNOWN,
                number(expected.memory_ms),
                number(expected.arithmetic_ms),
            ]
    return rows


def prediction(study: Study) -> Section | None:
    rows = []
    for name, cells in prediction_cells(study).items():
        floor = study.measured.memory_floor_ms(name, study.short)
        step = study.measured.step_quantiles(name, study.short)
        rows.append([code(name), *cells, number(floor), number(step.median if step else None)])
    if not rows:
        return None
    return Section(
        "Predicted before anything was timed",
        [
            Sentence(
                f"One step at context {study.short}: bytes and MACs by formula, and the time that the "
                "peaks measured beforehand give them; in the last two columns what was measured "
                "afterwards."
            ),
            Table(["variant", *PREDICTED, "memory floor measured, ms", "step measured, ms"], rows),
        ],
    )


def replay(study: Study) -> Section | None:
    predicted = study.record.predicted_replay
    outcome = study.measured.replay_outcome(predicted) if predicted else None
    if predicted is None or predicted.replay is None or outcome is None:
        return None
    rows = [
        ["predicted", *(number(ms) for ms in outcome.predicted_ms)],
        [f"measured, {code(outcome.variant)}: p5, median, p95", *map(number, outcome.measured_ms)],
    ]
    verdict = "inside the predicted range" if outcome.inside else "outside the predicted range"
    return Section(
        "The replay, predicted from the eager trace",
        [
            Sentence(
                f"Stored before `{outcome.variant}` was timed, from a trace of `{predicted.parent}`: "
                f"{predicted.replay.kind}. The measured median is {verdict}, {number(outcome.ratio)} times "
                "the prediction."
            ),
            Table(["ms per step", "low", "mid", "high"], rows),
            Sentence("It assumes:"),
            Bullets(predicted.replay.assumptions),
        ],
    )
