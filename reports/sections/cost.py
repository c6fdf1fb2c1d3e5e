"""What a variant costs beside its steps: warm-up, memory, and error."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from profiling.results.metrics import closest_check
from profiling.results.record import Entry, GateCheck, Memory
from profiling.results.record.page import Figure, Section, Sentence, Table
from profiling.results.record.pictures import Bar, Bars
from reports.numbers import code, megabytes, number, percent
from reports.study import Study

GATES = {"pass": "pass", "fail": "**FAILED**", "skipped": "not run"}
Bytes = Callable[[Memory], int | None]
HELD: dict[str, Bytes] = {
    "weights": lambda memory: memory.weights_bytes,
    "cache": lambda memory: memory.cache_bytes,
    "mask": lambda memory: memory.mask_bytes,
    "compiled steps": lambda memory: memory.compiled_step_bytes,
}
COLUMNS: dict[str, Bytes] = {
    **HELD,
    "allocated": lambda memory: memory.allocated_bytes,
}


def price(study: Study) -> Section | None:
    built = {name: (e, e.memory) for name, e in study.variants.items() if e.memory}
    if not built:
        return None
    columns = {
        name: size for name, size in COLUMNS.items() if any(size(m) is not None for _, m in built.values())
    }
    rows = [
        [
            code(name),
            number(e.warm_up_s),
            _compiled_steps(e),
            *(megabytes(size(m)) for size in columns.values()),
        ]
        for name, (e, m) in built.items()
    ]
    bars = {
        name: (e.warm_up_s or 0.0, {held: size(m) or 0 for held, size in HELD.items()})
        for name, (e, m) in built.items()
    }
    alt = "Two rows of bars per variant, warm-up in seconds and memory in MB: " + "; ".join(
        f"{name} {number(seconds)} s, {megabytes(sum(held.values()))} MB"
        for name, (seconds, held) in bars.items()
    )
    return Section(
        "The price of each variant",
        [
            Figure("price", "Warm-up and memory of each variant.", _panels(bars), f"{alt}."),
            Sentence(
                "Warm-up: building the decoder and stepping until nothing compiles, records or allocates. "
                "Compiled steps: what was compiled, recorded or captured, one per bucket of slots, seconds "
                "each."
            ),
            Table(["variant", "warm-up, s", "compiled steps, s", *(f"{name}, MB" for name in columns)], rows),
        ],
    )


def _panels(bars: Mapping[str, tuple[float, Mapping[str, int]]]) -> list[Bars]:
    """Per variant warm-up in s, and memory in bytes by what holds it."""
    seconds = [Bar(name, {"warm-up": s}, f"{number(s)} s") for name, (s, _) in bars.items()]
    memory = [
        Bar(name, {part: size / 1e6 for part, size in held.items()}) for name, (_, held) in bars.items()
    ]
    return [Bars("warm-up, s", seconds, log_x=True), Bars("memory, MB", memory)]


def _compiled_steps(entry: Entry) -> str:
    return " + ".join(number(cost.seconds) for cost in entry.compiled_steps) or "none"


def drift(study: Study) -> Section | None:
    rows = []
    for name, entry in study.variants.items():
        if entry.gate and (drifted := entry.gate.drift):
            step = study.measured.step_quantiles(name, study.short)
            first = drifted.first_divergence
            rows.append(
                [
                    code(name),
                    entry.precision,
                    number(step.median if step else None),
                    percent(drifted.top1_agreement),
                    number(drifted.mean_kl_nats),
                    number(drifted.rms_logit_error),
                    "none" if first is None else f"position {first}, margin {number(drifted.margin_there)}",
                ]
            )
    if not rows:
        return None
    heads = ["variant", "weights", "step, ms", "same top token", "mean KL, nats", "RMS logit error"]
    return Section(
        "What fewer bits change",
        [
            Sentence(
                "Each is proven equal to eager decoding at its own precision; against the root's precision "
                "it drifts. Positions fed with a random text. First divergence: the first position with "
                "another top token, and by how much the root's two best logits differ there."
            ),
            Table([*heads, "first divergence"], rows, text_columns=2),
        ],
    )


def gate(study: Study) -> Section | None:
    rows = []
    for name, entry in study.variants.items():
        if result := entry.gate:
            passed = sum(check.status == "pass" for check in result.checks)
            rows.append(
                [
                    code(name),
                    GATES[result.status],
                    f"{passed} of {len(result.checks)}",
                    str(result.greedy_steps),
                    *_closest(closest_check(result)),
                ]
            )
    if not rows:
        return None
    heads = ["variant", "gate", "checks passed", "greedy tokens", "closest to its limit", "RMS error"]
    return Section(
        "The gate: what was proven",
        [
            Sentence(
                "Logits and cache are compared with float64. Allowed is twice the error of plain cached "
                "eager decoding at that precision; plain eager itself is held to a multiple of the rounding "
                "unit. Shown is the check that came closest to its limit; all of them are in `run.json`."
            ),
            Table([*heads, "allowed", "largest error", "allowed "], rows, text_columns=2),
        ],
    )


def _closest(check: GateCheck | None) -> list[str]:
    if check is None or check.errors is None:
        return ["", "", "", "", ""]
    e = check.errors
    return [check.check, *(f"{value:.2g}" for value in (e.rms, e.allowed_rms, e.max, e.allowed_max))]
