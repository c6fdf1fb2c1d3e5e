"""Question: how many tokens a second does generation give with and without a cache, and why not as many more
as there is less work?

Claim (article 1): after a prompt of 10 tokens the cached loop keeps its rate however long the output is, the
naive loop collapses, and yet 512 new tokens come 6.1 times faster and not 260 times, because the work that
the cache removes is the efficient work. Article 2: 1,016 tokens in 14.66 s against 5.03 s.

Whole loops, greedy, a sync per token; the variants are proven first. One loop gives all shorter ones: the
first n tokens of it are the loop of n.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from experiments.shared import cli
from experiments.shared.claims import measured
from experiments.shared.measured import PROVEN_BRIEFLY, chosen_variants, model_on_device, proven_runner
from experiments.shared.outcome import Outcome, conclude
from experiments.shared.published import Check
from profiling.cost import work
from profiling.results.peaks import beyond_peaks
from profiling.results.record import ThroughputRecord, WatchedLoop, Workload
from profiling.results.record.page import Figure, Table
from profiling.results.record.pictures import Curves
from profiling.results.stats import Interval, ratio_interval
from profiling.results.throughput import Loops
from reports.numbers import interval
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError
from variants.ladder import BASELINE

if TYPE_CHECKING:
    from profiling.measure.runner import Runner
    from variants.decoder import Decoder

EXAMPLES = ("", "--quick", "--new 16,64 --variant tape --model gpt2-medium")
NEW, QUICK_NEW = (16, 32, 64, 128, 256, 512), (16, 32)
PROMPT, WHOLE_PROMPT = 10, 8  # the first article's prompt; the second fills the context from 8 tokens
USUAL = Workload(contexts=(PROMPT,), rounds=3, gate_steps=200)  # `--context` is the prompt's length here
QUICK = replace(USUAL, rounds=1, gate_steps=24)
FLAT, COLLAPSED = 0.8, 0.9  # slowest over fastest rate that is still flat; last over first that is not
TREND, TREND_LENGTHS, TREND_ROUNDS = 8, 3, 3  # longest over shortest, lengths and rounds: a trend's least
SHORT = 0.5  # a speedup under half of the work removed


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser(
        "experiments.throughput", __doc__ or "", EXAMPLES, USUAL, QUICK, used=("context", "rounds")
    )
    parser.add_argument("--new", type=cli.integers, metavar="N,N", help="new tokens (default 16 to 512)")
    parser.add_argument("--variant", action="append", metavar="NAME,NAME", help="besides naive and cat")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    model, device = model_on_device(arguments)
    config = model.config
    prompt, new = _prompt(arguments), _new(arguments, config)
    extra = cli.names(arguments.variant) or ([] if arguments.quick else ["sdpa"])
    variants = chosen_variants(extra, arguments.precision, device.type)
    whole = None if arguments.quick else config.n_ctx - WHOLE_PROMPT
    longest = max(prompt + new[-1], config.n_ctx if whole else 0)
    workload = replace(QUICK if arguments.quick else USUAL, batch=arguments.batch, seed=arguments.seed)
    workload = replace(workload, rounds=arguments.rounds or workload.rounds, prompt=prompt)
    workload = replace(workload, contexts=(max(1, longest - workload.tokens_after),))

    def measure(runner: Runner[ThroughputRecord]) -> None:
        watched = [case for case in runner.cases if case.name in ("naive", BASELINE)]
        counted = {case.name: _watched_loop(case.decoder, runner, prompt, new[0]) for case in watched}
        runner.run.update(counted=counted, new=new)
        _time(runner, prompt, new[-1], workload.rounds)
        if whole:
            _time(runner, WHOLE_PROMPT, whole, 1)

    runner = proven_runner(arguments, ThroughputRecord, model, workload, variants, measure)
    return conclude(arguments, __doc__ or "", runner.run, outcome(Loops(runner.record, config), whole))


def _time(runner: Runner[ThroughputRecord], prompt: int, new: int, rounds: int) -> None:
    from profiling.measure.visits import Generation

    fields = runner.clock, prompt, new, runner.record.generations
    runner.time(f"generate {new} tokens", [Generation(case, *fields) for case in runner.once()], rounds)


def _prompt(arguments: argparse.Namespace) -> int:
    """`--context` is the prompt's length here."""
    if arguments.context is None:
        return PROMPT
    if len(arguments.context) != 1 or arguments.context[0] < 1:
        raise UserError("--context is the prompt's length here: one number of at least 1")
    return int(arguments.context[0])


def _new(arguments: argparse.Namespace, config: GPTConfig) -> list[int]:
    """Numbers of new tokens, ascending; the defaults are cut to what this model holds."""
    room = config.n_ctx - _prompt(arguments)
    if arguments.new is None:
        default = QUICK_NEW if arguments.quick else NEW
        return [n for n in default if n <= room] or [max(1, room)]
    new = sorted(set(arguments.new))
    if new[0] < 1 or new[-1] > room:
        raise UserError(
            f"--new must be between 1 and {room}: the model holds {config.n_ctx} tokens with the prompt"
        )
    return new


def _watched_loop(decoder: Decoder, runner: Runner[ThroughputRecord], prompt: int, new: int) -> WatchedLoop:
    """One untimed loop, watched: positions that entered the first block, and multiply-accumulates."""
    from profiling.cost.matmul_counter import MatmulCounter

    positions = [0]

    def watch(block: Any, inputs: tuple[Any, ...]) -> None:
        positions[0] += inputs[0].size(0) * inputs[0].size(1)

    handle = decoder.our_modules.model.blocks[0].register_forward_pre_hook(watch)
    try:
        with MatmulCounter() as counter:
            decoder.prefill(runner.cases[0].inputs.tokens[:, :prompt])
            for _ in range(new - 1):
                decoder.advance()
    finally:
        handle.remove()
    return WatchedLoop(new, positions[0], counter.macs)


# -- from the record to what is shown ---------------------------------------------------------


def outcome(loops: Loops, whole: int | None) -> Outcome:
    """`whole`: new tokens of the loop that fills the model's context, where it ran."""
    last, missing = loops.new[-1], [str(n) for n in NEW if n not in loops.new]
    notes = ["a sync after every token; 'by work' is the ratio of multiply-accumulates of the two loops"]
    if not whole:
        notes.append(f"left out by --quick: {', '.join(missing)} new tokens, 1,016, sdpa; {PROVEN_BRIEFLY}")
    notes += beyond_peaks(
        {name: loops.flop_rate(name, last) / loops.matmul_flop_per_s for name in loops.timed}
    )
    lines = {name: [(n, loops.rate(name, n)) for n in loops.new] for name in loops.timed}
    figure = Figure(
        "throughput",
        f"Tokens a second of whole generations after a prompt of {loops.prompt} tokens.",
        [Curves("new tokens", "tokens/s", lines)],
    )
    what = (
        f"{last} new tokens come {loops.speedup(last):.1f}x faster with the cache, "
        f"for {loops.less_work(last):.0f}x less work"
    )
    tables = [_rates_table(loops), _work_table(loops), *([_whole_table(loops, whole)] if whole else [])]
    gpt2 = loops.config == PRESETS["gpt2"] and loops.batch == 1
    compared = _figures(loops, whole) if gpt2 else []
    return Outcome(what, [*_statements(loops), *compared], [figure, *tables], notes)


def _rates_table(loops: Loops) -> Table:
    rows = [
        (
            str(n),
            *(f"{loops.rate(name, n):.1f}" for name in loops.timed),
            f"{loops.speedup(n):.1f}x",
            f"{loops.less_work(n):.1f}x",
        )
        for n in loops.new
    ]
    title = f"Tokens/s after a prompt of {loops.prompt}; speedup of {BASELINE}"
    return Table(("new", *loops.timed, "speedup", "by work"), rows, title=title)


def _work_table(loops: Loops) -> Table:
    """Tokens and FLOPs by formula; `counted` says whether a watched run did the same."""
    peak, last = loops.matmul_flop_per_s, loops.new[-1]
    rows = []
    for name, counted in loops.record.counted.items():
        expected = loops.work(name, counted.new) * loops.batch
        same = (expected.tokens, work.macs(loops.config, expected)) == (counted.tokens, counted.macs)
        rate = loops.flop_rate(name, last)
        rows.append(
            (
                name,
                f"{loops.work(name, last).tokens:,}",
                "equal" if same else f"not: {counted.tokens:,}",
                f"{loops.flops(name, last) / 1e9:,.1f}",
                f"{rate / 1e9:.1f}",
                f"{rate / peak:.1%}",
            )
        )
    title = f"Work of {last} new tokens; matmul peak here {peak / 1e9:.0f} GFLOP/s"
    heads = ("loop", "tokens", "counted", "GFLOP", "GFLOP/s", "of peak")
    return Table(heads, rows, title=title)


def _whole_table(loops: Loops, whole: int) -> Table:
    taken = {name: loops.seconds(name, WHOLE_PROMPT, whole) for name in loops.timed}
    rows = [(name, f"{s:.2f}", f"{taken['naive'] / s:.1f}x") for name, s in taken.items()]
    title = f"{whole:,} tokens end to end, from {WHOLE_PROMPT} to the model's limit"
    return Table(("variant", "s", "speedup"), rows, title=title)


def _statements(loops: Loops) -> list[Check]:
    """The article's sentences, each with the rule that decides it."""
    last = loops.new[-1]
    speedup, less = loops.speedup(last), loops.less_work(last)
    theirs, ours = (loops.flop_rate(name, last) / 1e9 for name in ("naive", BASELINE))
    return [
        *_trends(loops),
        Check(
            "throughput.short",
            f"{speedup:.1f}x, not {less:.0f}x",
            f"at {last} new tokens; short is under half of the work removed",
            speedup < SHORT * less,
        ),
        Check(
            "throughput.efficient",
            f"{theirs / ours:.1f}x the FLOP/s",
            f"naive {theirs:.1f}, cached {ours:.1f} GFLOP/s at {last} new tokens; the higher is efficient",
            theirs > ours,
        ),
    ]


def _trends(loops: Loops) -> list[Check]:
    """What rates do as texts grow: judged over rounds, where these decide it, and never from texts alike."""
    first, last = loops.new[0], loops.new[-1]
    if last < TREND * first or len(loops.new) < TREND_LENGTHS or loops.workload.rounds < TREND_ROUNDS:
        return []
    cached = {n: loops.rate(BASELINE, n) for n in loops.new}
    slowest, fastest = min(cached, key=cached.__getitem__), max(cached, key=cached.__getitem__)
    flat, fell = _over(loops, BASELINE, slowest, fastest), _over(loops, "naive", last, first)
    before, after = loops.rate("naive", first), loops.rate("naive", last)
    checks = []
    if not flat.low < FLAT <= flat.high:
        here = f"{cached[slowest]:.1f} to {cached[fastest]:.1f} tok/s"
        why = f"slowest over fastest {interval(flat)} over rounds; flat from {FLAT}"
        checks.append(Check("throughput.flat", here, why, flat.low >= FLAT))
    if not fell.low < COLLAPSED <= fell.high:
        here = f"{before:.1f} to {after:.1f} tok/s"
        why = f"last over first {interval(fell)} over rounds; collapsing below {COLLAPSED}"
        checks.append(Check("throughput.collapse", here, why, fell.high < COLLAPSED))
    return checks


def _over(loops: Loops, variant: str, new: int, other: int) -> Interval:
    """Rate of `new` tokens over that of `other` ones, round by round."""
    rates = [loops.rates(variant, n) for n in (new, other)]
    over = ratio_interval(*rates)
    assert over is not None  # there are several rounds
    return over


def _longest(loops: Loops, new: int) -> list[Check]:
    """The article's longest loop: its last step, the arithmetic in it, and what another run gives."""
    naive, cached = (loops.token_ms(name, new) for name in ("naive", BASELINE))
    flops = work.FLOPS_PER_MAC * work.step_macs(loops.config, loops.prompt + new - 2)
    math_ms = flops / loops.matmul_flop_per_s * 1e3
    rounds = zip(*(loops.rates(name, new) for name in (BASELINE, "naive")), strict=True)
    speedups = [with_cache / without for with_cache, without in rounds]
    return [
        measured("last.naive", naive, "{:.0f} ms"),
        measured("last.cached", cached, "{:.0f} ms"),
        measured("last.ratio", naive / cached, "{:.0f}x"),
        Check(
            "last.math",
            f"{math_ms:.2f} ms",
            f"at the matmul peak measured here, in a step of {cached:.0f} ms",
        ),
        Check("throughput.again", f"{min(speedups):.1f}x to {max(speedups):.1f}x", f"{len(speedups)} rounds"),
    ]


def _figures(loops: Loops, whole: int | None) -> list[Check]:
    """The articles' numbers for GPT-2 small, where this run has them."""
    checks = []
    for n in (n for n in NEW if n in loops.new and loops.prompt == PROMPT):
        checks += [
            measured(f"throughput.naive.{n}", loops.rate("naive", n), "{:.1f}"),
            measured(f"throughput.cached.{n}", loops.rate(BASELINE, n), "{:.1f}"),
            measured(f"throughput.speedup.{n}", loops.speedup(n), "{:.1f}x"),
        ]
        if n == NEW[-1]:
            checks += [measured("time.removed", 100 - 100 / loops.speedup(n), "{:.0f}%"), *_longest(loops, n)]
    if whole:
        naive, cached = (loops.seconds(name, WHOLE_PROMPT, whole) for name in ("naive", BASELINE))
        checks += [
            measured("generate.naive", naive, "{:.2f} s"),
            measured("generate.cached", cached, "{:.2f} s"),
            measured("generate.speedup", naive / cached, "{:.1f}x"),
        ]
    return checks


if __name__ == "__main__":
    cli.run(main)
