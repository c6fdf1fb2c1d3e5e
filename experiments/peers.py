"""Question: is the last rung as fast as the engines that others build for this work?

Measures Hugging Face, llama.cpp, CTranslate2, ONNX Runtime and OpenVINO, as far as they are installed (see
docs/peers.md), beside our rungs: `experiments.floor --variant NAME,NAME` with a page of its own. One model,
one text, greedy steps of one token in interleaved rounds, every engine in a process of its own. Says how many
times as long they take as our one launch at the same precision.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.shared import cli
from experiments.shared.measured import model_on_device, proven_runner, with_flags
from experiments.shared.outcome import page_of, publish
from profiling.peers.engines import engine_rungs
from profiling.results.engines import AGAINST, EngineRow, fastest_others, rows
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import Entry, PeersRecord, Workload
from profiling.results.record.page import Block, Bullets, Figure, Table
from profiling.results.record.pictures import Bar, Bars
from reports.numbers import interval, number, percent
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError
from variants.ladder import ladder
from variants.spec import Variant

if TYPE_CHECKING:
    from profiling.measure.runner import Runner

EXAMPLES = ("", "--quick", "--peer llama.cpp,transformers --context 16,900")
OURS = ("cat", "sdpa", "aoti", "onelaunch", "onelaunch-bf16", "onelaunch-int8", "onelaunch-int4")
USUAL = Workload(contexts=(16,), steps=8, warm_up=3, rounds=20)
QUICK_ROUNDS = 4


def parser() -> argparse.ArgumentParser:
    parser = cli.plain_parser("experiments.peers", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("--peer", action="append", metavar="NAME,NAME", help="which engines (default: all installed)")
    add("--model", choices=PRESETS, default="gpt2", help="its shape; weights are random")
    add("--context", type=cli.integers, default=USUAL.contexts, metavar="N,N", help="tokens of the prompt")
    add("--steps", type=int, help=f"timed steps per visit (default {USUAL.steps})")
    add(
        "--rounds",
        type=int,
        help=f"each visits every engine once, in shuffled order (default {USUAL.rounds})",
    )
    add("--threads", type=int, help="of every engine (default: torch's)")
    add("--seed", type=int, default=0, help="of weights, text and order")
    add("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, and fewer proofs")
    add("--folder", type=Path, help="where conversions are kept (default: in the cache)")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    parser.set_defaults(device="cpu", precision="float32")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    workload = _workload(arguments, PRESETS[arguments.model])
    variants = chosen(cli.names(arguments.peer), arguments.folder)
    model, _ = model_on_device(arguments)

    def measure(runner: Runner[PeersRecord]) -> None:
        runner.measure()

    runner = proven_runner(arguments, PeersRecord, model, workload, variants, measure)
    return end(arguments, __doc__ or "", runner.run)


def _workload(arguments: argparse.Namespace, config: GPTConfig) -> Workload:
    from msgspec.structs import replace

    rounds = QUICK_ROUNDS if arguments.quick else USUAL.rounds
    contexts = tuple(sorted(set(arguments.context)))
    prompt = min(USUAL.prompt, config.n_ctx // 2)
    workload = replace(USUAL, contexts=contexts, rounds=rounds, seed=arguments.seed, prompt=prompt)
    workload = with_flags(workload, arguments)
    workload.check(config)
    return workload


def chosen(names: list[str], folder: Path | None = None) -> list[Variant]:
    """Our rungs and the engines of these names, none for all. Raises UserError for a name that is unknown or
    that was asked for and cannot run here.
    """
    engines, ours = engine_rungs(folder), ladder()
    wanted = cli.chosen("peer", names, engines)
    for engine in wanted if names else ():
        if reason := engine.why_not("cpu"):
            raise UserError(f"--peer {engine.name}: {reason}")
    return [*(ours[name] for name in OURS), *wanted]


# -- what is shown ----------------------------------------------------------------------------


def end(arguments: argparse.Namespace, doc: str, run: RunFolder[PeersRecord]) -> int:
    """Keep, report and print what was measured."""
    measured = Measured(run.record)
    by_context = {context: rows(measured, context) for context in measured.contexts}
    first = next(iter(by_context.values()))
    verdict = _verdict(first)
    blocks: list[Block] = [
        _figure(first, measured.contexts[0]),
        *(_steps(context, engine_rows) for context, engine_rows in by_context.items()),
        *(_fastest(context, engine_rows) for context, engine_rows in by_context.items()),
        _settings(run.record.variants),
        Bullets(_notes(run.record)),
    ]
    page = page_of(doc, run, verdict, blocks)
    return publish(arguments, run, page, contexts=by_context, verdict=verdict)


def _steps(context: int, engine_rows: list[EngineRow]) -> Table:
    cells = [
        (
            row.precision,
            row.name,
            f"{row.step_ms.median:.2f}",
            f"{row.step_ms.p95:.2f}",
            number(row.floor_ms),
            interval(row.over_floor),
            interval(row.ratio),
            percent(row.agreement),
        )
        for row in engine_rows
    ]
    heads = (
        "precision",
        "engine",
        "median ms",
        "p95 ms",
        "floor ms",
        "x floor",
        "over one launch",
        "as float32",
    )
    return Table(heads, cells, 2, f"Step after a prompt of {context}")


def _fastest(context: int, engine_rows: list[EngineRow]) -> Table:
    cells = [
        (
            precision,
            f"{mine.step_ms.median:.2f}",
            other.name,
            f"{other.step_ms.median:.2f}",
            interval(other.ratio),
        )
        for precision, (mine, other) in fastest_others(engine_rows).items()
    ]
    heads = ("precision", "one launch, ms", "fastest of others", "its ms", "over one launch")
    title = f"Our one launch and the fastest of others, prompt of {context}"
    return Table(heads, cells, title=title)


def _settings(entries: dict[str, Entry]) -> Table:
    cells = [(name, _what_ran(entry)) for name, entry in entries.items()]
    return Table(("engine", "what ran"), cells, 2, "Settings")


def _what_ran(entry: Entry) -> str:
    if entry.status != "proven":
        return f"{entry.status}: {entry.reason}"
    return entry.implementation or f"without {entry.removes}"


def _figure(engine_rows: list[EngineRow], context: int) -> Figure:
    bars = []
    for precision in AGAINST:
        of_it = [row for row in engine_rows if row.precision == precision]
        for row in sorted(of_it, key=lambda row: row.step_ms.median):
            ms, ratio = row.step_ms.median, row.ratio
            text = f"{ms:.2f} ms" + ("" if ratio is None else f"  ({ratio.mid:.2f} x one launch)")
            length = {"ours" if row.ours else "others": ms}
            bars.append(Bar(row.name, length, text, row.floor_ms, precision))
    caption = f"Median step after a prompt of {context}, marked at the plain read of its own bytes."
    return Figure("peers", caption, [Bars("median step, ms", bars)])


def _notes(record: PeersRecord) -> list[str]:
    environment, workload = record.environment, record.workload
    assert environment is not None and workload is not None  # described before anything is timed
    missing = {
        f"{check.check} of {name} ({check.detail})"
        for name, entry in record.variants.items()
        if entry.elsewhere and entry.gate
        for check in entry.gate.unproven
        if check.check == "timed tokens"
    }
    return [
        f"{workload.rounds} rounds, each visits everything once in shuffled order: {workload.warm_up} steps "
        f"untimed, then {workload.steps} timed; ratios within rounds, 95 %",
        f"{environment.threads} threads for everybody, engines of others each in a process of its own; "
        f"{environment.simd}, load at start {environment.load_at_start:.2f}",
        "floor: a plain read of the bytes of weights and cache that the step must read at its precision, in "
        "the same rounds; x floor within rounds, 95 %",
        "as float32: of what is proven at full precision all tokens; of fewer bits the share of positions "
        "with the same top token; random weights have close logits",
        *(f"not proven: {what}" for what in sorted(missing)),
    ]


def _verdict(engine_rows: list[EngineRow]) -> str:
    pairs = fastest_others(engine_rows)
    parts = [
        f"{precision}: {mine.step_ms.median:.1f} ms, {other.name} takes {interval(other.ratio)} times as long"
        for precision, (mine, other) in pairs.items()
    ]
    return f"Our one launch and the fastest of others: {'; '.join(parts) or 'nothing to compare'}."


if __name__ == "__main__":
    cli.run(main)
