"""Question: what does a paged cache save, what does a shared prompt save, and what does paging cost per step?

Claim (articles 3 and 4): slabs of the maximum length stay mostly empty and what is left between slabs is in
pieces; fixed-size blocks hand out only what is needed; requests that begin alike share those blocks, and a
timestamp at the front of the prompt makes every prefix unique; a node without the cache has to redo the
prefill; eviction is LRU. Attention does not change.

Memory: a queue of requests over the same number of token slots, handed out in three ways; of seeded random
lengths, or of `--lengths`, from which alone it is judged how much of a slab is used. Prefixes, nodes and
eviction: real prefills over pools. Cost: the paged rung against its contiguous parent, both proven, in
shuffled rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from msgspec.structs import replace

from experiments.shared import cli
from experiments.shared.outcome import Outcome, conclude
from experiments.shared.published import Check
from profiling.results.record import PagingRecord, Queue, SharedPrefix, Workload
from profiling.results.record.page import Block, Figure, Table
from profiling.results.record.pictures import Curves
from profiling.sizing.capacity import read_requests
from reports.numbers import interval
from variants.errors import UserError
from variants.ladder import ladder

if TYPE_CHECKING:
    from profiling.measure.runner import Runner
    from profiling.results.stats import Interval

EXAMPLES = ("", "--quick", "--model tiny --requests 64", "--lengths requests.csv")
CONTIGUOUS, PAGED = "sdpa", "paged"
USUAL = Workload(ttft_rounds=0, prompt=1)
QUICK = replace(USUAL, contexts=(10, 100, 1000), rounds=4, gate_steps=8)
LAYOUTS = ("system, question", "system, time, question", "time, system, question")


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser("experiments.paging", __doc__ or "", EXAMPLES, USUAL, QUICK)
    requests = parser.add_mutually_exclusive_group()
    requests.add_argument("--requests", type=int, default=200, help="in the queue, of random lengths")
    requests.add_argument(
        "--lengths", type=Path, metavar="FILE", help="the queue: a request's prompt and new tokens a line"
    )
    parser.add_argument("--prompts", type=int, help="that share a system prompt (default 8; 4 if quick)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.prompts is None:
        arguments.prompts = 4 if arguments.quick else 8
    for name in ("requests", "prompts"):
        if getattr(arguments, name) < 2:
            raise UserError(f"--{name} must be at least 2, got {getattr(arguments, name)}")
    from experiments.shared.measured import contexts_that_fit, model_on_device, proven_runner, with_flags
    from profiling.measure.paging import eviction, lengths, prefixes, queue, routing

    model, _ = model_on_device(arguments)
    limit, seed = model.config.n_ctx, arguments.seed
    mix = (
        _requests(arguments.lengths, limit) if arguments.lengths else lengths(arguments.requests, limit, seed)
    )
    workload = replace(QUICK if arguments.quick else USUAL, batch=arguments.batch, seed=seed)
    workload = with_flags(workload, arguments)
    fitting = contexts_that_fit(workload.contexts, model.config, workload.tokens_after)
    workload = replace(workload, contexts=arguments.context or fitting)

    def measure(runner: Runner[PagingRecord]) -> None:
        runner.run.update(queue=queue(mix, limit))
        runner.progress("prompts", 0, 1)
        over = model, arguments.precision
        shared = prefixes(*over, LAYOUTS, arguments.prompts, seed)
        runner.run.update(prefixes=shared, routing=routing(*over, seed), eviction=eviction(*over, seed))
        runner.measure()

    rungs = [ladder(arguments.precision)[name] for name in (CONTIGUOUS, PAGED)]
    runner = proven_runner(arguments, PagingRecord, model, workload, rungs, measure)
    return conclude(arguments, __doc__ or "", runner.run, outcome(runner.record, arguments.lengths is None))


def _requests(file: Path, limit: int) -> list[tuple[int, int]]:
    """(prompt, final) tokens of the requests in a file. Raises UserError for one that cannot be served."""
    mix = []
    for request in read_requests(file):
        prompt, final = request[0], sum(request)
        if len(request) != 2 or not 1 <= prompt < final <= limit:
            raise UserError(
                f"--lengths {file}: a request of {' and '.join(map(str, request))}; prompt and new tokens, "
                f"at least 1 each and at most {limit} together, are needed"
            )
        mix.append((prompt, final))
    return mix


# -- what is shown ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Median step of both rungs, ms, and the ratio over rounds."""

    contiguous: float
    paged: float
    ratio: Interval | None


def costs(record: PagingRecord) -> dict[int, Cost]:
    """The step of both rungs by context, where both have times."""
    from profiling.results.stats import ratio_interval

    by_context = {}
    for context in record.workload.contexts if record.workload else ():
        contiguous, paged = (
            [
                median(sample.steps_ms)
                for sample in record.samples
                if (sample.variant, sample.context) == (name, context)
            ]
            for name in (CONTIGUOUS, PAGED)
        )
        if paged:
            by_context[context] = Cost(median(contiguous), median(paged), ratio_interval(paged, contiguous))
    return by_context


def outcome(record: PagingRecord, made_up: bool) -> Outcome:
    """`made_up`: nobody sent these requests."""
    cost, queue = costs(record), record.queue
    assert queue is not None  # served before anything is timed
    tables = [_queue_table(queue), _prefix_table(record.prefixes), _return_table(record), _cost_table(cost)]
    lines = {
        CONTIGUOUS: [(float(n), c.contiguous) for n, c in cost.items()],
        PAGED: [(float(n), c.paged) for n, c in cost.items()],
    }
    figure = Figure(
        "paging",
        "Median step of the paged rung and of its contiguous parent, interleaved.",
        [Curves("tokens in the cache", "step, ms", lines, log_y=False)],
    )
    hits = {layout: hit_rate(shared) for layout, shared in record.prefixes.items()}
    slab, blocks = queue.served["slab of the limit"], queue.served["blocks"]
    paid = ", ".join(f"{interval(c.ratio)} times at {n:,}" for n, c in cost.items()) or "unknown"
    what = (
        f"blocks run {blocks.running / slab.running:.1f}x the requests of slabs in the same memory, "
        f"a shared prompt saves {hits[LAYOUTS[0]]:.0%} of the prefill, a step costs {paid}"
    )
    notes = [
        f"{len(queue.mix)} requests over {queue.slots:,} token slots; means over the ticks in which somebody "
        "waited, or over all",
        f"in pieces: ticks in which the next one's slots were free, but not side by side; blocks ran out for "
        f"requests that held {blocks.recomputed:,} tokens in all, and these waited and began again",
        "the first request of each layout finds an empty pool and is counted",
        *([_MADE_UP] if made_up else []),
    ]
    measured: list[Block] = [*([figure] if cost else []), *tables]
    statements = [
        *([] if made_up else [_unused(queue)]),
        *_queue_statements(queue),
        *_prefix_statements(record, hits),
    ]
    return Outcome(what, statements, measured, notes)


_MADE_UP = "how much of a slab is used follows from the requests: made up here, judged with --lengths"


def _unused(queue: Queue) -> Check:
    slab, mean = queue.served["slab of the limit"], sum(final for _, final in queue.mix) / len(queue.mix)
    unused = 1 - slab.used / slab.reserved
    why = f"requests of {mean:.0f} tokens on average; most is over half"
    return Check("paging.unused", f"{unused:.0%} never used", why, unused > 0.5)


def hit_rate(layout: SharedPrefix) -> float:
    """Share of prompt tokens that were not computed."""
    return sum(p.shared for p in layout.prompts) / sum(p.tokens for p in layout.prompts)


def _queue_statements(queue: Queue) -> list[Check]:
    slab, exact, blocks = queue.served.values()
    spare = (blocks.reserved - blocks.used) / max(1.0, blocks.running)
    return [
        Check(
            "paging.pieces",
            f"in {exact.refused_with_room} of {exact.ticks} ticks",
            "the next request waits although its slots are free, in pieces",
            exact.refused_with_room > 0,
        ),
        Check(
            "paging.demand",
            f"{spare:.1f} slots to spare a request",
            f"less than a block; {blocks.running:.1f} requests at once, {slab.running:.1f} with slabs",
            spare < queue.block and blocks.running > slab.running,
        ),
    ]


def _prefix_statements(record: PagingRecord, hits: dict[str, float]) -> list[Check]:
    prompts = [prompt for layout in record.prefixes.values() for prompt in layout.prompts]
    prompts += [*record.routing.values(), *record.eviction.values()]
    same = all(prompt.bit_equal for prompt in prompts)
    proven = all(entry.status == "proven" for entry in record.variants.values())
    plain, end, front = (hits[layout] for layout in LAYOUTS)
    here, elsewhere = (prompt.tokens - prompt.shared for prompt in record.routing.values())
    again, once = (prompt.shared for prompt in record.eviction.values())
    return [
        Check("paging.share", f"{plain:.0%} not computed", "", plain > 0.5),
        Check("paging.timestamp", f"{front:.0%} not computed", "", front == 0),
        Check("paging.end", f"{end:.0%} not computed", "time after the system prompt", end > 0.5),
        Check(
            "paging.routing",
            f"{elsewhere} tokens computed, {here} where the cache is",
            "a conversation's second turn; redone is every token of it",
            elsewhere == record.routing["another node"].tokens and here < elsewhere / 2,
        ),
        Check(
            "paging.eviction",
            f"{again} tokens found of the prompt used again, {once} of the other",
            "of two prompts in a pool with no room for a third, the older one used again before that came",
            again > 0 == once,
        ),
        Check(
            "paging.same",
            "bit-equal" if same and proven else "not equal",
            f"prefix sharing bit-equal: {same}; both rungs pass the gate: {proven}",
            same and proven,
        ),
    ]


def _queue_table(queue: Queue) -> Table:
    rows = [
        (
            name,
            f"{s.running:.1f}",
            f"{s.reserved / queue.slots:.0%}",
            f"{s.used / s.reserved:.0%}",
            str(s.refused_with_room),
            f"{s.ticks:,}",
        )
        for name, s in queue.served.items()
    ]
    columns = ("memory in", "running", "reserved", "used", "in pieces", "ticks")
    title = "Requests of mixed lengths in one memory (used: of what is reserved)"
    return Table(columns, rows, title=title)


def _prefix_table(prefixes: dict[str, SharedPrefix]) -> Table:
    rows = []
    for layout, of_layout in prefixes.items():
        prompts = of_layout.prompts
        later = median(prompt.ms for prompt in prompts[1:])
        cells = (
            f"{hit_rate(of_layout):.0%}",
            str(of_layout.blocks),
            f"{prompts[0].ms:.1f}",
            f"{later:.1f}",
        )
        rows.append((layout, *cells, "yes" if of_layout.bit_equal else "no"))
    n, tokens = len(prompts), prompts[0].tokens
    title = f"{n} prompts with one system prompt (about {tokens} tokens): share not computed"
    heads = ("prompt", "hits", "blocks", "first, ms", "later, ms", "bit-equal")
    return Table(heads, rows, title=title)


def _return_table(record: PagingRecord) -> Table:
    """Prompts that come back: to the node that has the cache or another, and to a pool that was full."""
    rows = [
        (what, name, str(prompt.tokens), str(prompt.shared), f"{prompt.ms:.1f}")
        for what, prompts in (("second turn", record.routing), ("full pool", record.eviction))
        for name, prompt in prompts.items()
    ]
    heads = ("comes back", "to, or as", "tokens", "found", "ms")
    return Table(heads, rows, 2, "Prompts that come back, and what the pool still holds of them")


def _cost_table(cost: dict[int, Cost]) -> Table:
    rows = []
    for context, c in cost.items():
        rows.append((str(context), f"{c.contiguous:.3f}", f"{c.paged:.3f}", interval(c.ratio)))
    title = "Step, ms (median over rounds), and what paging costs"
    return Table(("context", CONTIGUOUS, PAGED, "ratio over rounds"), rows, title=title)


if __name__ == "__main__":
    cli.run(main)
