"""Question: what sets the step in this trace, and what would replaying it as one graph buy?

Reads Kineto and Chrome traces of anybody's PyTorch, vLLM or SGLang run (CUDA, ROCm, XPU, CPU; plain or
gzip) and SQLite exports of Nsight Systems, says whether the device waits for the host and why, predicts the
step as one graph replay, or says that the trace cannot tell. Runs nothing from the trace. With --out it
writes report.md and report.html with a picture of one step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.shared.cli import console, plain_parser, print_json, run
from variants.errors import UserError

if TYPE_CHECKING:
    from profiling.analysis.explanation import Explanation
    from profiling.results.record.pictures import Steps

LARGE_BYTES = 8 << 20
"""Of the file as it is on disk: below it, reading takes about a second."""
EXAMPLES = (
    "run.pt.trace.json.gz",
    "run.pt.trace.json.gz --step 'decode step' --out explained",
    "graph.json.gz --against eager.json.gz",
    "graph.json.gz --names-from eager.json.gz",
    "run.pt.trace.json.gz --redact to_share.json.gz",
    "*.json.gz --json",
)


def parser() -> argparse.ArgumentParser:
    parser = plain_parser("experiments.explain", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("files", nargs="+", type=Path, metavar="FILE", help="trace, *.json or *.json.gz, or nsys's *.sqlite")
    add("--step", metavar="NAME|REGEX", help="the annotation, op or function that brackets a step")
    add("--against", type=Path, metavar="FILE", help="a second trace to compare the (one) first with")
    eager = "an eager trace of the same model: names the kernels that graphs replay"
    add("--names-from", type=Path, metavar="EAGER", help=eager)
    add("--redact", type=Path, metavar="OUT", help="write the trace without names of hosts, paths, stacks")
    add("--out", type=Path, metavar="DIR", help="write report.md, report.html and explain.json there")
    add("--top", type=int, default=5, metavar="N", help="length of the lists")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    _check(arguments)
    from profiling.analysis.comparison import compare
    from profiling.analysis.explanation import as_json, explain_ranks
    from profiling.trace.redaction import redact

    paths = [*arguments.files, *([arguments.against] if arguments.against else [])]
    answer: dict[str, Any] = {"files": []}
    drawn: list[Steps | None] = []
    compared: list[Explanation] = []
    eager = _eager(arguments)
    for path, name in zip(paths, _names(paths), strict=True):  # one trace in memory, two to compare
        progress = _progress(arguments, path)
        ranks = explain_ranks(path, arguments.step, progress=progress, names_from=eager)
        answer["files"] += [as_json(rank, name, arguments.top) for rank in ranks]
        if arguments.out:
            drawn += [_step_drawn(rank) for rank in ranks]
        if arguments.against:
            compared.append(ranks[0])
        if arguments.redact and path == arguments.files[0]:
            names = frozenset(str(name) for rank in ranks for name in rank.steps.table["name"])
            redact(path, arguments.redact, names)
    if compared:
        answer["comparison"] = compare(*compared).as_json()
    from reports.explain import keep, page
    from reports.printers.console import show_from_the_top

    explained, files = page(answer, drawn), []
    if arguments.out:
        keep(arguments.out, answer, explained)
        files.append(f"Report: {arguments.out / 'report.md'}, report.html")
    show_from_the_top(console(arguments), explained, *files)
    if arguments.json:
        print_json(answer)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.against and len(arguments.files) != 1:
        raise UserError("--against compares one trace with another; give one FILE before it")
    if arguments.redact and len(arguments.files) != 1:
        raise UserError("--redact writes one trace; give one FILE")
    if arguments.top < 0:
        raise UserError(f"--top {arguments.top}: a length cannot be negative")


def _step_drawn(rank: Explanation) -> Steps | None:
    """The median of the steps that are read."""
    from profiling.analysis.timeline import median_step

    return median_step(rank.trace, rank.steps, rank.attribution, judged=rank.reading.mean.steps)


def _eager(arguments: argparse.Namespace) -> Explanation | None:
    """The trace of --names-from; UserError where it has no kernel that could name one."""
    from profiling.analysis.explanation import explain

    path = arguments.names_from
    if path is None:
        return None
    eager = explain(path, progress=_progress(arguments, path))
    if eager.device is None:
        raise UserError(f"--names-from {path}: no device events, so no kernels; give an eager trace of them")
    return eager


def _names(paths: Sequence[Path]) -> list[str]:
    """File names, with their folders only where two would be the same."""
    names = [path.name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]


class Progress:
    """Follows the reading of a large file on stderr: a line that changes on a terminal, a few lines
    elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self.name, self.said = path.name, -1

    def __call__(self, done: float) -> None:
        live = sys.stderr.isatty()
        at = int(done * (100 if live else 4))
        if at > self.said:
            self.said = at
            print(
                f"reading {self.name}: {done:.0%}", end="\r" if live and done < 1 else "\n", file=sys.stderr
            )


def _progress(arguments: argparse.Namespace, path: Path) -> Progress | None:
    return (
        None if arguments.quiet or not path.is_file() or path.stat().st_size < LARGE_BYTES else Progress(path)
    )


if __name__ == "__main__":
    run(main)
