"""Question: is the last rung as fast as the engines that others build for this work?

Runs Hugging Face, llama.cpp, CTranslate2, ONNX Runtime and OpenVINO, as far as they are installed (see
docs/peers.md), interleaved with our rungs: one seeded GPT-2, one prompt, greedy steps of one token, prefill
excluded, a process per engine. Prints ratios to our one launch at the same precision.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from experiments import _cli
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError

if TYPE_CHECKING:
    from profiling.peers.worker import Timed, Worker

EXAMPLES = ("", "--quick", "--peer llama.cpp,transformers --context 16,900")
AGAINST = {
    "float32": "onelaunch",
    "bfloat16": "onelaunch-bf16",
    "int8": "onelaunch-int8",
    "int4": "onelaunch-int4",
}
SETTLE = 3


def parser() -> argparse.ArgumentParser:
    parser = _cli.plain_parser("experiments.peers", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add(
        "--peer", action="append", metavar="NAME,NAME", help="which engines (default: all that are installed)"
    )
    add("--model", choices=PRESETS, default="gpt2", help="its shape; weights are random (default gpt2)")
    add(
        "--context",
        type=_cli.integers,
        default=(16,),
        metavar="N,N",
        help="tokens of the prompt (default 16)",
    )
    add("--steps", type=int, default=8, help="timed steps per visit (default 8)")
    add("--rounds", type=int, help="rounds; each visits every engine once, in shuffled order (default 20)")
    add("--threads", type=int, help="threads of every engine (default: torch's)")
    add("--seed", type=int, default=0, help="of weights, prompts and order (default 0)")
    add("--quick", action="store_true", help="4 rounds")
    add("--folder", type=Path, help="where conversions are kept (default: a folder that is removed again)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    config = PRESETS[arguments.model]
    rounds = arguments.rounds or (4 if arguments.quick else 20)
    _check(arguments, config)
    names, absent = _names(_cli.names(arguments.peer))
    console = _cli.console(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.folder or Path(scratch)) / f"{arguments.model}-{arguments.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        workers, failed = _start(names, config, arguments, folder)
        try:
            seen = _measure(workers, failed, config, arguments, rounds)
        finally:
            for worker in workers.values():
                worker.close()
    tables = {context: _rows(seen[context]) for context in arguments.context}
    for context, rows in tables.items():
        _print(console, f"context {context}, {rounds} rounds of {arguments.steps} steps", rows)
    for name, reason in {**absent, **failed}.items():
        console.print(f"{name}: left out, {reason}")
    if arguments.json:
        _cli.print_json({"contexts": tables, "left_out": {**absent, **failed}, "rounds": rounds})
    return 0


def _check(arguments: argparse.Namespace, config: GPTConfig) -> None:
    for flag in ("steps", "rounds", "threads"):
        value = getattr(arguments, flag)
        if value is not None and value < 1:
            raise UserError(f"--{flag} must be at least 1, got {value}")
    room = config.n_ctx - SETTLE - arguments.steps - 1
    if not all(1 <= context <= room for context in arguments.context):
        raise UserError(f"--context must be within 1 and {room} for this model and these steps")


def _names(asked: list[str]) -> tuple[list[str], dict[str, str]]:
    """What to run: ours and the peers asked for; and the peers that cannot, with the reason."""
    from profiling.peers.engines import OURS, PEERS

    unknown = [name for name in asked if name not in PEERS]
    if unknown:
        raise UserError(f"unknown peer {', '.join(unknown)}; known: {', '.join(PEERS)}")
    peers = asked or list(PEERS)
    absent = {
        name: f"{PEERS[name].package} is not installed (docs/peers.md)"
        for name in peers
        if PEERS[name].version is None
    }
    return [*OURS, *(name for name in peers if name not in absent)], absent


def _start(
    names: list[str], config: GPTConfig, arguments: argparse.Namespace, folder: Path
) -> tuple[dict[str, Worker], dict[str, str]]:
    import torch

    from profiling.peers.worker import Task, Worker

    workers, failed = {}, {}
    for name in names:
        print(f"preparing {name}", file=sys.stderr)
        threads = arguments.threads or torch.get_num_threads()
        try:
            workers[name] = Worker(Task(name, config, arguments.seed, folder, threads))
        except RuntimeError as error:
            failed[name] = str(error)
    return workers, failed


def _measure(
    workers: dict[str, Worker],
    failed: dict[str, str],
    config: GPTConfig,
    arguments: argparse.Namespace,
    rounds: int,
) -> dict[int, dict[str, list[Timed]]]:
    """context -> name -> one visit per round. A worker that fails is dropped and named in `failed`."""
    from profiling.peers.worker import Visit

    order = random.Random(arguments.seed)
    seen: dict[int, dict[str, list[Timed]]] = {context: {} for context in arguments.context}
    for round_ in range(rounds):
        print(f"round {round_ + 1} of {rounds}", file=sys.stderr)
        for context in arguments.context:
            prompt = tuple(order.randrange(config.vocab_size) for _ in range(context))
            for name in order.sample(sorted(workers), len(workers)):
                try:
                    timed = workers[name].visit(Visit(prompt, SETTLE, arguments.steps))
                    seen[context].setdefault(name, []).append(timed)
                except RuntimeError as error:
                    failed[name] = str(error)
                    workers.pop(name).close()
    return {context: {name: of[name] for name in workers} for context, of in seen.items()}


def _rows(seen: dict[str, list[Timed]]) -> list[dict[str, Any]]:
    """A row per engine, precision by precision, ours first; `ratio` is its time over our one launch's."""
    from profiling.peers.engines import ALL
    from profiling.stats import quantiles, ratio_interval

    medians = {name: [median(visit.ms) for visit in visits] for name, visits in seen.items()}
    rows = []
    for name in (name for name in ALL if name in seen):
        engine, ours = ALL[name], AGAINST[ALL[name].precision]
        reference = [token for visit in seen["sdpa"] for token in visit.tokens]
        tokens = [token for visit in seen[name] for token in visit.tokens]
        rows.append(
            {
                "name": name,
                "version": engine.version,
                "precision": engine.precision,
                "format": engine.format,
                "step_ms": quantiles([ms for visit in seen[name] for ms in visit.ms]),
                "visit_medians_ms": medians[name],
                "ratio": ratio_interval(medians[name], medians[ours]) if ours in medians else None,
                "same_tokens": sum(a == b for a, b in zip(tokens, reference, strict=True)) / len(tokens),
            }
        )
    return sorted(rows, key=lambda row: list(AGAINST).index(row["precision"]))


def _print(console: Any, title: str, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for heading in ("precision", "engine", "version"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median ms", "p95 ms", "over one launch", "tokens as sdpa"):
        table.add_column(heading, justify="right")
    for row in rows:
        ratio, step = row["ratio"], row["step_ms"]
        table.add_row(
            row["precision"],
            row["name"],
            row["version"],
            f"{step['median']:.2f}",
            f"{step['p95']:.2f}",
            "-" if ratio is None else f"{ratio.mid:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]",
            f"{row['same_tokens']:.0%}",
        )
    console.print(table)


if __name__ == "__main__":
    _cli.run(main)
