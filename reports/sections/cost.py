"""What a variant costs beside its steps: warm-up, memory, and error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiling.results.metrics import closest_check
from reports.numbers import code, megabytes, number, percent
from reports.page import Figure, Section, Sentence, Table
from reports.pictures import Bar, Bars
from reports.study import Study

GATES = {"pass": "pass", "fail": "**FAILED**", "skipped": "not run"}
MEMORY = ("weights_bytes", "cache_bytes", "mask_bytes", "artefact_bytes", "allocated_bytes")


def price(study: Study) -> Section | None:
    built = {name: e for name, e in study.variants.items() if e.get("memory")}
    if not built:
        return None
    shown = [k for k in MEMORY if any(e["memory"][k] is not None for e in built.values())]
    rows = [
        [code(name), number(e["warm_up_s"]), _compiled_steps(e), *(megabytes(e["memory"][k]) for k in shown)]
        for name, e in built.items()
    ]
    heads = [f"{k.removesuffix('_bytes')}, MB" for k in shown]
    bars = {name: (e["warm_up_s"], e["memory"]) for name, e in built.items()}
    alt = "Two rows of bars per variant, warm-up in seconds and memory in MB: " + "; ".join(
        f"{name} {number(seconds)} s, {megabytes(sum(memory[k] or 0 for k in MEMORY[:4]))} MB"
        for name, (seconds, memory) in bars.items()
    )
    return Section(
        "The price of each variant",
        [
            Figure("price", f"{alt}.", "Warm-up and memory of each variant.", _panels(bars)),
            Sentence(
                "Warm-up: building the decoder and stepping until nothing compiles, records or allocates. "
                "Artefacts: what was compiled, recorded or captured, one per bucket of slots, seconds each."
            ),
            Table(["variant", "warm-up, s", "compiled steps, s", *heads], rows),
        ],
    )


def _panels(bars: Mapping[str, tuple[float, Mapping[str, int | None]]]) -> list[Bars]:
    """Per variant warm-up in s, and memory in bytes by what holds it."""
    seconds = [Bar(name, {"warm-up": s}, f"{number(s)} s") for name, (s, _) in bars.items()]
    held = [k for k in MEMORY if k != "allocated_bytes"]
    memory = [
        Bar(name, {k.removesuffix("_bytes"): (m[k] or 0) / 1e6 for k in held})
        for name, (_, m) in bars.items()
    ]
    return [Bars("warm-up, s", seconds, log_x=True), Bars("memory, MB", memory)]


def _compiled_steps(entry: dict[str, Any]) -> str:
    return " + ".join(number(cost["seconds"]) for cost in entry.get("warm_up", [])) or "none"


def drift(study: Study) -> Section | None:
    rows = []
    for name, entry in study.variants.items():
        drifted = (entry.get("gate") or {}).get("drift")
        if drifted:
            step = study.measured.step_quantiles(name, study.short)
            first = drifted["first_divergence"]
            rows.append(
                [
                    code(name),
                    entry["precision"],
                    number(step["median"] if step else None),
                    percent(drifted["top1_agreement"]),
                    number(drifted["mean_kl_nats"]),
                    number(drifted["rms_logit_error"]),
                    "none"
                    if first is None
                    else f"position {first}, margin {number(drifted['margin_there'])}",
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
        if result := entry.get("gate"):
            passed = sum(check["status"] == "pass" for check in result["checks"])
            rows.append(
                [
                    code(name),
                    GATES[result["status"]],
                    f"{passed} of {len(result['checks'])}",
                    str(result["greedy_steps"]),
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


def _closest(check: dict[str, Any] | None) -> list[str]:
    if check is None:
        return ["", "", "", "", ""]
    return [check["check"], *(f"{check[key]:.2g}" for key in ("rms", "allowed_rms", "max", "allowed_max"))]
