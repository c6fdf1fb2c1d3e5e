"""The verdict, the numbers and rules behind it, and what to try next."""

from __future__ import annotations

from profiling.results.advice import advice, batch_rows, fastest
from profiling.results.engines import fastest_others
from profiling.results.engines import rows as engine_rows
from profiling.results.guard import disturbances
from profiling.results.peaks import impossible
from profiling.results.record.page import Block, Bullets, Figure, Section, Sentence, Table
from profiling.results.record.pictures import Bar, Bars
from profiling.results.rules import CONTRASTS, RULES, UNDECIDED, Numbers
from profiling.results.stats import Interval
from profiling.results.verdict import QUESTION, Verdict
from reports.numbers import interval, number
from reports.study import Study


def answer(study: Study) -> Section:
    figures = [
        _step_figure(judged, judged.numbers, f"divided{f'-{number}' if number else ''}")
        for number, judged in enumerate(study.verdicts)
        if judged.numbers
    ]
    return Section(QUESTION, [*said(study), *figures])


def judging(study: Study) -> Section | None:
    """The numbers and rules behind the word, for who checks it."""
    tables = [_numbers(judged, judged.numbers) for judged in study.verdicts if judged.numbers]
    return Section("How the answer was reached", [*tables, *_rules()], folded=True) if tables else None


def said(study: Study) -> list[Sentence]:
    """The answer for who wants to know and for who wants to check, and what to beware of."""
    unfinished = (
        "**This run is unfinished**: it is still running, or it was interrupted. What it has not measured is "
        "missing."
    )
    return [
        *([Sentence(unfinished)] if study.record.status != "complete" else []),
        *(sentence for judged in study.verdicts for sentence in _answer(study, judged)),
        *(Sentence(others) for others in _others(study)),
        *(Sentence(f"**Beware**: {what}.") for what in beware(study)),
    ]


def _answer(study: Study, judged: Verdict) -> list[Sentence]:
    """Of one trunk, named where there is another one; what was gained stands beside the first."""
    of = f"Of `{judged.parent}`: " if len(study.verdicts) > 1 else ""
    gain = _gain(study) if judged is study.judged else ""
    return [
        Sentence(f"{of}**{judged.headline}**. {judged.sentence}{gain}"),
        Sentence(f"To check: {_check(study, judged)}"),
    ]


def beware(study: Study) -> list[str]:
    """A sentence for all that was wrong with machine or instrument meanwhile, and what to do."""
    return [*impossible(study.measured), *disturbances(study.record)]


def _step_figure(judged: Verdict, n: Numbers, name: str) -> Figure:
    rows = []
    for part, (low, mid, high) in n.parts.items():
        low, mid = max(0.0, low), max(0.0, mid)
        text = f"{number(mid)} ms, {mid / n.step:.0%} of the step"
        rows.append(Bar(part, {part: mid}, text, interval=(low, max(low, high))))
    caption = (
        f"A step of `{judged.parent}` divided, with intervals: reading what it must, what its "
        "operations take beyond that, and what removing the launches could close."
    )
    return Figure(name, caption, [Bars("ms", rows)])


def _rules() -> list[Block]:
    rules = [f"**{rule.word}**: {rule.text}: {rule.meaning}" for rule in RULES]
    left = f"**{UNDECIDED}**: no rule holds, or gate, trace or A/A test failed; what is excluded stands above"
    return [Sentence("The rules, each end of an interval being a one-sided bound:"), Bullets([*rules, left])]


def _gain(study: Study) -> str:
    """One sentence: the fastest proven variant beside plain cached decoding; "" without times."""
    best = fastest(study.measured, study.measured.precision)
    rung = study.measured.rung(best) if best else None
    baseline = study.record.baseline
    base = study.measured.rung(baseline) if baseline in study.timed else None
    step, before = (r.steps[study.short] if r else None for r in (rung, base))
    if not rung or not step or not before:
        return ""
    return (
        f" The fastest proven variant, `{best}`, needs {number(step.median)} ms per token where plain "
        f"cached decoding (`{baseline}`) needs {number(before.median)} ms; reading what a step must read "
        f"takes {number(rung.memory_floor_ms)} ms.{_first_token(study, best, baseline)}"
    )


def _others(study: Study) -> list[str]:
    """A sentence per precision: the fastest engine of others beside our one launch, where both have times."""
    pairs = fastest_others(engine_rows(study.measured, study.short)) if study.timed else {}
    return [
        f"Of others at {precision} `{other.name}` is the fastest, {number(other.step_ms.median)} ms: "
        f"{interval(other.ratio)} times `{mine.name}`."
        for precision, (mine, other) in pairs.items()
    ]


def _first_token(study: Study, best: str | None, baseline: str) -> str:
    """What a recommended rung costs before its first step; "" where it was not timed."""
    ours, plain = (study.measured.ttft_ms(name) if name else None for name in (best, baseline))
    workload = study.record.workload
    if ours is None or plain is None or workload is None:
        return ""
    prompt = f"after a prompt of {workload.prompt} tokens"
    return f" Its first token {prompt} takes {number(ours)} ms, that of `{baseline}` {number(plain)} ms."


def _check(study: Study, judged: Verdict) -> str:
    if not judged.numbers:
        return f"{judged.rule}."
    n = judged.numbers
    drop, gap, excess, aa = (interval(n.interval(part)) for part in (n.drop, n.gap, n.excess, n.aa))
    needed = judged.blocks_needed
    more = f" About {needed} blocks in all would decide." if needed else ""
    return (
        f"removing the launches (`{judged.parent}` → `{judged.replay}`) took {drop} ms off the step at "
        f"context {study.short}; the gap that it could close is g = {gap} ms, the excess over the memory "
        f"floor {excess} ms, the step less itself {aa} ms. Hence: {judged.rule}.{more}"
    )


def _numbers(judged: Verdict, n: Numbers) -> Table:
    parent, replay = judged.parent, judged.replay
    how = f"{judged.blocks} blocks in alternation" if judged.blocks else "per round"
    rows = [
        _row("drop, ms", f"step of `{parent}` less step of `{replay}`, {how}", n.interval(n.drop)),
        _row(
            "gap g, ms", f"time in a step of `{parent}` in which no op was busy (traces)", n.interval(n.gap)
        ),
        _row("excess, ms", f"step of `{parent}` less its memory floor, {how}", n.interval(n.excess)),
        *(_row(c.name, f"{c.text}, ms", n.bounds[c.name]) for c in CONTRASTS),
        _row("A/A, ms", "the same step less itself", n.interval(n.aa)),
    ]
    return Table(["number", "what it is", "low", "mid", "high"], rows, text_columns=2)


def _row(name: str, what: str, value: Interval | None) -> list[str]:
    return [name, what, *(number(x, 5) for x in value or (None, None, None))]


def next_steps(study: Study) -> Section | None:
    if not study.timed:
        return None
    suggestions = advice(study.measured)
    blocks: list[Block] = []
    if suggestions:
        rows = [
            [
                a.what,
                a.rule,
                interval(a.gain_ms) if isinstance(a.gain_ms, Interval) else f"at most {number(a.gain_ms)}",
                " → ".join(number(ms) for ms in a.ttft_ms or ()),
            ]
            for a in suggestions
        ]
        blocks.append(
            Table(
                ["what", "how the gain is known", "expected gain, ms per token", "first token, ms"],
                rows,
                text_columns=2,
            )
        )
    else:
        blocks.append(Sentence("Nothing in this run promises more than the run's own noise."))
    rows_at_once = batch_rows(study.measured)
    if rows_at_once is not None and rows_at_once > 1:
        blocks.append(
            Sentence(
                "For throughput rather than latency: by the measured peaks one read of the weights can "
                f"serve about {rows_at_once} rows before arithmetic takes as long as the read (`--batch`)."
            )
        )
    return Section("What to try next on this machine", blocks)
