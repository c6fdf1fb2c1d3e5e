"""Builds variants of a model and proves them, at other batch sizes too: what is not proven is never timed."""

from __future__ import annotations

import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from profiling.cost.work import kv_bytes_per_token
from profiling.gate import Gate
from profiling.gate.transformers_gate import TransformersGate
from profiling.measure.cases import Case, Inputs
from profiling.measure.expect import floor_bytes, predict, step_ops
from profiling.measure.footprint import free_bytes
from profiling.measure.memory import decoder_bytes
from profiling.results.record import Batch, BatchRecord, CompiledStep, Entry, Peaks, Workload, replaced
from variants.backends.plugin import NotAnswered, process_of
from variants.backends.transformers_model import TransformersModel
from variants.decoder import Decoder
from variants.errors import one_line
from variants.model import Model
from variants.spec import Variant

if TYPE_CHECKING:
    from profiling.measure.runner import Runner

Entries = MutableMapping[str, Entry]
GATE_FORCED = 8  # random tokens fed in one by one behind the prompt; at every context come more
ROW_STEPS = 2  # greedy and forced tokens each: the variant itself is proven already, only the rows are new
PROVEN_TOKENS = 2 * (10 + ROW_STEPS)  # of a row, whose float64 logits the proof holds


def note(entries: Entries, name: str, **changes: object) -> None:
    """Replace these fields of a variant's entry."""
    entries[name] = replaced(entries[name], **changes)


def begin_building(variants: Sequence[Variant], device: str) -> None:
    """Start, aside, on what takes long to build, while other variants are proven."""
    for variant in variants:
        if variant.why_not(device) is None:
            variant.backend.begin(device)


@dataclass(frozen=True)
class Proving:
    """`full`: the model itself, not a narrow one of its kind. What is found goes into `entries`."""

    inputs: Inputs
    buckets: tuple[int, ...]
    gate: Gate
    full: bool
    workload: Workload
    peaks: Peaks
    entries: Entries

    @classmethod
    def of(
        cls,
        model: Model,
        precision: str,
        workload: Workload,
        contexts: Sequence[int],
        full: bool,
        steps: int,
        peaks: Peaks,
        entries: Entries,
    ) -> Proving:
        """With the text and the gate that this kind of model needs, for `steps` greedy tokens."""
        theirs = isinstance(model, TransformersModel)
        buckets = workload.buckets(model.config) if full else (model.config.n_ctx,)
        buckets = buckets[-1:] if theirs else buckets  # its static layers have one size
        inputs = Inputs(model, precision, workload, max(*contexts, workload.prompt if full else 1))
        gate = (TransformersGate if theirs else Gate)(
            model,
            precision,
            batch=workload.batch,
            capacity=buckets[-1],
            contexts=contexts,
            steps=steps,
            forced=min(GATE_FORCED, steps),
            seed=workload.seed,
            brief=workload.brief_gate,
        )
        return cls(inputs, buckets, gate, full, workload, peaks, entries)

    def decoder(self, variant: Variant) -> Decoder | None:
        """A decoder that passed the gate, or None with the reason in its entry."""
        name, model = variant.name, self.inputs.model
        reason = variant.why_not(model.device.type)
        if reason:
            note(self.entries, name, status="not run", reason=reason)
            return None
        start = time.perf_counter()
        try:
            decoder = Decoder.of(
                variant, model, batch=self.workload.batch, capacity=self.buckets[-1], buckets=self.buckets
            )
            compiled = [CompiledStep(cost.seconds, cost.bytes) for cost in decoder.warm_up()]
            seconds = time.perf_counter() - start
            result = self.gate.check(decoder) if self.full else self.gate.check_briefly(decoder)
            decoder.verify()
            if self.full and result.status == "pass":
                self._describe(name, decoder)
        except NotAnswered as missing:
            note(self.entries, name, status="not run", reason=str(missing))
            return None
        except Exception as error:  # whatever a variant does wrong, the others are still measured
            note(self.entries, name, status="failed", reason=one_line(error))
            return None
        reason = result.reason
        if self.full:
            note(self.entries, name, gate=result, compiled_steps=compiled, warm_up_s=seconds)
        else:
            width, n_bytes = model.config.n_embd, floor_bytes(decoder, self.workload.contexts[0])
            known = self.entries[name].narrow_bytes
            note(self.entries, name, narrow_bytes=known | {width: n_bytes})
            reason = f"at width {width}: {reason}" if reason else ""
        note(self.entries, name, status="failed" if reason else "proven", reason=reason)
        return None if reason else decoder

    def _describe(self, name: str, decoder: Decoder) -> None:
        """Prediction and ops before anything is timed, and what it holds at the largest context.

        Ops and memory of another process are unknown.
        """
        contexts, engine = self.workload.contexts, process_of(decoder.modules)
        note(
            self.entries,
            name,
            prediction={n: predict(decoder, n, self.peaks) for n in (0, *contexts)},
            slots={n: decoder.bucket(n) for n in contexts},
            implementation=engine.about if engine else decoder.model.implementations,
        )
        if engine is None:
            ops = step_ops(decoder)
            decoder.load(*self.inputs.first(contexts[-1]))
            note(self.entries, name, ops=ops, memory=decoder_bytes(decoder))


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
    """Bytes of the caches of decoder, plain eager and float64 oracle, and of the logits of the proof."""
    config = runner.model.config
    cache = capacity * kv_bytes_per_token(config, 2 * runner.model.dtype.itemsize + 8)
    return batch * (cache + PROVEN_TOKENS * config.vocab_size * 8 * 2)


def _gate(runner: Runner[BatchRecord], batch: int, capacity: int) -> Gate:
    return Gate(
        runner.model,
        runner.precision,
        batch=batch,
        capacity=capacity,
        steps=ROW_STEPS,
        forced=ROW_STEPS,
        seed=runner.workload.seed,
        brief=True,
    )
