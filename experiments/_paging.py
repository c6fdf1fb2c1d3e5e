"""The three measurements of paging: a queue over one memory, prefills over one pool, steps of two rungs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from experiments._serving import Blocks, Slabs, Store, lengths, serve
from profiling.clock import Clock
from profiling.gate import Gate
from profiling.gate.oracle import random_stream
from profiling.record import RunFolder
from profiling.runner import Progress
from profiling.subjects import Material, Subject
from profiling.workload import Workload
from variants.blocks import BLOCK, BlockPool, blocks_for
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import GPT
from variants.paged import PagedCache, prefill_shared

SLABS = 8  # the memory of the queue: as many slabs of the model's limit
STAMP = 3  # tokens of a timestamp or request id, different in every request


def queue(requests: int, limit: int, seed: int) -> dict[str, Any]:
    """The three ways to hand out the same memory to the same requests."""
    slots, mix = SLABS * limit, lengths(requests, limit, seed)
    stores: dict[str, Store] = {
        "slab of the limit": Slabs(slots, limit),
        "slab of the final length": Slabs(slots, None),
        "blocks": Blocks(slots),
    }
    return {
        "slots": slots,
        "block": BLOCK,
        "mix": mix,
        "served": {name: asdict(serve(mix, store)) for name, store in stores.items()},
    }


def prefixes(
    model: GPT, precision: str, layouts: Sequence[str], prompts: int, seed: int
) -> dict[str, dict[str, Any]]:
    """Prefills that share a system prompt, per layout: tokens not computed, TTFT, equality to the bit."""
    limit, vocabulary = model.config.n_ctx, model.config.vocab_size
    sizes = {"system": min(256, limit // 2), "time": STAMP, "question": min(24, limit // 8)}
    total, rung, found = sum(sizes.values()), ladder(precision)["paged"], {}

    def part(name: str, number: int) -> Tensor:
        """The system prompt is the same for all; time and question are everyone's own."""
        own = {"system": 0, "time": 1000 + number, "question": 2000 + number}[name]
        return random_stream(vocabulary, 1, sizes[name], seed + own).to(model.device)

    for layout in layouts:
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
    made: list[tuple[Tensor, int]] = []
    (ms,) = Clock(text.device).each_ms(lambda: made.append(prefill_shared(decoder, text)), 1)
    ((logits, held),) = made
    alone.reset()
    if held:
        alone.prefill(text[:, :held])
    same = torch.equal(alone.extend(text[:, held:])[:, -1], logits)
    return {"tokens": text.size(1), "shared": held, "ms": ms, "bit_equal": same}


def time_steps(
    run: RunFolder,
    model: GPT,
    precision: str,
    rungs: Sequence[str],
    workload: Workload,
    progress: Progress,
) -> None:
    """The rungs proven, then timed in shuffled rounds; samples into the run folder as they arrive."""
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
    for name in rungs:
        variant = ladder(precision)[name]
        decoder = Decoder(variant, model, batch=workload.batch, capacity=buckets[-1], buckets=buckets)
        run.data["gate"][name] = result = asdict(gate.check(decoder))
        if result["status"] == "pass":
            subjects.append(Subject(name, decoder, workload.contexts, material, True, workload))
    for number in range(workload.rounds if len(subjects) == len(rungs) else 0):
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
