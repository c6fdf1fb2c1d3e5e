"""The verdict, the numbers and rules behind it, and what to try next."""

from __future__ import annotations

from profiling.results.advice import advice, batch_rows, fastest
from profiling.results.stats import Interval
from profiling.results.verdict import Numbers
from reports.numbers import interval, number
from reports.page import Block, Bullets, Section, Sentence, Table
from reports.study import Study

RULES = (
    "**CONFIRMED**: the drop's lower bound is at least half of g, g is at least half of the excess, and "
    "the drop is beyond the noise",
    "**REFUTED**: the drop's upper bound is below a tenth of g, or g's upper bound is below a tenth of "
    "the excess",
    "**PARTLY**: the drop is beyond the noise, and neither of the above holds",
    "**INCONCLUSIVE**: the gate, the trace or the A/A test failed, the excess's interval contains 0, or "
    "the intervals decide nothing",
)
FOR_MANAGERS = {
    "CONFIRMED": "Yes: most of what can be saved in a step is the launching of its many small operations",
    "PARTLY": "In part: launching small operations costs a real share of a step, but not most of what "
    "can be saved",
    "REFUTED": "No: launching small operations is not what makes a step slow here",
    "INCONCLUSIVE": "This run cannot say whether launching small operations is what makes a step slow",
}


TITLE = "Does launch overhead set the floor?"


def answer(study: Study) -> Section:
    blocks: list[Block] = [*said(study)]
    if numbers := study.judged.numbers:
        blocks += [_numbers(study, numbers), Sentence("The rules:"), Bullets(RULES)]
    return Section(TITLE, blocks)


def said(study: Study) -> list[Sentence]:
    """For who wants to know, and for who wants to check; before that, if the run is unfinished."""
    judged = study.judged
    unfinished = (
        "**This run is unfinished**: it is still running, or it was interrupted. What it has not measured is "
        "missing."
    )
    return [
        *([Sentence(unfinished)] if study.record["status"] != "complete" else []),
        Sentence(f"**{judged.word}**. {FOR_MANAGERS[judged.word]}.{_gain(study)}"),
        Sentence(f"To check: {_check(study)}"),
    ]


def _gain(study: Study) -> str:
    """What one gets on this machine, in one sentence."""
    best = fastest(study.measured, study.record.get("model", {}).get("precision"))
    row = study.measured.row(best) if best else None
    base = study.measured.row("cat") if "cat" in study.timed else None
    if not row or not base:
        return ""
    step, before = row["steps"][study.short], base["steps"][study.short]
    read = row["memory_floor_ms"]
    return (
        f" The fastest proven variant, `{best}`, needs {number(step['median'])} ms per token where plain "
        f"cached decoding (`cat`) needs {number(before['median'])} ms; reading what a step must read takes "
        f"{number(read)} ms."
    )


def _check(study: Study) -> str:
    judged = study.judged
    if not judged.numbers:
        return f"{judged.rule}."
    n = judged.numbers
    return (
        f"removing the launches (`{judged.parent}` → `{judged.replay}`) took {interval(n.drop)} ms off the "
        f"step at context {study.short}; the gap that it could close is g = {interval(n.gap)} ms, the excess "
        f"over the memory floor {interval(n.excess)} ms, the run's noise {number(n.noise)} ms. Hence: "
        f"{judged.rule}."
    )


def _numbers(study: Study, n: Numbers) -> Table:
    parent, replay = study.judged.parent, study.judged.replay
    rows = [
        _row("drop, ms", f"step of `{parent}` less step of `{replay}`, per round", n.drop),
        _row(
            "gap g, ms",
            f"step of `{parent}` less the time in which its ops were busy (trace, corrected)",
            n.gap,
        ),
        _row("excess, ms", f"floor of `{parent}` less its memory floor, per round", n.excess),
        ["noise, ms", f"largest A/A deviation times the step of `{parent}`", "", number(n.noise, 5), ""],
        _row("A/A ratio", "the baseline over itself under a second name", study.measured.aa_ratio),
    ]
    return Table(["number", "what it is", "low", "mid", "high"], rows, text_columns=2)


def _row(name: str, what: str, value: Interval | None) -> list[str]:
    return [name, what, *(number(x, 5) for x in value or (None, None, None))]


def next_steps(study: Study) -> Section | None:
    if not study.timed:
        return None
    found = advice(study.measured)
    blocks: list[Block] = []
    if found:
        rows = [
            [
                a.what,
                a.rule,
                interval(a.gain_ms) if isinstance(a.gain_ms, Interval) else f"at most {number(a.gain_ms)}",
            ]
            for a in found
        ]
        blocks.append(
            Table(["what", "how the gain is known", "expected gain, ms per token"], rows, text_columns=2)
        )
    else:
        blocks.append(Sentence("Nothing in this run promises more than the run's own noise."))
    rows_at_once = batch_rows(study.measured)
    if rows_at_once is not None and rows_at_once > 1:
        blocks.append(
            Sentence(
                "For throughput rather than latency: by the measured ceilings one read of the weights can "
                f"serve about {rows_at_once} rows before arithmetic takes as long as the read (`--batch`)."
            )
        )
    return Section("What to try next on this machine", blocks)
