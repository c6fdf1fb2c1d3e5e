"""Cases of a runner at other batch sizes, each proven on as many different rows before it is timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiling.cost.work import kv_bytes_per_token
from profiling.gate import Gate
from profiling.measure.cases import Case
from profiling.measure.expect import predict
from profiling.measure.footprint import free_bytes
from profiling.measure.runner import Runner
from profiling.results.record import Batch, BatchRecord
from variants.decoder import Decoder

STEPS = 2  # greedy and forced tokens each: the variant itself is proven already, only the rows are new
PROVEN_TOKENS = 2 * (10 + STEPS)  # of a row, whose float64 logits the proof holds


def add_batches(
    runner: Runner[BatchRecord], case: Case, batches: Sequence[int], context: int, capacity: int
) -> None:
    """Cases like `case`, at one context, for each batch that memory permits.

    Keeps per batch in the record's `batches`: proof, prediction, bytes of the cache; or why it is left out.
    """
    record, model = runner.record.batches, runner.model
    for number, batch in enumerate(batches):
        runner.progress("prove batches", number, len(batches))
        if needed_bytes(runner, batch, capacity) > free_bytes(model.device):
            record[batch] = Batch(status="left out", reason="memory does not permit it")
            continue
        decoder, proof = case.decoder, None
        if batch != decoder.batch:
            decoder = Decoder.of(decoder.variant, model, batch=batch, capacity=capacity)
            decoder.warm_up()
            proof = _gate(runner, batch, capacity).check_briefly(decoder)
            if proof.status == "fail":
                record[batch] = Batch(status="fail", reason=proof.reason, gate=proof)
                continue
            rows = case.inputs.rows(batch)
            runner.cases.append(replace(case, decoder=decoder, inputs=rows, contexts=(context,)))
        record[batch] = Batch(
            status="proven",
            gate=proof,
            prediction=predict(decoder, context, runner.peaks),
            cache_bytes=batch * capacity * kv_bytes_per_token(model.config, model.dtype.itemsize),
        )
    runner.run.save()


def needed_bytes(runner: Runner[BatchRecord], batch: int, capacity: int) -> int:
    """Caches of the decoder, of plain eager and of the float64 oracle, and the logits of the proof."""
    config = runner.model.config
    cache = capacity * kv_bytes_per_token(config, 2 * runner.model.dtype.itemsize + 8)
    return batch * (cache + PROVEN_TOKENS * config.vocab_size * 8 * 2)


def _gate(runner: Runner[BatchRecord], batch: int, capacity: int) -> Gate:
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
