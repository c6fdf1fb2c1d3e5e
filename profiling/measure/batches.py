"""Cases of a runner at other batch sizes, each proven on as many different rows before it is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from profiling.cost.work import kv_bytes_per_token
from profiling.gate import Gate
from profiling.measure.cases import Case
from profiling.measure.expect import predict
from profiling.measure.footprint import free_bytes
from profiling.measure.runner import Runner
from variants.decoder import Decoder

STEPS = 2  # greedy and forced tokens each: the variant itself is proven already, only the rows are new
PROVEN_TOKENS = 2 * (10 + STEPS)  # of a row, whose float64 logits the proof holds


def add_batches(runner: Runner, case: Case, batches: Sequence[int], context: int, capacity: int) -> None:
    """Cases like `case`, at one context, for each batch that memory permits.

    Keeps per batch in the record's `batches`: proof, prediction, bytes of the cache; or why it is left out.
    """
    record, model = runner.record.setdefault("batches", {}), runner.model
    for number, batch in enumerate(batches):
        runner.progress("prove batches", number, len(batches))
        entry: dict[str, Any] = {"status": "left out", "reason": ""}
        record[str(batch)] = entry
        if needed_bytes(runner, batch, capacity) > free_bytes(model.device):
            entry["reason"] = "memory does not permit it"
            continue
        decoder = case.decoder
        if batch != decoder.batch:
            decoder = Decoder.of(decoder.variant, model, batch=batch, capacity=capacity)
            decoder.warm_up()
            result = _gate(runner, batch, capacity).check_briefly(decoder)
            entry.update(status=result.status, reason=result.reason, gate=asdict(result))
            if result.status == "fail":
                continue
            rows = case.inputs.rows(batch)
            runner.cases.append(replace(case, decoder=decoder, inputs=rows, contexts=(context,)))
        entry.update(
            status="proven",
            prediction=predict(decoder, context, runner.record["ceilings"]),
            cache_bytes=batch * capacity * kv_bytes_per_token(model.config, model.dtype.itemsize),
        )
    runner.run.save()


def needed_bytes(runner: Runner, batch: int, capacity: int) -> int:
    """Caches of the decoder, of plain eager and of the float64 oracle, and the logits of the proof."""
    config = runner.model.config
    cache = capacity * kv_bytes_per_token(config, 2 * runner.model.dtype.itemsize + 8)
    return batch * (cache + PROVEN_TOKENS * config.vocab_size * 8 * 2)


def _gate(runner: Runner, batch: int, capacity: int) -> Gate:
    return Gate(
        runner.model,
        runner.precision,
        batch=batch,
        capacity=capacity,
        steps=STEPS,
        forced=STEPS,
        seed=runner.workload.seed,
        brief=True,
    )
