"""Question: what does a step cost at every context, without a cache and with each kind of it, and does its
time follow its arithmetic?

Claim (article 2): a cached step takes the same time from 10 to 1,000 tokens, the cache buys nothing at short
context and 6.0 times at 1,000 where the arithmetic is 1,000 times less; arithmetic cannot explain the step.

Steps are timed in interleaved rounds after every variant is proven. A context of n tokens held is the
articles' n + 1: they count the new token too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from experiments.shared import cli
from experiments.shared.claims import measured
from experiments.shared.measured import (
    PROVEN_BRIEFLY,
    chosen_variants,
    contexts_that_fit,
    model_on_device,
    proven_runner,
    with_flags,
)
from experiments.shared.outcome import Outcome, conclude
from experiments.shared.published import Check
from profiling.cost import work
from profiling.results.peaks import beyond_peaks, matmul_rate
from profiling.results.record import ContextRecord, Workload
from profiling.results.record.page import Figure, Table
from profiling.results.record.pictures import Curves
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError
from variants.ladder import BASELINE, ladder
from variants.spec import Variant

if TYPE_CHECKING:
    from profiling.measure.runner import Runner
    from profiling.results.metrics import Measured
    from profiling.results.stats import Interval

EXAMPLES = ("", "--quick", "--variant static,tape --context 10,100,1000")
PUBLISHED_AT = (10, 100, 500, 1000)  # tokens with the new one, as the articles count
ALL = (8, 9, 32, 64, 99, 128, 256, 384, 499, 640, 768, 896, 999, 1018)
USUAL = Workload(contexts=ALL, ttft_rounds=0, prompt=1)
QUICK = replace(USUAL, contexts=tuple(n - 1 for n in PUBLISHED_AT), rounds=3, gate_steps=8, naive_rounds=1)
QUICK_VARIANTS = ("sdpa",)
COLUMNS = 5  # contexts that a table of 80 columns has room for
SAME = 0.05  # change of the step over all contexts that is still "the same"
NOTHING = 1.25  # a speedup that is still nothing
SHORT = 0.5  # of the ratio that the work has


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser("experiments.context", __doc__ or "", EXAMPLES, USUAL, QUICK)
    parser.add_argument("--variant", action="append", metavar="NAME,NAME", help="besides naive and cat")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    model, device = model_on_device(arguments)
    names = cli.names(arguments.variant) or _default(arguments, device.type)
    variants = chosen_variants(names, arguments.precision, device.type)
    workload = _workload(arguments, model.config)

    from profiling.results.metrics import Measured

    def measure(runner: Runner[ContextRecord]) -> None:
        runner.measure()

    runner = proven_runner(arguments, ContextRecord, model, workload, variants, measure)
    answer = outcome(Measured(runner.record), workload, model.config, arguments.quick)
    return conclude(arguments, __doc__ or "", runner.run, answer)


def _default(arguments: argparse.Namespace, device: str) -> Sequence[str]:
    """Every cached rung of the same precision that runs here without a long compilation."""

    if arguments.quick:
        return QUICK_VARIANTS

    def chosen(variant: Variant) -> bool:
        full = variant.precision.name == arguments.precision and not variant.kv.narrow
        return full and not variant.executor.compiles and variant.why_not(device) is None

    return [variant.name for variant in ladder(arguments.precision).values() if chosen(variant)]


def _workload(arguments: argparse.Namespace, config: GPTConfig) -> Workload:
    workload = replace(QUICK if arguments.quick else USUAL, batch=arguments.batch, seed=arguments.seed)
    workload = with_flags(workload, arguments)
    wanted = arguments.context or contexts_that_fit(workload.contexts, config, workload.tokens_after)
    if len(set(wanted)) < 2:
        raise UserError("--context needs at least two contexts, for a line through them")
    return replace(workload, contexts=tuple(sorted(set(wanted))))


# -- from the record to what is shown ---------------------------------------------------------


def outcome(numbers: Measured, workload: Workload, config: GPTConfig, quick: bool) -> Outcome:
    timed = [name for name in numbers.record.variants if numbers.has_times(name)]
    notes = [f"without a cache {workload.naive_rounds} rounds only: it is a picture"]
    if quick:
        notes.append(f"left out by --quick: other contexts and cached variants; {PROVEN_BRIEFLY}")
    reached = {f"{name} at {n}": _share(numbers, name, n) for name in timed for n in numbers.contexts}
    notes += beyond_peaks(reached)
    lines = {name: [(n, step(numbers, name, n)) for n in numbers.contexts] for name in timed}
    figure = Figure(
        "context",
        "Median step over context; a step of fixed shape attends over its bucket.",
        [Curves("context, tokens in the cache", "step, ms", lines)],
    )
    last = numbers.contexts[-1]
    what = (
        f"at context {last:,} a cached step is {speedup(numbers, last):.1f}x faster than without a cache, "
        f"for {last + 1:,}x less arithmetic"
    )
    tables = [_steps_table(numbers, timed), _flops_table(numbers, config), _lines_table(numbers, timed)]
    gpt2 = config == PRESETS["gpt2"] and workload.batch == 1
    compared = _figures(numbers) if gpt2 else []
    return Outcome(what, [*_statements(numbers), *compared], [figure, *tables], notes)


def step(numbers: Measured, name: str, context: int) -> float:
    """Median step, ms."""
    quantiles = numbers.step_quantiles(name, context)
    assert quantiles is not None
    return quantiles.median


def speedup(numbers: Measured, context: int) -> float:
    return step(numbers, "naive", context) / step(numbers, BASELINE, context)


def flop_rate(numbers: Measured, name: str, context: int) -> float:
    """Achieved FLOP/s of a step."""
    macs = numbers.entry(name).prediction[context].macs
    assert macs is not None  # of our decoder
    return float(work.FLOPS_PER_MAC * macs) / step(numbers, name, context) * 1e3


def _peak(numbers: Measured) -> float:
    """FLOP/s of this machine's matmul."""
    rate = matmul_rate(numbers.record)
    assert numbers.record.peaks is not None  # measured before anything is timed
    return rate.mid if rate else numbers.record.peaks.matmul_flop_per_s


def _share(numbers: Measured, name: str, context: int) -> float:
    """Of this machine's matmul, what a step reaches."""
    return flop_rate(numbers, name, context) / _peak(numbers)


def _steps_table(numbers: Measured, timed: Sequence[str]) -> Table:
    spread = max(1, -(-len(numbers.contexts) // COLUMNS))
    contexts = sorted({*numbers.contexts[::spread], numbers.contexts[-1]})
    rows = [(name, *(f"{step(numbers, name, n):.2f}" for n in contexts)) for name in timed]
    heads = ("variant", *(f"{n:,}" for n in contexts))
    return Table(heads, rows, title="Median step, ms, by context")


def _flops_table(numbers: Measured, config: GPTConfig) -> Table:
    peak = _peak(numbers)
    rows = []
    for n in numbers.contexts:
        rates = [
            f"{flop_rate(numbers, name, n) / 1e9:.1f} ({_share(numbers, name, n):.1%})"
            for name in ("naive", BASELINE)
        ]
        share = f"{work.attention_share(config, work.forward(1, past=n)):.1%}"
        gflop = f"{work.FLOPS_PER_MAC * work.step_macs(config, n) / 1e9:.3g}"
        rows.append((f"{n:,}", f"{speedup(numbers, n):.1f}x", f"{n + 1:,}x", gflop, share, *rates))
    title = f"{BASELINE} against naive; GFLOP/s and share of the peak of {peak / 1e9:.0f} measured here"
    heads = ("context", "faster", "less work", "GFLOP", "attention", "naive GF/s", "cached GF/s")
    return Table(heads, rows, title=title)


def lines(numbers: Measured, name: str) -> tuple[Interval, Interval] | None:
    """Intercept, ms, and slope, us per slot attended, of the step; None for one number of slots."""
    import numpy as np
    import pandas as pd

    from profiling.results.stats import intercepts, robust_interval

    slots = numbers.entry(name).slots
    rounds = pd.concat([numbers.steps(name, n) for n in numbers.contexts], axis=1).dropna()
    x = [slots[n] for n in numbers.contexts]
    if len(set(x)) < 2:
        return None
    intercept, slope = intercepts(x, rounds.to_numpy())
    both = robust_interval(intercept), robust_interval(np.asarray(slope) * 1e3)
    return None if both[0] is None or both[1] is None else (both[0], both[1])


def _lines_table(numbers: Measured, timed: Sequence[str]) -> Table:
    rows = []
    for name in timed:
        line = lines(numbers, name) if name != "naive" else None
        cells = [f"{i.mid:.2f} [{i.low:.2f}, {i.high:.2f}]" for i in line] if line else ["unknown"] * 2
        rows.append((name, *cells))
    title = "Step as a line over slots attended, 95 % intervals over rounds"
    heads = ("variant", "at none, ms", "per slot, us")
    return Table(heads, [row for row in rows if row[0] != "naive"], title=title)


def _statements(numbers: Measured) -> list[Check]:
    """The article's sentences, each with the rule that decides it."""
    first, last = numbers.contexts[0], numbers.contexts[-1]
    short, long = step(numbers, BASELINE, first), step(numbers, BASELINE, last)
    share = _share(numbers, BASELINE, last)
    return [
        Check(
            "context.flat",
            f"{short:.1f} to {long:.1f} ms",
            f"{long / short - 1:+.0%} (same: within {SAME:.0%}); {_more_bytes(numbers, first, last)}",
            abs(long / short - 1) <= SAME,
        ),
        Check(
            "context.nothing",
            f"{speedup(numbers, first):.1f}x at {first}",
            f"nothing is below {NOTHING}x",
            speedup(numbers, first) < NOTHING,
        ),
        Check(
            "context.ratio",
            f"{speedup(numbers, last):.1f}x, not {last + 1:,}x",
            f"at context {last:,}; short is under half",
            speedup(numbers, last) < SHORT * (last + 1),
        ),
        *([_arithmetic(share)] if share <= 1 else []),
    ]


def _arithmetic(share: float) -> Check:
    why = "arithmetic explains the step from half of the matmul peak on"
    return Check("context.arithmetic", f"{share:.1%} of peak", why, share < SHORT)


def _more_bytes(numbers: Measured, first: int, last: int) -> str:
    """What of keys and values the longer step moves beyond the shorter, by the formula of the cache alone."""
    by_context = numbers.entry(BASELINE).prediction
    more = (by_context[last].bytes - by_context[first].bytes) / 1e6
    return (
        f"attention at {last:,} reads {more:.0f} MB more of keys and values than at {first:,}, and before it "
        f"`{BASELINE}` reads and writes as many once more to put the new token behind them"
    )


def _figures(numbers: Measured) -> list[Check]:
    """The article's step times, where this run has its contexts."""
    checks = []
    for n in (n for n in PUBLISHED_AT if n - 1 in numbers.contexts):
        checks += [
            measured(f"step.naive.{n}", step(numbers, "naive", n - 1), "{:.2f}"),
            measured(f"step.cached.{n}", step(numbers, BASELINE, n - 1), "{:.2f}"),
            measured(f"step.speedup.{n}", speedup(numbers, n - 1), "{:.1f}x"),
        ]
    return checks


if __name__ == "__main__":
    cli.run(main)
