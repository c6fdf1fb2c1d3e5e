"""Question: is a decode step faster in one version of this project than in another, side by side here?

A version is a checkout, or the interpreter of an environment that has one installed. Each runs in a process
of its own and is proven there by its own gate; single steps of both alternate, so that what the machine does
meanwhile cancels. The first runs in a third process too: below what that differs by, nothing is said.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.shared import cli
from experiments.shared.outcome import page_of, publish
from profiling.results.duel import Duel
from profiling.results.record import DuelRecord, DuelSteps, Model
from profiling.results.record.page import Block, Bullets, Table
from profiling.results.stats import Interval
from reports.numbers import interval, number
from variants.config import PRESETS
from variants.errors import UserError

EXAMPLES = ("../before .", "../before . --variant tape --context 500 --max-time 2m")
BEFORE, AGAIN, AFTER = "before", "before again", "after"
CONTESTANT = Path(__file__).parent / "shared" / "contestant.py"
SECONDS = 60.0
LONGEST_ANSWER = 1 << 16  # characters
ASKED = ("variant", "model", "precision", "context", "threads", "seed")


def parser() -> argparse.ArgumentParser:
    parser = cli.plain_parser("experiments.duel", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("before", type=Path, metavar="BEFORE", help="a checkout, or the interpreter of an environment")
    add("after", type=Path, metavar="AFTER", help="the other one")
    add("--variant", default="sdpa", metavar="NAME", help="the rung, which both must have")
    add("--model", choices=PRESETS, default="gpt2", help="its shape; weights are random")
    add("--precision", choices=cli.PRECISIONS, default="float32", help="of the first rung")
    add("--context", type=int, default=100, metavar="N", help="tokens in the cache")
    add("--threads", type=int, help="CPU threads (default: torch's)")
    add("--seed", type=int, default=0, help="of weights and prompt")
    add("--max-time", type=cli.seconds, default=SECONDS, metavar="60s", help="for the steps in alternation")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


class Contestant:
    """A side's process. Raises UserError with its own words where it cannot start, RuntimeError later."""

    def __init__(self, name: str, place: Path, asked: dict[str, object]) -> None:
        self.name, environment = name, dict(os.environ)
        interpreter = sys.executable
        if (place / "variants" / "__init__.py").is_file():
            environment["PYTHONPATH"] = str(place.resolve())
        elif place.is_file():
            interpreter = str(place.absolute())
            environment.pop("PYTHONPATH", None)
        else:
            raise UserError(f"{place}: neither a checkout of this project nor an interpreter")
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 - `close` ends it with the process
        self.process = subprocess.Popen(
            [interpreter, "-P", str(CONTESTANT), json.dumps(asked)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            text=True,
            errors="replace",
        )

    def tokens(self) -> list[int]:
        """The first tokens that it wrote, once it is proven."""
        try:
            return [int(token) for token in self._answer("tokens")]
        except (RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"{self.name}: {error}") from None

    def step_ms(self) -> float:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._answer("ms"))

    def _answer(self, name: str) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline(LONGEST_ANSWER)
        if not line:
            raise RuntimeError(f"its process ended with status {self.process.wait()}{self._last_words()}")
        try:
            answer: dict[str, Any] = json.loads(line)
            if "failed" in answer:
                raise RuntimeError(str(answer["failed"]))
            return answer[name]
        except (ValueError, KeyError, TypeError):
            raise RuntimeError(f"it says {line.strip()[:60]!r}: is it a Python with this project?") from None

    def _last_words(self) -> str:
        """What a process that ended said last: of a traceback the error."""
        self.complaints.seek(0)
        lines = self.complaints.read().decode("utf-8", "replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.complaints.close()


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    limit = PRESETS[arguments.model].n_ctx - 16
    if not 1 <= arguments.context <= limit:
        raise UserError(f"--context must be from 1 to {limit} for this model, got {arguments.context}")
    asked = {name: getattr(arguments, name) for name in ASKED}
    places = {BEFORE: arguments.before, AGAIN: arguments.before, AFTER: arguments.after}
    contestants: dict[str, Contestant] = {}
    try:
        for name, place in places.items():
            contestants[name] = Contestant(name, place, asked)
        tokens = {name: contestant.tokens() for name, contestant in contestants.items()}
        return _fight(arguments, contestants, tokens)
    finally:
        for contestant in contestants.values():
            contestant.close()


def _fight(
    arguments: argparse.Namespace, contestants: dict[str, Contestant], tokens: dict[str, list[int]]
) -> int:
    import torch

    from experiments.shared.progress import ProgressLine
    from profiling.measure.duel import Plan, Ring, fight
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder

    def failed(name: str, error: Exception) -> None:
        raise UserError(f"{name}: {error}")

    run = RunFolder.create(arguments.out, DuelRecord, "cpu")
    run.update(
        environment=environment(torch.device("cpu")),
        model=Model(arguments.model, arguments.precision, PRESETS[arguments.model]),
        variant=arguments.variant,
        context=arguments.context,
        tokens=tokens,
    )
    steps = DuelSteps()
    plan = Plan([(BEFORE, AFTER), (BEFORE, AGAIN)], [])
    ring = Ring({name: c.step_ms for name, c in contestants.items()}, arguments.seed, failed)
    with ProgressLine(arguments.quiet) as progress:
        fight(
            ring,
            plan,
            steps,
            arguments.max_time,
            None,
            keep=lambda kept: run.update(duel=kept),
            decided=lambda: False,
            progress=lambda done, look: progress("duel", done, look),
        )
    record = run.record
    measured: list[Block] = [table(record), Bullets(notes(record))]
    page = page_of(__doc__ or "", run, answer(record), measured)
    ratios = {"ratio": ratio(record, AFTER), "again": ratio(record, AGAIN)}
    return publish(arguments, run, page, **ratios, word=word(record))


# -- what is said ---------------------------------------------------------------------------------


def ratio(record: DuelRecord, name: str) -> Interval | None:
    """The step of this contestant over that of the first; None for fewer than two blocks."""
    duel = Duel(record.duel)
    share = duel.drop_share(BEFORE, name)
    if share is None:
        return None
    low, mid, high = share.interval(duel.confidence)
    return Interval(1 - high, 1 - mid, 1 - low)


def word(record: DuelRecord) -> str:
    """Slower or faster where the whole interval lies beyond 1 and what two equal processes differ by."""
    change, noise = ratio(record, AFTER), ratio(record, AGAIN)
    if change is None or noise is None:
        return "unknown"
    if change.low > max(1.0, noise.mid):
        return "slower"
    return "faster" if change.high < min(1.0, noise.mid) else "not seen to differ"


def answer(record: DuelRecord) -> str:
    """The word with its numbers."""
    where = f"a step of {record.variant} at context {record.context}"
    return f"{where} is {word(record)}: after / before {interval(ratio(record, AFTER))}"


def table(record: DuelRecord) -> Table:
    """Both contrasts of the duel."""
    duel, rows = Duel(record.duel), []
    for name in (AFTER, AGAIN):
        means = duel.means(BEFORE, name)
        ms = [number(median(column)) for column in means.T.tolist()] if len(means) else ["", ""]
        rows.append([name, str(len(means)), *ms, interval(ratio(record, name))])
    heads = ("against before", "blocks", "before, ms", "it, ms", "it / before")
    return Table(heads, rows)


def notes(record: DuelRecord) -> list[str]:
    """What the numbers rest on."""
    same = len({tuple(tokens) for tokens in record.tokens.values()}) == 1
    return [
        "each side is proven by its own gate, over few tokens: `experiments.floor` proves it whole",
        "both write the same tokens"
        if same
        else "they do NOT write the same tokens: it is not the same step",
    ]


if __name__ == "__main__":
    cli.run(main)
