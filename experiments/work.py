"""Question: how much does a step compute and read, and how much of it does the cache save?

Claim (articles 1-3): the naive loop does n times the arithmetic of a cached step; 34.0 times for the toy
model over 64 tokens, 1,000 times for GPT-2 small at 1,000; decode reads all weights for 0.48 MACs a byte.

Counts only, no times: exact formulas (`profiling.cost.work`) against the published figures, and against the
matrix multiplications that a real run of each eager rung executes (`profiling.cost.matmul_counter`). A
context of n tokens held is the articles' n + 1: they count the new token among the keys that its query sees.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from msgspec.structs import asdict as fields

from experiments.shared.cli import common_parser, run
from experiments.shared.reproduced import device_checks, work_checks
from profiling.cost import work
from profiling.results.record import CountedPass, Model, StepCounts, Workload, WorkRecord
from profiling.results.record.page import Figure, Table
from profiling.results.record.pictures import Curves
from variants.backends.backend import MODULES
from variants.config import GPTConfig
from variants.errors import UserError
from variants.executors.executor import EAGER
from variants.ladder import ladder
from variants.slots.pages import DEFAULT
from variants.spec import Variant

if TYPE_CHECKING:
    from variants.model import GPT

EXAMPLES = ("", "--quick", "--model gpt2-xl --context 10,1000 --precision bfloat16")
PROMPT, NEW = 10, 512  # the first article's longest generation


def eager_rungs(precision: str) -> list[Variant]:
    """Rungs whose operations can be watched one by one, and that store the weights as the first does."""
    return [
        variant
        for variant in ladder(precision).values()
        if (variant.executor, variant.pages, variant.backend) == (EAGER, DEFAULT, MODULES)
        and variant.precision.name == precision
    ]


def count_rung(variant: Variant, model: GPT, contexts: Sequence[int], batch: int) -> Iterator[CountedPass]:
    """Execute a prefill and a step of this rung at each context, and count."""
    import torch

    from profiling.cost.matmul_counter import MatmulCounter
    from variants.decoder import Decoder

    config = model.config
    slots = tuple(n + 1 for n in contexts)
    decoder = Decoder.of(variant, model, batch=batch, capacity=slots[-1], buckets=slots)
    last = variant.head.logits
    calls = work.matmul_calls(config, variant.attention.matmuls)
    for n in contexts:
        tokens = torch.arange(n * batch, device=model.device).view(batch, n) % config.vocab_size
        passes: dict[Literal["prefill", "step"], work.Work] = {
            "prefill": work.forward(n, past=decoder.bucket(n - 1) - n, logits=last),
            "step": work.step_work(variant, n, decoder.bucket(n)),
        }
        for what, expected in passes.items():
            with MatmulCounter() as counted:
                decoder.prefill(tokens) if what == "prefill" else decoder.advance()
            macs = work.macs(config, expected * batch)
            yield CountedPass(variant.name, what, n, macs, counted.macs, calls, counted.calls)


def steps_table(config: GPTConfig, contexts: Sequence[int], dtype_bytes: int, batch: int) -> Table:
    """MACs and bytes of one step over context."""
    heads = ("context", "no cache, MACs", "cached, MACs", "ratio", "attn.", "bytes read", "MACs/B")
    rows = []
    for n in contexts:
        naive, cached = work.naive_step_macs(config, n + 1, batch), work.step_macs(config, n, batch)
        read_bytes = work.step_bytes(config, n, dtype_bytes, dtype_bytes, batch)
        share = work.attention_share(config, work.forward(1, past=n))
        cells = (f"{naive:,}", f"{cached:,}", f"{naive // cached:,}x", f"{share:.1%}", f"{read_bytes:,}")
        rows.append((f"{n:,}", *cells, f"{cached / read_bytes:.2f}"))
    return Table(heads, rows, title="One step (attn.: share of attention in the cached one)")


def loops_table(config: GPTConfig) -> Table:
    """Tokens and MACs of a whole generation, no cache against cached."""
    new = min(NEW, config.n_ctx - PROMPT)
    title = f"{new} new tokens after a prompt of {PROMPT}"
    rows = []
    naive = work.naive_loop(PROMPT, new)
    one_logit = work.Work(naive.tokens, naive.pairs, new)
    loops = {"no cache": naive, "no cache, last logits": one_logit, "cached": work.cached_loop(PROMPT, new)}
    for name, loop in loops.items():
        share = work.macs(config, loop) / work.macs(config, naive)
        rows.append((name, f"{loop.tokens:,}", f"{work.macs(config, loop):,}", f"{share:.2%}"))
    return Table(("loop", "tokens processed", "MACs", "share"), rows, title=title)


def counted_table(counts: Sequence[CountedPass]) -> Table:
    """A table of what a real run executed at the largest context, and how often the formula agrees."""
    largest = max(row.context for row in counts)
    title = f"Executed in a real run, at context {largest:,}"
    rows = []
    for row in counts:
        if row.context == largest:
            same = [c.agrees for c in counts if (c.variant, c.what) == (row.variant, row.what)]
            cells = (str(row.executed_calls), f"{row.executed_macs:,}", f"{row.formula_macs:,}")
            rows.append((row.variant, row.what, *cells, f"{sum(same)} of {len(same)}"))
    return Table(("rung", "pass", "matmuls", "MACs", "by formula", "agree"), rows, 2, title)


def steps_figure(steps: dict[int, StepCounts]) -> Figure:
    """A figure of the MACs and bytes of one step over context."""
    lines = {
        "MACs, no cache": [(n, step.naive_macs / 1e6) for n, step in steps.items()],
        "MACs, cached": [(n, step.cached_macs / 1e6) for n, step in steps.items()],
        "bytes read, cached": [(n, step.read_bytes / 1e6) for n, step in steps.items()],
    }
    return Figure(
        "work",
        "Multiply-accumulates and bytes of one step: without a cache the first grow with the text.",
        [Curves("context, tokens in the cache", "millions", lines)],
    )


def counts_of_steps(
    config: GPTConfig, contexts: Sequence[int], dtype_bytes: int, batch: int
) -> dict[int, StepCounts]:
    """Per context, MACs of a step without and with a cache, and the bytes that the latter reads."""
    return {
        n: StepCounts(
            work.naive_step_macs(config, n + 1, batch),
            work.step_macs(config, n, batch),
            work.step_bytes(config, n, dtype_bytes, dtype_bytes, batch),
        )
        for n in contexts
    }


def contexts_for(arguments: argparse.Namespace, config: GPTConfig) -> list[int]:
    """The contexts asked for, or those of the second article that this model holds."""
    limit = config.n_ctx - 1
    wanted = arguments.context or [n for n in Workload().contexts if n <= limit]
    contexts = sorted(set(wanted))
    if not contexts or contexts[0] < 1 or contexts[-1] > limit:
        raise UserError(
            f"--context must be between 1 and {limit}, what this model holds before one more token"
        )
    if arguments.batch < 1:
        raise UserError(f"--batch must be at least 1, got {arguments.batch}")
    return contexts


def main(argv: Sequence[str] | None = None) -> int:
    arguments = common_parser("experiments.work", __doc__ or "", EXAMPLES, used=("context",)).parse_args(argv)

    from experiments.shared.outcome import Outcome, conclude
    from experiments.shared.setup import device_for, model_for
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder

    device = device_for(arguments.device)
    model = model_for(arguments, device)
    config, dtype_bytes = model.config, model.dtype.itemsize
    contexts = contexts_for(arguments, config)
    folder = RunFolder.create(arguments.out, WorkRecord, device.type)

    watched = contexts[:1] if arguments.quick else contexts
    counts = [
        counted
        for variant in eager_rungs(arguments.precision)
        for counted in count_rung(variant, model, watched, arguments.batch)
    ]
    steps = counts_of_steps(config, contexts, dtype_bytes, arguments.batch)
    folder.update(
        environment=environment(device),
        model=Model(arguments.model, shape=config),
        steps=steps,
        executed=counts,
    )
    agreeing = sum(counted.agrees for counted in counts)
    tables = [steps_table(config, contexts, dtype_bytes, arguments.batch), loops_table(config)]
    outcome = Outcome(
        f"the counts are exact, {agreeing} of {len(counts)} executed passes agree with the formula",
        [*work_checks(), *device_checks()],
        [steps_figure(steps), *tables, counted_table(counts)],
        ["--quick: executed at the first context only"] if arguments.quick else [],
        also=agreeing == len(counts),
        counted="figures as published",
    )
    executed = [{**fields(counted), "agrees": counted.agrees} for counted in counts]
    return conclude(
        arguments, __doc__ or "", folder, outcome, model=asdict(config), steps=steps, executed=executed
    )


if __name__ == "__main__":
    run(main)
