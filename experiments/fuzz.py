"""Question: does anything that a user hands in end in a traceback, a hang, or a write outside --out?

Makes records, traces, config.json files, safetensors, indices, tokenizers and command lines that are wrong in
seeded ways, and reads each as the commands do, in processes that are watched: each must be read or refused in
one line within 10 s and 2 GB, nothing may be executed, and nothing written but where results go. With --kills
floor runs of a tiny model are killed at random moments: each must render, go on, and lose nothing. Whatever
fails is kept in the run folder, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections import Counter
from collections.abc import Sequence
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

EXAMPLES = ("", "--inputs 500 --seed 7", "--kind trace --first 123 --inputs 1", "--inputs 0 --kills 100")
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
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if min(arguments.inputs, arguments.first, arguments.kills) < 0 or arguments.workers < 1:
        raise UserError("--inputs, --first and --kills count from 0, --workers from 1")
    jobs = jobs_of(arguments)
    from experiments.shared.fuzzing import run_all
    from experiments.shared.progress import ProgressLine
    from profiling.results.folder import RunFolder

    run = RunFolder.create(arguments.out, FuzzRecord, "any")
    run.update(seed=arguments.seed)
    outcomes: list[Outcome] = []
    with ProgressLine(arguments.quiet) as progress, TemporaryDirectory() as scratch:

        def failed(outcome: Outcome, folder: Path) -> None:
            keep(run.path, outcome, folder)

        for outcome in run_all(jobs, arguments.workers, Path(scratch), failed) if jobs else ():
            outcomes.append(outcome)
            if len(outcomes) % EVERY == 0 or len(outcomes) == len(jobs):
                progress("inputs", len(outcomes), len(jobs))
        run.update(kinds=counts(outcomes), faults=[fault(o) for o in outcomes if o.status == "failed"])
        if arguments.kills:
            _kill(run, arguments, Path(scratch) / "kills", progress)
    record = run.record
    page = page_of(__doc__ or "", run, answer(record), [*tables(record), *_faults(record)])
    publish(arguments, run, page, kinds=record.kinds, kills=record.kills, faults=record.faults)
    return 1 if record.faults else 0


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


def _kill(
    run: RunFolder[FuzzRecord], arguments: argparse.Namespace, folder: Path, progress: ProgressLine
) -> None:
    from experiments.shared.kills import kill_runs

    killed = kill_runs(
        arguments.kills, arguments.seed, folder, lambda n: progress("kills", n, arguments.kills)
    )
    faults = [text.encode(errors="replace").decode() for text in killed.faults]
    run.update(kills=dict(killed.moments), whole=killed.whole, faults=[*run.record.faults, *faults])


# -- what is shown --------------------------------------------------------------------------------


def answer(record: FuzzRecord) -> str:
    inputs, kills = sum(kind.inputs for kind in record.kinds.values()), sum(record.kills.values())
    what = f"{inputs:,} inputs, {kills:,} kills, seed {record.seed}"
    return f"{what}: {len(record.faults)} faults" if record.faults else f"{what}: no fault"


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
