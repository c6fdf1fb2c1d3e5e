"""Question: what do more rows in a batch cost, from which batch on does compute set the time, and what does
prefill use of the machine against decode?

Claim (article 3): batching helps throughput, not latency; the weights are in flight anyway, so 32 requests
ride along for nearly free. Prefill is compute-bound, decode is bandwidth bound (articles 3 and 4).

Steps of each batch are timed in interleaved rounds beside their roofline, which is the larger of bytes over
the read rate and FLOPs over the matmul rate, both measured now. Every batch is proven on different rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from experiments.shared import cli
from experiments.shared.measured import (
    PROVEN_BRIEFLY,
    chosen_variants,
    model_on_device,
    proven_runner,
    with_flags,
)
from experiments.shared.outcome import Outcome, conclude
from experiments.shared.published import Check
from profiling.results.peaks import beyond_peaks
from profiling.results.record import BatchRecord, Workload
from profiling.results.record.page import Figure, Table
from profiling.results.record.pictures import Curves
from profiling.results.throughput import Roofline, takeover
from reports.numbers import interval, number
from variants.config import GPTConfig
from variants.errors import UserError

if TYPE_CHECKING:
    from profiling.measure.runner import Runner

EXAMPLES = ("", "--quick", "--batches 1,8,64 --variant tape --prompts 16,256")
BATCHES, QUICK_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 4, 16)
PROMPTS, QUICK_PROMPTS = (10, 32, 100, 256, 512, 1000), (10, 100, 500)
USUAL = Workload(contexts=(100,), ttft_rounds=0, prompt=1)
QUICK = replace(USUAL, rounds=3, gate_steps=4)
HELPS, SAME, FREE = 2.0, 0.95, 1.25  # throughput grown; latency not lower; step of up to 32 rows over one
BINDS = 0.5  # share of a measured peak from which it sets the time: below it something else takes more


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser("experiments.batch", __doc__ or "", EXAMPLES, USUAL, QUICK)
    add = parser.add_argument
    add(
        "--batches",
        type=cli.integers,
        metavar="N,N",
        help="batch sizes beside 1 (default 2 to 256, as memory permits)",
    )
    add("--prompts", type=cli.integers, metavar="N,N", help="prompt lengths for the time to first token")
    add("--variant", default="sdpa", metavar="NAME", help="the rung that is timed")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    model, device = model_on_device(arguments)
    variants = chosen_variants([arguments.variant], arguments.precision, device.type, beside=())
    if not variants[0].cache.keeps:
        raise UserError("--variant naive: batching is about decode, choose a rung with a cache")
    if variants[0].precision.name != arguments.precision or variants[0].kv.narrow:
        raise UserError(
            f"--variant {arguments.variant}: the roofline knows one width, give it by --precision"
        )
    if arguments.batch != 1:
        raise UserError("--batch: this experiment takes several, as --batches 1,8,64")
    batches = _numbers(arguments.batches, QUICK_BATCHES if arguments.quick else BATCHES, "--batches", None)
    workload, context = _workload(arguments, model.config)
    limit = model.config.n_ctx - workload.tokens_after
    prompts = _numbers(arguments.prompts, QUICK_PROMPTS if arguments.quick else PROMPTS, "--prompts", limit)
    workload = replace(workload, contexts=tuple(sorted({context, max(context, *prompts)})))

    def measure(runner: Runner[BatchRecord]) -> None:
        from profiling.measure.proving import add_batches
        from profiling.measure.visits import Prefills

        into = runner.record.prefills
        visits = [Prefills(case, runner.clock, prompts, into) for case in runner.once()]
        runner.time("prefill", visits, workload.rounds)
        (case, *_) = runner.cases
        slots = next(
            n for n in case.decoder.buckets if n >= min(model.config.n_ctx, context + workload.tokens_after)
        )
        add_batches(runner, case, [1, *(n for n in batches if n != 1)], context, slots)
        runner.measure()

    runner = proven_runner(arguments, BatchRecord, model, workload, variants, measure)
    roof = Roofline(runner.record, model.config, variants[0].name, context, prompts)
    return conclude(arguments, __doc__ or "", runner.run, outcome(roof, arguments.quick))


def _numbers(wanted: Sequence[int] | None, default: Sequence[int], flag: str, limit: int | None) -> list[int]:
    """Ascending; the defaults are cut to the limit, others are refused beyond it."""
    numbers = sorted(set(wanted or [n for n in default if limit is None or n <= limit]))
    if numbers[0] < 1 or (limit is not None and numbers[-1] > limit):
        raise UserError(f"{flag} must be " + ("at least 1" if limit is None else f"between 1 and {limit}"))
    return numbers


def _workload(arguments: argparse.Namespace, config: GPTConfig) -> tuple[Workload, int]:
    workload = with_flags(replace(QUICK if arguments.quick else USUAL, seed=arguments.seed), arguments)
    if arguments.context is not None and len(arguments.context) != 1:
        raise UserError("--context: this experiment varies the batch, give one context")
    context = arguments.context[0] if arguments.context else min(*USUAL.contexts, config.n_ctx // 2)
    replace(workload, contexts=(context,)).check(config)
    return workload, context


# -- from the record to what is shown ---------------------------------------------------------


def outcome(roof: Roofline, quick: bool) -> Outcome:
    from profiling.results.metrics import Measured

    first, last = roof.batches[0], roof.batches[-1]
    at = takeover(roof.config, roof.context, roof.weight_bytes, roof.read_rate, roof.flop_rate)
    crossing = "never, the cache is read faster than it" if at is None else f"from batch {at:.0f} on"
    notes = [
        f"compute takes over {crossing}, by the measured rates and context {roof.context}",
        "bytes of a prefill: weights once and the cache written; activations are not counted",
        *(f"batch {n}: {why}" for n, why in roof.left_out.items()),
        *beyond_peaks(_shares(roof)),
    ]
    if (beside := Measured(roof.record).aa_ratio) is not None:
        notes.append(f"A/A, the step of one row over itself: {interval(beside)}")
    if quick:
        notes.append(f"left out by --quick: other batches and prompts; {PROVEN_BRIEFLY}")
    bounds = {
        "memory": [(n, roof.memory_ms(n)) for n in roof.batches],
        "compute": [(n, roof.compute_ms(n)) for n in roof.batches],
    }
    figure = Figure(
        "batch",
        f"Step of `{roof.name}` at context {roof.context} over batch, beside what memory and compute ask.",
        [Curves("batch", "ms", {"step": [(n, roof.step_ms(n)) for n in roof.batches]}, bounds)],
    )
    grown = roof.tokens_per_s(last) / roof.tokens_per_s(first)
    slower = roof.step_ms(last) / roof.step_ms(first)
    what = (
        f"batch {last} gives {grown:.1f}x the tokens/s of batch {first}, a step takes {slower:.1f}x as long"
    )
    return Outcome(what, _statements(roof), [figure, _batch_table(roof), _phase_table(roof)], notes)


def _batch_table(roof: Roofline) -> Table:
    rows = [
        (
            str(n),
            interval(roof.step(n)) if roof.step(n) else number(roof.step_ms(n)),
            f"{roof.tokens_per_s(n):.1f}",
            f"{roof.memory_ms(n):.2f}",
            f"{roof.compute_ms(n):.2f}",
            f"{max(roof.memory_ms(n), roof.compute_ms(n)) / roof.step_ms(n):.0%}",
            f"{roof.cache_bytes(n) / 2**20:.1f}",
        )
        for n in roof.batches
    ]
    title = f"One step of {roof.name} at context {roof.context}, and its roofline"
    heads = ("batch", "step ms", "tokens/s", "memory ms", "compute ms", "of roof", "cache MiB")
    return Table(heads, rows, title=title)


def _phase_table(roof: Roofline) -> Table:
    """Prefill (TTFT) against decode (TPOT): intensity and share of each ceiling."""
    rows = [
        (
            phase.name,
            f"{phase.ms:.2f}",
            f"{phase.ms / phase.tokens:.2f}",
            f"{phase.macs / phase.bytes:.2f}",
            f"{phase.flop_rate / roof.flop_rate:.1%}",
            f"{phase.read_rate / roof.read_rate:.1%}",
        )
        for phase in (*roof.prefills(), roof.decode())
    ]
    title = (
        f"Prefill against decode; peaks {roof.flop_rate / 1e9:.0f} GFLOP/s and "
        f"{roof.read_rate / 1e9:.1f} GB/s, in the same rounds"
    )
    heads = ("phase", "ms", "a token", "MACs/byte", "of matmul", "of read")
    return Table(heads, rows, title=title)


def _shares(roof: Roofline) -> dict[str, float]:
    """Every share of a measured peak that is shown."""
    reached = {
        f"batch {n}": max(roof.memory_ms(n), roof.compute_ms(n)) / roof.step_ms(n) for n in roof.batches
    }
    for phase in (*roof.prefills(), roof.decode()):
        reached[f"{phase.name}, matmul"] = phase.flop_rate / roof.flop_rate
        reached[f"{phase.name}, read"] = phase.read_rate / roof.read_rate
    return reached


def _statements(roof: Roofline) -> list[Check]:
    """The articles' sentences, each with the rule that decides it."""
    first, last = roof.batches[0], roof.batches[-1]
    few = max(n for n in roof.batches if n <= 32 or n == first)
    grown = roof.tokens_per_s(last) / roof.tokens_per_s(first)
    slower, rides = (roof.step_ms(n) / roof.step_ms(first) for n in (last, few))
    return [
        Check(
            "batch.throughput",
            f"{grown:.1f}x tok/s, {slower:.2f}x ms",
            f"batch {last} against {first}; helps from {HELPS:g}x, not latency: step at least {SAME}x",
            grown >= HELPS and slower >= SAME,
        ),
        Check(
            "batch.free",
            f"{rides:.2f}x the step at {few}",
            f"nearly free is up to {FREE}x",
            rides <= FREE,
        ),
        *_bounds(roof),
    ]


def _bounds(roof: Roofline) -> list[Check]:
    """What sets the time of either phase. Above a measured peak the instrument is at fault: no word then."""
    checks = []
    for key, phase in (("batch.prefill", roof.prefills()[-1]), ("batch.decode", roof.decode())):
        matmul, read = phase.flop_rate / roof.flop_rate, phase.read_rate / roof.read_rate
        share, unit = (matmul, "matmul") if key == "batch.prefill" else (read, "read rate")
        if max(matmul, read) <= 1:
            why = f"{phase.name}: {matmul:.1%} of matmul, {read:.0%} of the read rate; binds from {BINDS:.0%}"
            binds = share >= BINDS and share == max(matmul, read)
            checks.append(Check(key, f"{share:.0%} of {unit}", why, binds))
    return checks


if __name__ == "__main__":
    cli.run(main)
