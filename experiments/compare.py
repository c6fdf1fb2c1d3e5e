"""Question: which steps became slower or faster from one run to another, and can the two be compared at all?

Holds the records of runs against the first one, or against a baseline: what differs between them (machine,
software, model, method), and the ratio of every step that both timed, with its interval. Runs nothing. As a
guard in CI, --fail-if-slower 5% exits with 1 only where a step's whole interval lies beyond it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.shared.cli import console, plain_parser, print_json, run
from experiments.shared.outcome import question_of
from profiling.results.discrepancies import Matter
from profiling.results.folder import record_in
from profiling.results.record import Measurement, Record
from profiling.results.record.page import Block, Bullets, Figure, Page, Section, Sentence, Table
from profiling.results.record.pictures import Bar, Bars
from profiling.results.run_pair import RunPair, Shift
from profiling.results.stats import Interval
from reports.export import write_csv
from reports.numbers import code, interval, number
from variants.errors import UserError

EXAMPLES = (
    "runs/BEFORE runs/AFTER",
    "runs/BEFORE runs/AFTER --out compared --csv compared.csv",
    "runs/AFTER --baseline baseline.json --fail-if-slower 5%",
)
SLOWER = 1  # exit code of a guard that found a step beyond its limit
MEANS = {
    Matter.WORK: "no ratio is taken, since the steps do other work",
    Matter.MACHINE: "the ratios are of two machines, not of two versions",
    Matter.SOFTWARE: "what moved may be theirs",
    Matter.METHOD: "the ratios stand, with more or less noise",
}


def parser() -> argparse.ArgumentParser:
    parser = plain_parser("experiments.compare", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run folder, or a file that holds a run.json")
    add("--baseline", type=Path, metavar="FILE", help="what every RUN is held against (default: the first)")
    add("--fail-if-slower", type=share, metavar="5%", help="exit with 1 where a step is slower by more")
    add("--csv", type=Path, metavar="FILE", help="write a row per step there")
    add("--out", type=Path, metavar="DIR", help="write report.md and report.html there")
    return parser


def share(text: str) -> float:
    """'5%' -> 0.05."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a share like 5%, got {text!r}")
    return float(match[1]) / 100


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    paths = [*([arguments.baseline] if arguments.baseline else []), *arguments.runs]
    if len(paths) < 2:
        raise UserError("one run is compared with nothing: give a second RUN, or --baseline FILE")
    first, *others = (_record(path) for path in paths)
    pairs = [RunPair(first, other) for other in others]
    before, *after = _names(paths)
    named = dict(zip(after, pairs, strict=True))
    if (limit := arguments.fail_if_slower) is not None:
        _check_guarded(before, named)
    comparison = page(before, named, limit)
    from reports.printers.console import show
    from reports.write import write

    files = []
    if arguments.csv:
        write_csv(arguments.csv, table(before, named))
        files.append(f"Table: {arguments.csv}")
    if arguments.out:
        write(arguments.out, comparison)
        files.append(f"Report: {arguments.out / 'report.md'}, report.html")
    show(console(arguments), comparison, *files)
    if arguments.json:
        print_json({"before": before, "after": {name: as_json(pair) for name, pair in named.items()}})
    return SLOWER if limit is not None and any(beyond(pair, limit) for pair in pairs) else 0


def _record(path: Path) -> Measurement:
    record = record_in(path if path.is_file() else path / "run.json", Record)
    if not isinstance(record, Measurement) or not record.samples:
        raise UserError(f"{path} is a run of {record.kind()} without times of single steps to compare")
    return record


def _names(paths: Sequence[Path]) -> list[str]:
    """Of folders, or of files that are not named like every run's; with their place where two are alike."""
    names = [(path.parent if path.name == "run.json" else path).resolve().name for path in paths]
    return [
        name if names.count(name) == 1 else f"{number}: {path}"
        for number, (name, path) in enumerate(zip(names, paths, strict=True), start=1)
    ]


def _check_guarded(before: str, named: dict[str, RunPair]) -> None:
    """A guard that cannot judge says so: UserError where work or machine differ, or nothing is common."""
    for name, pair in named.items():
        differs = [*pair.of(Matter.WORK), *pair.of(Matter.MACHINE)]
        said = "; ".join(f"{d.what} is {d.before} there and {d.after} here" for d in differs)
        if not differs and not any(shift.ratio for shift in pair.shifts):
            said = "no step was timed in two rounds or more of both"
        if said:
            raise UserError(f"{name} cannot be held against {before}: {said}; make a baseline where it runs")


def beyond(pair: RunPair, limit: float) -> list[Shift]:
    """Steps whose whole interval lies beyond the limit, a share, in both readings."""
    return [shift for shift in pair.shifts if shift.slower_by and shift.slower_by.low > limit]


# -- what is shown --------------------------------------------------------------------------------


def page(before: str, named: dict[str, RunPair], limit: float | None = None) -> Page:
    """The answers first, then each run's steps and differences."""
    answer = [f"{name} against {before}: {said(pair, limit)}" for name, pair in named.items()]
    sections = [
        Section(
            "Question and answer",
            [Sentence(question_of(__doc__ or "")), *(Sentence(line) for line in answer)],
        )
    ]
    for number_, (name, pair) in enumerate(named.items()):
        sections.append(Section(f"Steps of {name}", list(_steps(pair, number_))))
        sections.append(Section(f"Differences of {name}", list(_differences(pair))))
    return Page(f"{', '.join(named)} against {before}", sections)


def said(pair: RunPair, limit: float | None) -> str:
    """What moved, what the ratios are of, and what a guard says."""
    words = [shift.word for shift in pair.shifts]
    counted = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) or "none"
    lines = [f"**of {len(words)} steps in both: {counted}**"]
    for matter in (Matter.WORK, Matter.MACHINE):
        if differs := pair.of(matter):
            names = ", ".join(d.what for d in differs)
            lines.append(f"Of the {matter} differs {names}: {MEANS[matter]}")
    known = [(shift.slower_by.high, shift.cell) for shift in pair.shifts if shift.slower_by]
    if limit is not None:
        slower = [f"{code(s.cell.variant)} at context {s.cell.context}" for s in beyond(pair, limit)]
        most, cell = max(known)
        open_ = f"none; at most {100 * max(most, 0.0):.1f} % is left open, by {code(cell.variant)}"
        lines.append(f"**Slower by more than {100 * limit:g} %: {', '.join(slower) or open_}**")
    return ". ".join(lines) + "."


def _steps(pair: RunPair, number_: int) -> Iterator[Block]:
    if pair.shifts:
        rows = [
            [
                code(shift.cell.variant),
                str(shift.cell.context),
                shift.word,
                number(shift.before_ms),
                number(shift.after_ms),
                interval(shift.ratio),
                interval(shift.per_read),
            ]
            for shift in pair.shifts
        ]
        heads = ("variant", "context", "word", "before, ms", "after, ms", "after / before", "in plain reads")
        yield Table(heads, rows, text_columns=3)
        yield Sentence(
            "Medians over rounds; ratios of trimmed means of their logarithms, each with its 95 % interval. "
            "The runs share no round: the last column is the same ratio in units of the plain read of the "
            "step's bytes in its round. A step is slower or faster where both say so, and moved as the reads "
            "did where only the first does."
        )
        if any(shift.ratio for shift in pair.shifts):
            yield _figure(pair, number_)
    if pair.left_out:
        by_reason: dict[str, list[str]] = {}
        for cell, reason in pair.left_out.items():
            by_reason.setdefault(reason, []).append(f"{code(cell.variant)} at {cell.context}")
        yield Bullets([f"Not compared, {reason}: {', '.join(cells)}" for reason, cells in by_reason.items()])


def _figure(pair: RunPair, number_: int) -> Figure:
    bars = [
        Bar(
            shift.cell.variant,
            {shift.word: shift.ratio.mid},
            f"{number(shift.ratio.mid)} {shift.word}",
            mark=1.0,
            group=f"context {shift.cell.context}",
            interval=(shift.ratio.low, shift.ratio.high),
        )
        for shift in sorted(pair.shifts, key=lambda shift: shift.cell.context)
        if shift.ratio
    ]
    caption = "Step after over step before, with its interval; the mark is where nothing moved."
    return Figure(f"steps-{number_}", caption, [Bars("after / before", bars)])


def _differences(pair: RunPair) -> Iterator[Block]:
    if not pair.discrepancies:
        yield Sentence("None is known.")
        return
    yield Table(("of", "what", "before", "after"), [list(row) for row in pair.discrepancies], text_columns=4)
    matters = dict.fromkeys(row.matter for row in pair.discrepancies)
    yield Bullets([f"{matter}: {MEANS[matter]}" for matter in matters])


def as_json(pair: RunPair) -> dict[str, object]:
    """Everything that is shown, with intervals as [low, mid, high]."""
    return {
        "comparable": not pair.of(Matter.WORK) and not pair.of(Matter.MACHINE),
        "differences": [row._asdict() for row in pair.discrepancies],
        "steps": [
            {
                **shift.cell._asdict(),
                "before_ms": shift.before_ms,
                "after_ms": shift.after_ms,
                "ratio": shift.ratio,
                "per_read": shift.per_read,
                "slower_by": shift.slower_by,
                "word": shift.word,
            }
            for shift in pair.shifts
        ],
        "left_out": [{**cell._asdict(), "reason": why} for cell, why in pair.left_out.items()],
    }


def table(before: str, named: dict[str, RunPair]) -> list[dict[str, object]]:
    """A row per step and run."""
    rows = []
    for name, pair in named.items():
        for shift in pair.shifts:
            row = {"before": before, "after": name, **shift.cell._asdict()}
            row |= {"before_ms": shift.before_ms, "after_ms": shift.after_ms}
            for what, reading in (("ratio", shift.ratio), ("per_read", shift.per_read)):
                row |= {f"{what}_{end}": getattr(reading, end, None) for end in Interval._fields}
            rows.append({**row, "word": shift.word})
    return rows


if __name__ == "__main__":
    run(main)
