"""Question: what does a paged cache save, what does a shared prompt save, and what does paging cost per step?

Claim (articles 3 and 4): slabs of the maximum length stay mostly empty and what is left between slabs is in
pieces; fixed-size blocks hand out only what is needed; requests that begin alike share those blocks, and a
timestamp at the front of the prompt makes every prefix unique. Attention does not change.

Memory: a queue of requests of seeded random lengths over the same number of token slots, handed out in three
ways. Prefixes: real prefills over one pool. Cost: the paged rung against its contiguous parent, both proven,
interleaved in shuffled rounds.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from experiments import _cli
from experiments._outcome import Outcome, conclude
from experiments._published import Check
from profiling.workload import Workload
from reports.shown import Curves, Shown
from variants.errors import UserError
from variants.ladder import ladder

if TYPE_CHECKING:
    from torch import Tensor

    from profiling.record import RunFolder
    from variants.decoder import Decoder
    from variants.model import GPT

EXAMPLES = ("", "--quick", "--model tiny --requests 64")
CONTIGUOUS, PAGED = "sdpa", "paged"
BLOCK = 16  # tokens, as `variants.blocks`, which needs torch
SLABS = 8  # the memory of the queue: as many slabs of the model's limit
LAYOUTS = ("system, question", "system, time, question", "time, system, question")
STAMP = 3  # tokens of a timestamp or request id, different in every request


def parser() -> argparse.ArgumentParser:
    parser = _cli.common_parser("experiments.paging", __doc__ or "", EXAMPLES)
    parser.add_argument("--requests", type=int, default=200, help="in the queue (default 200)")
    parser.add_argument("--prompts", type=int, default=8, help="that share a system prompt (default 8)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    for name in ("requests", "prompts"):
        if getattr(arguments, name) < 2:
            raise UserError(f"--{name} must be at least 2, got {getattr(arguments, name)}")
    from experiments._measured import contexts_that_fit, model_on_device
    from experiments._progress import ProgressLine
    from profiling.environment import environment
    from profiling.record import RunFolder

    model, device = model_on_device(arguments)
    workload = Workload(batch=arguments.batch, seed=arguments.seed)
    if arguments.quick:
        workload = replace(workload, contexts=(10, 100), rounds=8, gate_steps=16)
    flags = {"contexts": arguments.context, "steps": arguments.steps, "rounds": arguments.rounds}
    workload = replace(workload, **{name: value for name, value in flags.items() if value is not None})
    if arguments.context is None:
        fitting = contexts_that_fit(workload.contexts, model.config, workload.tokens_after)
        workload = replace(workload, contexts=fitting)
    workload.check(model.config)
    run = RunFolder.create(arguments.out, "paging", device.type)
    run.data |= {
        "environment": environment(device),
        "workload": asdict(workload),
        "model": {"name": arguments.model, "precision": arguments.precision, **asdict(model.config)},
    }
    with ProgressLine(arguments.quiet) as progress:
        progress("queue", 0, 1)
        run.data["queue"] = queue(arguments.requests, model.config.n_ctx, arguments.seed)
        progress("prompts", 0, 1)
        run.data["prefixes"] = prefixes(model, arguments.precision, arguments.prompts, arguments.seed)
        progress("gate", 0, 1)
        time_steps(run, model, arguments.precision, workload, progress)
    return conclude(arguments, __doc__ or "", run, outcome(run.data))


# -- measuring --------------------------------------------------------------------------------


def queue(requests: int, limit: int, seed: int) -> dict[str, Any]:
    """The three ways to hand out the same memory to the same requests."""
    from experiments._serving import Blocks, Slabs, Store, lengths, serve

    slots, mix = SLABS * limit, lengths(requests, limit, seed)
    stores: dict[str, Store] = {
        "slab of the limit": Slabs(slots, limit),
        "slab of the final length": Slabs(slots, None),
        f"blocks of {BLOCK}": Blocks(slots),
    }
    return {
        "slots": slots,
        "mix": mix,
        "served": {name: asdict(serve(mix, store)) for name, store in stores.items()},
    }


def prefixes(model: GPT, precision: str, prompts: int, seed: int) -> dict[str, dict[str, Any]]:
    """Prefills that share a system prompt, per layout: tokens not computed, TTFT, and equality to the bit."""
    import torch

    from profiling.gate.oracle import random_stream
    from variants.blocks import BlockPool, blocks_for
    from variants.decoder import Decoder
    from variants.paged import PagedCache

    limit, vocabulary = model.config.n_ctx, model.config.vocab_size
    lengths = {"system": min(256, limit // 2), "time": STAMP, "question": min(24, limit // 8)}
    total, rung, found = sum(lengths.values()), ladder(precision)[PAGED], {}

    def part(name: str, number: int) -> Tensor:
        """The system prompt is the same for all; time and question are everyone's own."""
        own = {"system": 0, "time": 1000 + number, "question": 2000 + number}[name]
        return random_stream(vocabulary, 1, lengths[name], seed + own).to(model.device)

    for layout in LAYOUTS:
        decoder, alone = (Decoder(rung, model, capacity=total) for _ in range(2))
        assert isinstance(decoder.cache, PagedCache)
        decoder.cache.share(BlockPool(model.config, prompts * blocks_for(total), model.wpe.weight))
        texts = [torch.cat([part(p, n) for p in layout.split(", ")], dim=1) for n in range(prompts)]
        rows = [_prefilled(decoder, alone, text) for text in texts]
        used = decoder.cache.pool.blocks - len(decoder.cache.pool.free)
        found[layout] = {"prompts": rows, "bit_equal": all(r["bit_equal"] for r in rows), "blocks": used}
    return found


def _prefilled(decoder: Decoder, alone: Decoder, text: Tensor) -> dict[str, Any]:
    """One prompt over what the pool holds, timed, and the same passes in a decoder that shares nothing."""
    import torch

    from profiling.clock import Clock
    from variants.paged import prefill_shared

    made: list[tuple[Tensor, int]] = []
    (ms,) = Clock(text.device).each_ms(lambda: made.append(prefill_shared(decoder, text)), 1)
    ((logits, held),) = made
    alone.reset()
    if held:
        alone.prefill(text[:, :held])
    same = torch.equal(alone.extend(text[:, held:])[:, -1], logits)
    return {"tokens": text.size(1), "shared": held, "ms": ms, "bit_equal": same}


def time_steps(run: RunFolder, model: GPT, precision: str, workload: Workload, progress: Any) -> None:
    """Both rungs proven, then timed in shuffled rounds; samples into the run folder as they arrive."""
    from profiling.clock import Clock
    from profiling.gate import Gate
    from profiling.subjects import Material, Subject
    from variants.decoder import Decoder

    buckets = workload.buckets(model.config)
    gate = Gate(
        model,
        precision,
        batch=workload.batch,
        capacity=buckets[-1],
        steps=workload.gate_steps,
        seed=workload.seed,
    )
    material = Material(model, precision, workload, max(workload.contexts))
    clock, subjects = Clock(model.device), []
    run.data |= {"gate": {}, "samples": []}
    for name in (CONTIGUOUS, PAGED):
        variant = ladder(precision)[name]
        decoder = Decoder(variant, model, batch=workload.batch, capacity=buckets[-1], buckets=buckets)
        run.data["gate"][name] = result = asdict(gate.check(decoder))
        if result["status"] == "pass":
            subjects.append(Subject(name, decoder, workload.contexts, material, True, workload))
    for number in range(workload.rounds if len(subjects) == 2 else 0):
        progress("rounds", number, workload.rounds)
        visits = [(subject, context) for subject in subjects for context in workload.contexts]
        random.Random(f"{workload.seed} {number}").shuffle(visits)
        for subject, context in visits:
            subject.load(context)
            clock.each_ms(subject.decoder.advance, subject.settle)
            steps = clock.each_ms(subject.decoder.advance, subject.steps)
            sample = {"round": number, "variant": subject.name, "context": context, "steps_ms": steps}
            run.data["samples"].append(sample)
        run.save()


# -- what is shown ----------------------------------------------------------------------------


def costs(record: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Per context: median step of both rungs, ms, and the ratio over rounds with its interval."""
    from profiling.stats import ratio_interval

    found = {}
    for context in record["workload"]["contexts"]:
        ms = {
            name: [
                median(sample["steps_ms"])
                for sample in record["samples"]
                if (sample["variant"], sample["context"]) == (name, context)
            ]
            for name in (CONTIGUOUS, PAGED)
        }
        if ms[PAGED]:
            ratio = ratio_interval(ms[PAGED], ms[CONTIGUOUS])
            found[context] = {"ratio": ratio, **{name: median(rounds) for name, rounds in ms.items()}}
    return found


def outcome(record: dict[str, Any]) -> Outcome:
    cost = costs(record)
    tables = [_queue_table(record["queue"]), _prefix_table(record["prefixes"]), _cost_table(cost)]
    curves = Curves(
        "Median step of the paged rung and of its contiguous parent, interleaved.",
        "tokens in the cache",
        "step, ms",
        {name: [(float(n), c[name]) for n, c in cost.items()] for name in (CONTIGUOUS, PAGED) if cost},
    )
    served, hits = record["queue"]["served"], {k: hit_rate(v) for k, v in record["prefixes"].items()}
    slab, blocks = served["slab of the limit"], served[f"blocks of {BLOCK}"]
    paid = ", ".join(f"{c['ratio'].mid:.2f}x at {n}" for n, c in cost.items() if c["ratio"]) or "unknown"
    what = (
        f"blocks run {blocks['running'] / slab['running']:.1f}x the requests of slabs in the same memory, "
        f"a shared prompt saves {hits[LAYOUTS[0]]:.0%} of the prefill, a step costs {paid}"
    )
    slots, mix = record["queue"]["slots"], record["queue"]["mix"]
    notes = [
        f"{len(mix)} requests over {slots:,} token slots; means over the ticks in which somebody waited",
        f"in pieces: ticks in which the next one's slots were free, but not side by side; blocks ran out for "
        f"requests that held {blocks['recomputed']:,} tokens in all, and these waited and began again",
        "the first request of each layout finds an empty pool and is counted",
        *(f"{n} failed the gate: {g['reason']}" for n, g in record["gate"].items() if g["status"] != "pass"),
    ]
    return Outcome(what, _statements(record, hits), [], tables, curves if cost else None, notes)


def hit_rate(layout: dict[str, Any]) -> float:
    """Share of prompt tokens that were not computed."""
    rows = layout["prompts"]
    return float(sum(row["shared"] for row in rows) / sum(row["tokens"] for row in rows))


def _statements(record: dict[str, Any], hits: dict[str, float]) -> list[Check]:
    slab, exact, blocks = record["queue"]["served"].values()
    filled = {name: s["used"] / s["reserved"] for name, s in record["queue"]["served"].items()}
    unused = 1 - filled["slab of the limit"]
    spare = (blocks["reserved"] - blocks["used"]) / max(1.0, blocks["running"])
    same = all(layout["bit_equal"] for layout in record["prefixes"].values())
    proven = all(result["status"] == "pass" for result in record["gate"].values())
    plain, end, front = (hits[layout] for layout in LAYOUTS)
    return [
        Check("paging.unused", f"{unused:.0%} never used", "most: over half", unused > 0.5),
        Check(
            "paging.pieces",
            f"in {exact['refused_with_room']} of {exact['ticks']} ticks",
            "the next request waits although its slots are free, in pieces",
            exact["refused_with_room"] > 0,
        ),
        Check(
            "paging.demand",
            f"{spare:.1f} slots to spare a request",
            f"less than a block; {blocks['running']:.1f} requests at once, {slab['running']:.1f} with slabs",
            spare < BLOCK and blocks["running"] > slab["running"],
        ),
        Check("paging.share", f"{plain:.0%} not computed", "", plain > 0.5),
        Check("paging.timestamp", f"{front:.0%} not computed", "", front == 0),
        Check("paging.end", f"{end:.0%} not computed", "time after the system prompt", end > 0.5),
        Check(
            "paging.same",
            "bit-equal" if same and proven else "not equal",
            f"prefix sharing bit-equal: {same}; both rungs pass the gate: {proven}",
            same and proven,
        ),
    ]


def _queue_table(found: dict[str, Any]) -> Shown:
    rows = [
        (
            name,
            f"{s['running']:.1f}",
            f"{s['reserved'] / found['slots']:.0%}",
            f"{s['used'] / s['reserved']:.0%}",
            str(s["refused_with_room"]),
            f"{s['ticks']:,}",
        )
        for name, s in found["served"].items()
    ]
    columns = ("memory in", "running", "reserved", "used", "in pieces", "ticks")
    return Shown("Requests of mixed lengths in one memory (used: of what is reserved)", columns, rows)


def _prefix_table(found: dict[str, dict[str, Any]]) -> Shown:
    rows = []
    for layout, of_layout in found.items():
        prompts = of_layout["prompts"]
        later = median(row["ms"] for row in prompts[1:])
        cells = (
            f"{hit_rate(of_layout):.0%}",
            str(of_layout["blocks"]),
            f"{prompts[0]['ms']:.1f}",
            f"{later:.1f}",
        )
        rows.append((layout, *cells, "yes" if of_layout["bit_equal"] else "no"))
    n, tokens = len(prompts), prompts[0]["tokens"]
    title = f"{n} prompts with one system prompt (about {tokens} tokens): share not computed"
    return Shown(title, ("prompt", "hits", "blocks", "first, ms", "later, ms", "bit-equal"), rows)


def _cost_table(cost: dict[int, dict[str, Any]]) -> Shown:
    rows = []
    for context, c in cost.items():
        ratio = c["ratio"]
        shown = f"{ratio.mid:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else "unknown"
        rows.append((str(context), f"{c[CONTIGUOUS]:.3f}", f"{c[PAGED]:.3f}", shown))
    title = "Step, ms (median over rounds), and what paging costs"
    return Shown(title, ("context", CONTIGUOUS, PAGED, "ratio over rounds"), rows)


if __name__ == "__main__":
    _cli.run(main)
