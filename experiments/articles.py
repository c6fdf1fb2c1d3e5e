"""Question: which of the four articles' claims hold on this machine?

Runs every experiment of the articles, in quick mode unless `--full`, each in its own process, and merges what
their run folders say of the claims into one table: article, claim, published value, value here, holds or not,
why. Figures that no run measured stand in it too, as not measured.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from experiments.shared import cli
from experiments.shared.parts import Part, run_part
from experiments.shared.published import PUBLISHED
from profiling.results.record import ArticlesRecord, Claim, ClaimKind, ExperimentResult, Model, Record
from profiling.results.record.page import Block, Bullets, Page, Section, Sentence, Table
from reports.experiment import claim_counts, claims_sentence, claims_table, titles, where
from variants.errors import UserError

ROOT = Path(__file__).parent.parent
EXAMPLES = ("", "--model gpt2-medium --only work,context", "--full")
# in the order of the report; those that only compute know no device
COMPUTED = ("sizing",)
ORDER = (
    "work",
    "sizing",
    "throughput",
    "context",
    "memory",
    "batch",
    "purity",
    "equality",
    "faults",
    "paging",
)
PASSED_ON = ("device", "model", "precision", "seed", "threads")
TITLES = {
    ClaimKind.ARITHMETIC: "Arithmetic",
    ClaimKind.STATEMENT: "Statements",
    ClaimKind.ELSEWHERE: "What the authors' machines measured",
}
SAID = {
    ClaimKind.ARITHMETIC: "It follows from formulas, and must read the same on every machine.",
    ClaimKind.STATEMENT: "Measured here, each by a rule that could refute it.",
    ClaimKind.ELSEWHERE: "Shown beside what was measured here: another machine is neither right nor wrong.",
}


@dataclass(frozen=True)
class Done:
    """One experiment's process: its claims, its page and its verdict, or why there are none."""

    name: str
    claims: Sequence[Claim] = ()
    page: Page | None = None
    answer: str = ""
    failure: str = ""

    @property
    def verdict(self) -> str:
        return f"failed: {self.failure}" if self.failure else self.answer


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser("experiments.articles", __doc__ or "", EXAMPLES, used=())
    parser.set_defaults(model=None, precision=None)  # each experiment has its own
    parser.add_argument("--only", action="append", metavar="NAME,NAME", help=f"of {', '.join(ORDER)}")
    parser.add_argument("--full", action="store_true", help="not in quick mode: every size, for hours")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.full and arguments.quick:
        raise UserError("--full and --quick exclude each other (quick is what is done without either)")
    for name, default in (("context", None), ("steps", None), ("rounds", None), ("batch", 1)):
        if getattr(arguments, name) != default:
            raise UserError(f"--{name} is for the single experiments; each has its own sizes here")
    names = _chosen(cli.names(arguments.only))
    from experiments.shared.outcome import publish
    from experiments.shared.progress import ProgressLine
    from experiments.shared.setup import device_for
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder

    device = device_for(arguments.device)
    run = RunFolder.create(arguments.out, ArticlesRecord, device.type)
    run.update(environment=environment(device), model=Model(arguments.model or "each experiment's own model"))
    done = []
    with ProgressLine(arguments.quiet) as progress:
        for number, name in enumerate(names):
            progress(name, number, len(names))
            done.append(experiment(name, arguments, run.path / "runs"))
    results = {d.name: ExperimentResult(d.verdict, d.failure) for d in done}
    run.update(claims=merged_claims(done), experiments=results)
    publish(
        arguments, run, page(run.record, done), counts=claim_counts(run.record.claims), experiments=results
    )
    return 1 if any(d.failure for d in done) else 0


def _chosen(only: Sequence[str]) -> list[str]:
    """The experiments of these names, or all, as far as they exist here."""
    unknown = [name for name in only if name not in ORDER]
    if unknown:
        raise UserError(f"--only {', '.join(unknown)}: expected of {', '.join(ORDER)}")
    here = Path(__file__).parent
    return [name for name in ORDER if (name in only or not only) and (here / f"{name}.py").exists()]


def experiment(name: str, arguments: argparse.Namespace, out: Path) -> Done:
    """Run one experiment in a process of its own: a first matmul is the first, a crash is its own."""
    flags = ["--json", "--quiet", "--out", str(out)]
    if name not in COMPUTED:
        values = {flag: getattr(arguments, flag) for flag in PASSED_ON}
        flags += [
            part for flag, value in values.items() if value is not None for part in (f"--{flag}", str(value))
        ]
        flags += [] if arguments.full else ["--quick"]
    command = (sys.executable, "-P", "-m", f"experiments.{name}", *flags)  # ours, whatever folder this is
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    out.mkdir(exist_ok=True)
    result = run_part(Part(name, command, math.inf), Path.cwd(), None, out / f"{name}.log", environment)
    if result.status != "passed":
        return Done(name, failure=result.reason)
    from profiling.results.folder import RunFolder

    record = RunFolder.load(Path(result.output["run"]), Record).record
    return Done(name, record.claims, record.page, result.output["verdict"])


def merged_claims(done: Iterable[Done]) -> list[Claim]:
    """Every published figure once, in the articles' order: as found, or as not measured."""
    by_key = {claim.key: replace(claim, experiment=d.name) for d in done for claim in d.claims}
    return sorted((by_key.get(key) or _not_measured(key) for key in PUBLISHED), key=lambda c: c.article)


def _not_measured(key: str) -> Claim:
    figure = PUBLISHED[key]
    return Claim(
        key=key,
        article=figure.article,
        section=figure.section,
        claim=figure.claim,
        published=figure.value,
        here="",
        holds=None,
        why="left out by --quick, by this device or model, or asks for what is not here (a file of requests)",
        kind=figure.kind,
    )


def page(record: ArticlesRecord, done: Sequence[Done]) -> Page:
    """The answer, what differs, then the three kinds of claims, and the figures of every experiment."""
    claims = record.claims
    answer: list[Block] = [
        Bullets([f"`{d.name}`: {d.verdict}" for d in done]),
        Sentence(f"**{claims_sentence(claims)}**"),
        titles(claims),
    ]
    differ = [(str(c.article), c.claim, c.published, c.here, c.why) for c in claims if c.holds is False]
    sections = [Section("Answer", answer)]
    if differ:
        table = Table(("article", "claim", "published", "here", "why"), differ, 5)
        sections.append(Section("What does not hold here", [table]))
    for kind, title in TITLES.items():
        rows = [claim for claim in claims if claim.kind is kind]
        sections.append(Section(title, [Sentence(SAID[kind]), claims_table(rows)], detail=True))
    for d in done:
        if d.page:
            blocks: list[Block] = [Sentence(f"**{d.verdict}**"), *d.page.sections[1].blocks]
            sections.append(Section(f"experiments.{d.name}", blocks, detail=True))
    return Page(f"The articles' claims: {where(record)}", sections)


if __name__ == "__main__":
    cli.run(main)
