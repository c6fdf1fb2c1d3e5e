"""Question: does anything that a user hands in end in a traceback, a hang, or a write outside --out?

Makes records, traces, config.json files, safetensors, indices, tokenizers and command lines that are wrong in
seeded ways, and reads each as the commands do, in processes that are watched: each must be read or refused in
one line within 10 s and 2 GB, nothing may be executed, and nothing written but where results go. With --kills
floor runs of a tiny model are killed at random moments: each must render, go on, and lose nothing. Whatever
fails is kept in the run folder, and the exit code is 1. Where it is stopped, by Ctrl-C or --max-time, the
report has the counts so far.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from experiments.shared import cli
from experiments.shared.outcome import page_of, publish
from profiling.results.record import Fuzzed, FuzzRecord
from profiling.results.record.page import Block, Bullets, Table
from variants.errors import UserError

if TYPE_CHECKING:
    from experiments.shared.fuzzing import Job, Outcome
    from experiments.shared.progress import ProgressLine
    from profiling.results.folder import RunFolder

EXAMPLES = (
    *("", "--inputs 500 --seed 7", "--kind trace --first 123 --inputs 1", "--inputs 0 --kills 100"),
    "--inputs 0 --kills 100 --max-time 8m",
)
INPUTS = 10_000
EVERY = 50  # inputs between two lines of progress


def parser() -> argparse.ArgumentParser:
    parser = cli.plain_parser("experiments.fuzz", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("--inputs", type=int, default=INPUTS, metavar="N", help="of all kinds together")
    add("--kind", action="append", metavar="NAME,NAME", help="only these (default: all, in turn)")
    add("--first", type=int, default=0, metavar="N", help="number of each kind's first input")
    add("--kills", type=int, default=0, metavar="N", help="kill a tiny floor run at N moments")
    add("--seed", type=int, default=0, help="of everything that is drawn")
    add(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes (default: one a core)",
    )
    add("--max-time", type=cli.seconds, metavar="8m", help="stop then, with the counts so far (no default)")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if min(arguments.inputs, arguments.first, arguments.kills) < 0 or arguments.workers < 1:
        raise UserError("--inputs, --first and --kills count from 0, --workers from 1")
    jobs = jobs_of(arguments)
    from profiling.results.folder import RunFolder

    run = RunFolder.create(arguments.out, FuzzRecord, "any")
    run.update(seed=arguments.seed, asked_inputs=len(jobs), asked_kills=arguments.kills)
    try:
        _try_all(arguments, jobs, run)
    finally:
        record = run.record
        page = page_of(__doc__ or "", run, answer(record), [*tables(record), *_faults(record)])
        fields = {"kinds": record.kinds, "kills": record.kills, "faults": record.faults}
        publish(arguments, run, page, not record.partial, **fields)
    return 1 if record.faults else 0


def _try_all(arguments: argparse.Namespace, jobs: Sequence[Job], run: RunFolder[FuzzRecord]) -> None:
    """All inputs, then the kills, until the time is over."""
    from experiments.shared.progress import ProgressLine

    end = None if arguments.max_time is None else time.monotonic() + arguments.max_time

    def over() -> bool:
        return end is not None and time.monotonic() >= end

    with ProgressLine(arguments.quiet) as progress, TemporaryDirectory() as scratch:
        if jobs:
            _read(run, jobs, arguments.workers, Path(scratch), progress, over)
        if arguments.kills and not over():
            _kill(run, Path(scratch) / "kills", progress, over)


def jobs_of(arguments: argparse.Namespace) -> list[Job]:
    """Inputs of the chosen kinds in turn. Raises UserError for an unknown kind, or without a clone."""
    from experiments.shared.fuzzing import Job
    from experiments.shared.hostile import DATA, KINDS

    kinds = cli.names(arguments.kind) or list(KINDS)
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UserError(f"unknown kind {unknown[0]}; known: {', '.join(KINDS)}")
    if not DATA.is_dir():
        raise UserError(f"{DATA} is not there: records and traces are changed that only a clone has")
    numbers = range(arguments.inputs)
    return [Job(kinds[n % len(kinds)], arguments.seed, arguments.first + n // len(kinds)) for n in numbers]


def keep(run: Path, outcome: Outcome, folder: Path) -> None:
    """Keep the input that failed and its message in the run folder."""
    target = run / "failures" / f"{outcome.job.kind}-{outcome.job.number}".replace(" ", "-")
    for name in ("input", "out"):
        shutil.copytree(folder / name, target / name, dirs_exist_ok=True)
    (target / "said.txt").write_text(outcome.message, encoding="utf-8", errors="backslashreplace")


def fault(outcome: Outcome) -> str:
    """The flags that make a failed input again, and the last line of its message."""
    job = outcome.job
    last = (outcome.message.strip().splitlines() or ["nothing"])[-1][:200].encode(errors="replace").decode()
    return f"--kind '{job.kind}' --seed {job.seed} --first {job.number} --inputs 1: {last}"


def counts(outcomes: Sequence[Outcome]) -> dict[str, Fuzzed]:
    by_kind = {}
    for kind in dict.fromkeys(outcome.job.kind for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome.job.kind == kind]
        states = Counter(outcome.status for outcome in of_kind)
        slowest_s = max(outcome.seconds for outcome in of_kind)
        by_kind[kind] = Fuzzed(states["read"], states["refused"], states["failed"], slowest_s)
    return by_kind


def _read(
    run: RunFolder[FuzzRecord],
    jobs: Sequence[Job],
    workers: int,
    scratch: Path,
    progress: ProgressLine,
    over: Callable[[], bool],
) -> None:
    from experiments.shared.fuzzing import run_all

    def failed(outcome: Outcome, folder: Path) -> None:
        keep(run.path, outcome, folder)

    outcomes: list[Outcome] = []
    try:
        for outcome in run_all(jobs, workers, scratch, failed):
            outcomes.append(outcome)
            if len(outcomes) % EVERY == 0 or len(outcomes) == len(jobs):
                progress("inputs", len(outcomes), len(jobs))
            if over():
                break
    finally:
        run.update(kinds=counts(outcomes), faults=[fault(o) for o in outcomes if o.status == "failed"])


def _kill(run: RunFolder[FuzzRecord], folder: Path, progress: ProgressLine, over: Callable[[], bool]) -> None:
    from experiments.shared.kills import kill_runs

    asked, inputs_faults = run.record.asked_kills or 0, run.record.faults
    progress("kills", 0, asked)
    for killed in islice(kill_runs(run.record.seed, folder), asked):
        faults = [text.encode(errors="replace").decode() for text in killed.faults]
        run.update(kills=dict(killed.moments), whole=killed.whole, faults=[*inputs_faults, *faults])
        run.save()
        progress("kills", run.record.killed, asked)
        if over():
            break


# -- what is shown --------------------------------------------------------------------------------


def answer(record: FuzzRecord) -> str:
    """How many inputs and kills there were, of how many where it was stopped, and how many faults."""
    what = [
        f"{done:,}{f' of {asked:,}' if asked and done < asked else ''} {kind}"
        for done, asked, kind in (
            (record.inputs, record.asked_inputs, "inputs"),
            (record.killed, record.asked_kills, "kills"),
        )
    ]
    stopped = " (partial: it was stopped)" if record.partial else ""
    faults = f"{len(record.faults)} faults" if record.faults else "no fault"
    return f"{', '.join(what)}, seed {record.seed}{stopped}: {faults}"


def tables(record: FuzzRecord) -> list[Block]:
    """Tables of what became of the inputs of each kind, and of where runs were killed."""
    rows = [
        (kind, f"{n.inputs:,}", f"{n.read:,}", f"{n.refused:,}", f"{n.failed:,}", f"{n.slowest_s:.1f}")
        for kind, n in record.kinds.items()
    ]
    heads = ("kind", "inputs", "read", "refused in one line", "failed", "slowest, s")
    blocks: list[Block] = [Table(heads, rows, title="Hostile inputs")] if rows else []
    if record.kills:
        moments = [(moment, str(count)) for moment, count in sorted(record.kills.items())]
        moments.append(("went on until they were whole", str(record.whole)))
        blocks.append(Table(("killed", "runs"), moments, title="Killed runs"))
    return blocks


def _faults(record: FuzzRecord) -> list[Block]:
    return [Bullets(record.faults)] if record.faults else []


if __name__ == "__main__":
    cli.run(main)
