"""Question: how far are the predictions from decode steps that others measured?

Takes a table of published steps (the columns of `experiments.predict --table`, and `step_ms`). The constants
are fitted without one device (or one model) and predict its rows, for every device and model in turn; eager
steps also after one step of the same machine, as `--anchor` does it. `--out` writes the page
docs/validation.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from experiments.shared.cli import console, plain_parser, print_json, run
from profiling.forecast import table
from profiling.forecast.constants import Constant, Values
from profiling.forecast.engines import Mode
from profiling.forecast.fit import (
    WITHIN,
    Held,
    Measured,
    after_an_anchor,
    anchored_setup,
    cross_validate,
    fit,
    near_in_hindsight,
    rows_in_range,
    with_one_kind_of_host,
)
from profiling.forecast.step import Limit
from profiling.results.folder import write_atomically
from profiling.results.record.page import Block, Page, Section, Sentence, Table
from reports.printers.console import show
from reports.printers.markdown import markdown
from variants.errors import UserError

EXAMPLES = ("steps.csv", "steps.csv --out docs/validation.md")
GOAL, COVERED = 0.8, 0.9
LONGEST = 4200  # tokens of context of the rows that the goal is about
WORST = 12  # rows named
EAGER_HF = "eager-hf"  # the mode that misses the goal
FOLDS: dict[str, Callable[[Measured], str]] = {
    "Without the device": lambda row: row.device,
    "Without the model": lambda row: row.model,
}


def in_goal(row: Measured) -> bool:
    """Whether the goal is about this row."""
    return row.native and row.context <= LONGEST


def groups(held: Iterable[Held]) -> dict[tuple[str, str], list[Held]]:
    """(mode, kind) -> rows. The goal is about native precision and short contexts; the rest is shown beside
    it."""
    by = defaultdict(list)
    for one in held:
        kind = "goal" if in_goal(one.row) else "packed or long"
        by[one.row.mode, kind].append(one)
    return dict(sorted(by.items(), key=lambda item: (item[0][1] != "goal", item[0])))


def share(held: Sequence[Held]) -> float:
    """Share of the steps whose prediction is near."""
    return sum(one.near for one in held) / len(held)


def inside(held: Sequence[Held]) -> float:
    """Share of the steps that lie in the intervals of their predictions."""
    return sum(one.covered for one in held) / len(held)


def accuracy(title: str, held: Sequence[Held]) -> Table:
    """By mode: how many rows are near, how many in the interval, and the ratios of predicted to measured."""
    rows = []
    for (mode, kind), some in groups(held).items():
        ratios = sorted(one.ratio for one in some)
        ends = (ratios[0], ratios[len(ratios) // 2], ratios[-1])
        name = mode if kind == "goal" else f"{mode}, {kind}"
        shares = (f"{share(some):.0%}", f"{inside(some):.0%}")
        rows.append((name, str(len(some)), *shares, *(f"{ratio:.2f}" for ratio in ends)))
    within = f"within {WITHIN:.0%}"
    heads = ("mode", "rows", within, "in interval", "lowest ratio", "median", "highest")
    return Table(heads, rows, title=title)


def answers(by: dict[str, list[Held]]) -> Iterator[Sentence]:
    """A sentence for each fold: how much of the goal is reached, and in which modes it is not."""
    for name, held in by.items():
        goal = {mode: some for (mode, kind), some in groups(held).items() if kind == "goal"}
        missed = {mode: some for mode, some in goal.items() if share(some) < GOAL}
        misses = ", ".join(f"{mode} ({share(some):.0%} of {len(some)})" for mode, some in missed.items())
        everything = [one for some in goal.values() for one in some]
        yield Sentence(
            f"**{name}**: {share(everything):.0%} of {len(everything)} rows within {WITHIN:.0%}, "
            f"{inside(everything):.0%} in their intervals; at least {GOAL:.0%} in "
            f"{len(goal) - len(missed)} of {len(goal)} modes{f', not in {misses}' if misses else ''}."
        )


def worst(held: Sequence[Held]) -> Table:
    """The rows of the goal that are furthest off."""
    short = [one for one in held if in_goal(one.row)]
    short.sort(key=lambda one: -abs(one.ratio - 1))
    rows = [
        (
            one.row.id,
            one.row.source,
            one.row.mode,
            one.row.device,
            f"{one.row.step_ms:.3g}",
            f"{one.ratio:.2f}",
        )
        for one in short[:WORST]
    ]
    heads = ("row", "source", "mode", "device", "measured, ms", "ratio")
    return Table(heads, rows, text_columns=4, title="Furthest off, predicted without their device")


def machines(held: Sequence[Held], values: Values) -> Table:
    """Eager steps by the machine that launched them: the host time that its shortest context shows, where the
    host sets that step, and how far off its rows were while nothing was known of it."""
    by: dict[tuple[str, str], list[Held]] = defaultdict(list)
    for one in held:
        if one.row.setup.mode is Mode.EAGER:
            by[one.row.source, one.row.setup.device.name].append(one)
    rows = []
    for (source, device), some in sorted(by.items()):
        shortest = min(some, key=lambda one: one.row.context)
        first, ratios = shortest.row, sorted(one.ratio for one in some)
        host_us = anchored_setup(first.job, first.setup, first.step_ms, values).host_us
        host = f"{host_us:.1f}" if host_us and shortest.prediction.sets_it is Limit.HOST else "-"
        rows.append((source, device, host, str(len(some)), f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"))
    heads = ("source", "device", "us per launch", "rows", "lowest ratio", "highest")
    return Table(heads, rows, text_columns=2, title="Eager steps by machine, predicted without their device")


def without_an_anchor(rows: Sequence[Measured], values: Values) -> Table:
    """How many eager steps of Hugging Face are near by each way to do without one step of their machine."""
    theirs = [row for row in rows if row.mode == EAGER_HF]
    goal = [row for row in theirs if in_goal(row)]
    ways = {
        "older and newer hosts, as above": (rows, "cauchy"),
        "older and newer hosts, least squares": (rows, "linear"),
        "older and newer hosts, from these steps alone": (theirs, "linear"),
        "one kind of host": (with_one_kind_of_host(rows), "linear"),
        "one kind of host, from these steps alone": (with_one_kind_of_host(theirs), "linear"),
    }
    lines = []
    for way, (some, loss) in ways.items():
        held = [cross_validate(some, fold, loss) for fold in FOLDS.values()]
        shares = [share([one for one in by if one.row.mode == EAGER_HF and in_goal(one.row)]) for by in held]
        lines.append((way, *(f"{value:.0%}" for value in shares)))
    for way, some in (("older and newer hosts", goal), ("one kind of host", with_one_kind_of_host(goal))):
        best = f"{near_in_hindsight(some, values) / len(goal):.0%}"
        lines.append((f"{way}, with the number that suits most of these rows", best, best))
    heads = ("what is assumed of the host", *(name.lower() for name in FOLDS))
    title = f"{EAGER_HF} without an anchor: how many of {len(goal)} rows are within {WITHIN:.0%}"
    return Table(heads, lines, title=title)


def constants(refitted: Values) -> Table:
    """Every constant: what its source says, what the rows make of it, and what is committed."""
    rows = [
        (
            c.name,
            c.value.unit,
            c.value.source,
            f"{c.value.prior:g}",
            f"{refitted[c]:.3g}",
            f"{c.value.fitted:g}",
        )
        for c in Constant
    ]
    heads = ("constant", "unit", "source", "prior", "fitted now", "committed")
    return Table(heads, rows, text_columns=3, title="Constants")


def page(path: Path) -> tuple[Page, dict[str, list[Held]]]:
    rows, reasons = rows_in_range(table.read(path))
    if not rows:
        raise UserError(
            f"{path}: no row of it is in range, so there is nothing to hold the predictions against"
        )
    by = {name: cross_validate(rows, fold) for name, fold in FOLDS.items()}
    if steps := after_an_anchor(rows):
        by["After one step of the machine"] = steps
    refitted = fit(rows)
    out = [(reason, str(count)) for reason, count in reasons.most_common()]
    sections = [
        Section("How far off", [*answers(by)]),
        Section("By mode", [accuracy(f"{name}, by mode", held) for name, held in by.items()]),
        Section("Which rows", [worst(by["Without the device"])]),
        Section("Whose host", [*_hosts(rows, by["Without the device"], refitted)]),
        Section("What is out of range", [Table(("reason", "rows"), out)] if out else []),
        Section("What is assumed", _assumptions(refitted)),
    ]
    return Page("Predictions against published steps", sections), by


def _hosts(rows: Sequence[Measured], held: Sequence[Held], refitted: Values) -> Iterator[Block]:
    yield Sentence(
        "An eager step is as fast as its host, which hardly a source names. A machine that is faster or "
        "slower than others beside such devices is wrong in all its rows, and right after one of them "
        "(the anchor); no constant of this model could know it."
    )
    yield machines(held, refitted)
    if any(row.mode == EAGER_HF and in_goal(row) for row in rows):
        yield without_an_anchor(rows, refitted)
        yield Sentence(
            "The last two rows are chosen with these steps in sight: no number for a kind of host can do "
            "better. The others are what the rest of the table tells of such a host."
        )


def _assumptions(refitted: Values) -> list[Block]:
    return [
        Sentence(
            "A constant is fitted to the rows and held to its prior, which comes from its source alone. "
            "Devices of one chip are left out together, and so are models of one shape. Rows of one source, "
            "model and mode count as one, and eager rows of one source."
        ),
        constants(refitted),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = plain_parser("experiments.validate", __doc__ or "", EXAMPLES)
    parser.add_argument("table", type=Path, metavar="FILE.csv", help="published steps")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="write the page there")
    arguments = parser.parse_args(argv)
    content, by = page(arguments.table)
    show(console(arguments), content)
    if arguments.out:
        write_atomically(arguments.out, markdown(content).encode())
    if arguments.json:
        print_json(
            {
                name: {
                    f"{mode}, {kind}": {"rows": len(some), "near": share(some), "covered": inside(some)}
                    for (mode, kind), some in groups(held).items()
                }
                for name, held in by.items()
            }
        )


if __name__ == "__main__":
    run(main)
