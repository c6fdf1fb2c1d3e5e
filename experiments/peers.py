"""Question: is the last rung as fast as the engines that others build for this work?

Runs Hugging Face, llama.cpp, CTranslate2, ONNX Runtime and OpenVINO, as far as they are installed (see
docs/peers.md), interleaved with our rungs: one seeded GPT-2, one prompt, greedy steps of one token, prefill
excluded, a process per engine. Says how many times as long they take as our one launch at the same precision.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.shared import cli
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError

if TYPE_CHECKING:
    from experiments.shared.progress import ProgressLine
    from profiling.peers.worker import Worker
    from profiling.results.folder import RunFolder
    from profiling.results.record import PeerEntry, PeersRecord, PeersWorkload

EXAMPLES = ("", "--quick", "--peer llama.cpp,transformers --context 16,900")
WARM_UP = 3  # untimed steps of a visit
ROUNDS, QUICK_ROUNDS = 20, 4


def parser() -> argparse.ArgumentParser:
    parser = cli.plain_parser("experiments.peers", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("--peer", action="append", metavar="NAME,NAME", help="which engines (default: all installed)")
    add("--model", choices=PRESETS, default="gpt2", help="its shape; weights are random")
    add("--context", type=cli.integers, default=(16,), metavar="N,N", help="tokens of the prompt")
    add("--steps", type=int, default=8, help="timed steps per visit")
    add("--rounds", type=int, help=f"each visits every engine once, in shuffled order (default {ROUNDS})")
    add("--threads", type=int, help="threads of every engine (default: torch's)")
    add("--seed", type=int, default=0, help="of weights, prompts and order")
    add("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds")
    add("--folder", type=Path, help="where conversions are kept (default: in the cache)")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    config = PRESETS[arguments.model]
    _check(arguments, config)
    engines = _engines(cli.names(arguments.peer), config, arguments.context)
    from experiments.shared.peers_page import end
    from experiments.shared.progress import ProgressLine
    from profiling.peers.checkpoint import conversions_folder
    from profiling.results.folder import RunFolder
    from profiling.results.record import PeersRecord

    run = RunFolder.create(arguments.out, PeersRecord, "cpu")
    workload = _describe(run, arguments, engines)
    folder = arguments.folder or conversions_folder(config, arguments.seed)
    with (
        ProgressLine(arguments.quiet) as progress,
        _workers(run, workload, config, folder, progress) as workers,
    ):
        _measure(run, workload, workers, config, progress)
    return end(arguments, __doc__ or "", run, workload)


def _check(arguments: argparse.Namespace, config: GPTConfig) -> None:
    for flag in ("steps", "rounds"):
        value = getattr(arguments, flag)
        if value is not None and value < 1:
            raise UserError(f"--{flag} must be at least 1, got {value}")
    room = config.n_ctx - WARM_UP - arguments.steps - 1
    if not all(1 <= context <= room for context in arguments.context):
        raise UserError(f"--context must be within 1 and {room} for this model and these steps")


def _engines(names: list[str], config: GPTConfig, contexts: Sequence[int]) -> dict[str, PeerEntry]:
    """The entries of ours and of the peers of these names, none for all; what is not installed says so."""
    from profiling.peers.engines import ALL, OURS, PEERS
    from profiling.results.record import PeerEntry

    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise UserError(f"unknown peer {', '.join(unknown)}; known: {', '.join(PEERS)}")
    entries = {}
    for name in (*OURS, *(names or PEERS)):
        engine = ALL[name]
        absent = f"{engine.package} is not installed (docs/peers.md)" if engine.version is None else ""
        entries[name] = PeerEntry(
            ours=name in OURS,
            precision=engine.precision,
            package=engine.package,
            version=engine.version,
            settings=engine.settings,
            status="left out" if absent else "measured",
            reason=absent,
            step_bytes={context: engine.step_bytes(config, context) for context in contexts},
        )
    return entries


def _describe(
    run: RunFolder[PeersRecord], arguments: argparse.Namespace, engines: dict[str, PeerEntry]
) -> PeersWorkload:
    import torch

    from profiling.measure.environment import environment
    from profiling.results.record import Model, PeersWorkload

    workload = PeersWorkload(
        contexts=sorted(set(arguments.context)),
        rounds=arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS),
        warm_up=WARM_UP,
        steps=arguments.steps,
        threads=arguments.threads or torch.get_num_threads(),
        seed=arguments.seed,
    )
    run.update(
        environment=environment(torch.device("cpu")),
        model=Model(arguments.model, "float32"),
        workload=workload,
        entropy=secrets.randbits(53),
        engines=engines,
    )
    run.save()
    return workload


@contextmanager
def _workers(
    run: RunFolder[PeersRecord],
    workload: PeersWorkload,
    config: GPTConfig,
    folder: Path,
    progress: ProgressLine,
) -> Iterator[dict[str, Worker]]:
    """A process for each engine that can start; the reason of one that cannot goes into the record."""
    from profiling.peers.peer import Task
    from profiling.peers.worker import Worker

    engines, workers = run.record.engines, dict[str, Worker]()
    tokens = max(workload.contexts) + WARM_UP + workload.steps + 1
    try:
        for number, (name, entry) in enumerate(engines.items()):
            if entry.status == "measured":
                progress(f"preparing {name}", number, len(engines))
                converted = folder / f"{entry.package}-{entry.version}"
                converted.mkdir(parents=True, exist_ok=True)
                task = Task(name, config, workload.seed, converted, workload.threads, tokens)
                try:
                    workers[name] = Worker(task)
                except RuntimeError as error:
                    _leave_out(run, name, error)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def _leave_out(run: RunFolder[PeersRecord], name: str, error: Exception) -> None:
    from profiling.results.record import replaced

    engines = run.record.engines
    engines[name] = replaced(engines[name], status="left out", reason=str(error))


def _measure(
    run: RunFolder[PeersRecord],
    workload: PeersWorkload,
    workers: dict[str, Worker],
    config: GPTConfig,
    progress: ProgressLine,
) -> None:
    """One visit per engine, context and round. An engine that fails is left out from then on."""
    import torch

    from profiling.measure.peaks import FloorReader
    from profiling.measure.rounds import Visit, in_rounds
    from profiling.peers.visits import EngineVisit, QuietRead

    torch.set_num_threads(workload.threads)
    record = run.record
    sizes = {size for name in workers for size in record.engines[name].step_bytes.values()}
    reader = FloorReader([], max(sizes, default=0), torch.device("cpu"), "default")

    def leave(name: str, error: Exception) -> None:
        if not isinstance(error, RuntimeError):  # which holds the engine's own words
            raise error
        _leave_out(run, name, error)
        workers.pop(name).close()

    visits: list[Visit] = [
        QuietRead(reader, size, "default", workload.steps, record.floors) for size in sorted(sizes)
    ]
    visits += [
        EngineVisit(
            name, worker, n, WARM_UP, workload.steps, config.vocab_size, record.entropy, record.samples
        )
        for name, worker in workers.items()
        for n in workload.contexts
    ]
    for done in in_rounds(visits, record.entropy, range(workload.rounds), leave):
        if done.is_integer():
            run.save()
            progress("rounds", int(done), workload.rounds)


if __name__ == "__main__":
    cli.run(main)
