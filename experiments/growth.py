"""Question: does a step grow with the bytes it must read, over context, batch, threads, width, model, cache?

Every point is a run of its own on the CPU, proven briefly and timed in rounds beside the memory floor of its
own bytes: the base at all contexts and also as narrow models, then one thing changed at a time, at the
smallest context (a batch also at the largest). With fewer heads for keys and values a token of context is
timed in every form that the rung and its children store it in, in the same rounds. What does not fit into
memory is left out and named.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from experiments.shared import cli
from profiling.results.record import GrowthRecord, Model, Workload
from profiling.results.record.page import Bullets, Figure, Table
from profiling.results.record.pictures import Bar, Bars, Curves
from profiling.results.stats import Interval
from reports.numbers import interval, megabytes, number
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError

if TYPE_CHECKING:
    from profiling.measure.growth import Point, Slope, Step, StoredToken
    from profiling.results.folder import RunFolder
    from profiling.results.metrics import Measured

    Steps = dict[str, list[Step]]  # by axis

EXAMPLES = ("", "--quick", "--variant onelaunch-int8 --models gpt2,gpt2-large --batches 1,16")
MODELS, QUICK_MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), ("gpt2", "gpt2-medium")
BATCHES, QUICK_BATCHES = (1, 2, 4, 8, 16), (1, 4)
CONTEXTS = Workload().contexts
ROUNDS, QUICK_ROUNDS = 20, 3
PANELS = {  # by axis: what its picture's axis says, and whether it is logarithmic
    "context": ("context: tokens in the cache", False),
    "batch": ("batch", True),
    "model": ("MB read in a step, by model", True),
    "width": ("width of a model of as many layers", False),
}
STEPS = 8  # timed at each visit: differences between contexts are small beside the noise of a step


def _commas(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def parser() -> argparse.ArgumentParser:
    parser = cli.plain_parser("experiments.growth", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("--variant", default="onelaunch", metavar="NAME", help="the rung that is timed")
    add("--models", action="append", metavar="NAME,NAME", help=f"base first (default {','.join(MODELS)})")
    add("--batches", type=cli.integers, metavar="N,N", help=f"base first (default {_commas(BATCHES)})")
    add("--kv-heads", type=cli.integers, metavar="N,N", help="of the base (default: all, a third, 1)")
    add("--threads", type=cli.integers, metavar="N,N", help="base first (default: torch's, then 1)")
    add("--context", type=cli.integers, metavar="N,N", help=f"of the base (default {_commas(CONTEXTS)})")
    add("--rounds", type=int, help=f"rounds of each point (default {ROUNDS})")
    add("--seed", type=int, default=0, help="of weights, prompts and order")
    add("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, fewer models and batches")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    import torch

    from experiments.shared.measured import chosen_variants
    from experiments.shared.progress import ProgressLine
    from experiments.shared.setup import silence_libraries
    from profiling.measure.environment import environment
    from profiling.measure.growth import grow, points
    from profiling.results.folder import RunFolder

    silence_libraries()
    (variant,) = chosen_variants([arguments.variant], "float32", "cpu", beside=())
    quick = arguments.quick
    models = cli.names(arguments.models) or (QUICK_MODELS if quick else MODELS)
    batches = arguments.batches or (QUICK_BATCHES if quick else BATCHES)
    threads = arguments.threads or tuple(dict.fromkeys((torch.get_num_threads(), 1)))
    unknown = [name for name in models if name not in PRESETS]
    if unknown or min(batches) < 1:
        raise UserError(f"--models takes {', '.join(PRESETS)}; --batches at least 1")
    workload = _workload(arguments, models)
    kv_heads = _kv_heads(arguments, PRESETS[models[0]]) if len(workload.contexts) > 1 else ()
    run = RunFolder.create(arguments.out, GrowthRecord, "cpu")
    run.update(environment=environment(torch.device("cpu")), model=Model(models[0], variant.precision.name))
    with ProgressLine(arguments.quiet) as progress:
        measured = grow(run, points(models, batches, threads, kv_heads), variant, workload, progress)
    return _show(arguments, run, variant.name, measured)


def _kv_heads(arguments: argparse.Namespace, base: GPTConfig) -> tuple[int, ...]:
    """Heads for keys and values, which query heads share evenly."""
    heads = base.n_head
    fewer = [n for n in range(1, heads // 3 + 1) if heads % n == 0]
    chosen = arguments.kv_heads or tuple(dict.fromkeys((heads, *fewer[-1:], 1)))
    if not all(0 < n <= heads and heads % n == 0 for n in chosen):
        raise UserError(f"--kv-heads takes divisors of the {heads} heads of the base, got {_commas(chosen)}")
    return chosen


def _workload(arguments: argparse.Namespace, models: Sequence[str]) -> Workload:
    from experiments.shared.measured import contexts_that_fit

    rounds = arguments.rounds or (QUICK_ROUNDS if arguments.quick else ROUNDS)
    workload = Workload(
        rounds=rounds,
        steps=STEPS,
        seed=arguments.seed,
        gate_steps=16,
        brief_gate=True,
        prompt=1,
        ttft_rounds=0,
    )
    contexts = arguments.context or contexts_that_fit(CONTEXTS, PRESETS[models[0]], workload.tokens_after)
    workload = replace(workload, contexts=tuple(sorted(set(contexts))))
    workload.check(PRESETS[models[0]])
    return workload


# -- from the records to what is shown ----------------------------------------------------------


def _show(
    arguments: argparse.Namespace, run: RunFolder[GrowthRecord], variant: str, measured: dict[Point, Measured]
) -> int:
    from experiments.shared.outcome import page_of, publish
    from profiling.measure.growth import slopes, steps_by_axis, stored_tokens

    if not any(not point.axis for point in measured):
        raise UserError(f"nothing to grow from: {'; '.join(run.record.warnings)}")
    steps = steps_by_axis(variant, measured)
    per_token = slopes(variant, measured)
    stored = stored_tokens(measured)
    tables = [*(_table(axis, rows) for axis, rows in steps.items()), *_slopes_table(per_token)]
    tables += _stored_table(stored)
    notes = Bullets(
        [
            "points are separate runs: compare their ratios to the floor, not their times",
            "threads, batch and model at the smallest context; widths are models of as many layers and ops",
            "a token of context is plainest in the largest batch, whose keys and values are the most bytes",
            "A/A, a point's step over itself: "
            + ", ".join(f"{point.label} {interval(numbers.aa_ratio)}" for point, numbers in measured.items()),
        ]
    )
    page = page_of(
        __doc__ or "",
        run,
        _verdict(steps, per_token),
        [*_figure(steps), *_stored_figure(stored), *tables, notes],
    )
    return publish(arguments, run, page, steps=steps, slopes=per_token, stored=stored)


def _table(axis: str, rows: Sequence[Step]) -> Table:
    cells = [
        (
            row.value,
            megabytes(row.bytes),
            number(row.step_ms),
            number(row.floor_ms),
            interval(row.ratio),
            interval(row.excess_ms),
        )
        for row in rows
    ]
    heads = (axis, "MB read", "step, ms", "floor, ms", "over floor", "less floor, ms")
    return Table(heads, cells, title=f"Over {axis}")


def _slopes_table(slopes: Sequence[Slope]) -> list[Table]:
    cells = [(str(row.batch), number(row.bytes_per_token / 1e3), interval(row.over_bytes)) for row in slopes]
    heads = ("batch", "KB per token", "its time over that of reading it")
    return [Table(heads, cells, title="A token of context")] if cells else []


def _stored_table(tokens: Sequence[StoredToken]) -> list[Table]:
    cells = [
        (
            str(token.kv_heads),
            token.variant,
            number(token.bytes / 1e3),
            interval(token.ms and Interval(*(1e3 * ms for ms in token.ms))),
            number(1e3 * token.read_ms),
            interval(token.over_bytes),
        )
        for token in tokens
    ]
    heads = ("KV heads", "variant", "KB per token", "its step, us", "plain read, us", "over the read")
    return [Table(heads, cells, title="A token of context, by heads and bits")] if cells else []


def _stored_figure(tokens: Sequence[StoredToken]) -> list[Figure]:
    bars = [
        Bar(
            name=token.variant,
            group=f"heads for keys and values: {token.kv_heads}",
            parts={"us per token of context": max(0.0, 1e3 * token.ms.mid)},
            text=f"{number(1e3 * token.ms.mid)} us, {number(token.bytes / 1e3)} KB",
            mark=1e3 * token.read_ms,
            interval=(max(0.0, 1e3 * token.ms.low), 1e3 * token.ms.high),
        )
        for token in tokens
        if token.ms
    ]
    caption = "What a token of context adds to a step, with its interval; the mark: reading its bytes."
    return [Figure("stored", caption, [Bars("us per token of context", bars)])] if bars else []


def _figure(steps: Steps) -> list[Figure]:
    """A panel for each axis with more than one point; threads read as much and are left to the table."""
    panels = []
    for axis, (label, log) in PANELS.items():
        rows = steps.get(axis, [])
        if len(rows) > 1:
            lines = {"step": [(_place(row), row.step_ms) for row in rows]}
            floor = {"memory floor": [(_place(row), row.floor_ms) for row in rows]}
            panels.append(Curves(label, "ms", lines, floor, log_x=log, log_y=axis == "model"))
    caption = "Median step beside a plain read of the bytes that it must read, over what makes them more."
    return [Figure("growth", caption, panels)] if panels else []


def _place(row: Step) -> float:
    """The value that was changed, where it is a number, else the bytes that it makes."""
    return float(row.value) if row.value.isdigit() else row.bytes / 1e6


def _verdict(steps: Steps, slopes: Sequence[Slope]) -> str:
    parts = [
        f"a token of context costs {interval(row.over_bytes)} times the read of its bytes (batch {row.batch})"
        for row in {row.batch: row for row in (*slopes[:1], *slopes[-1:])}.values()
    ]
    for axis in ("batch", "model"):
        if len(rows := steps.get(axis, [])) > 1:
            parts.append(f"{axis} {rows[-1].value} stands {interval(rows[-1].ratio)} over its floor")
    if steps["width"]:
        narrow = steps["width"][0]
        parts.append(f"what does not grow is {interval(narrow.excess_ms)} ms (width {narrow.value})")
    return f"{'; '.join(parts)}."


if __name__ == "__main__":
    cli.run(main)
