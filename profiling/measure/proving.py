"""Builds variants of one model and proves them: what is not proven is never timed."""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from dataclasses import dataclass

from profiling.gate import Gate
from profiling.measure.cases import Inputs
from profiling.measure.expect import floor_bytes, predict, step_ops
from profiling.measure.memory import decoder_bytes
from profiling.results.record import CompiledStep, Entry, Peaks, Workload, replaced
from variants.decoder import Decoder
from variants.errors import one_line
from variants.spec import Variant

Entries = MutableMapping[str, Entry]


def note(entries: Entries, name: str, **found: object) -> None:
    """Put what was found of a variant into a record's entries."""
    entries[name] = replaced(entries[name], **found)


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
        """Prediction and ops before anything is timed, and what it holds at the largest context."""
        contexts, ops = self.workload.contexts, step_ops(decoder)
        decoder.load(*self.inputs.first(contexts[-1]))
        note(
            self.entries,
            name,
            prediction={n: predict(decoder, n, self.peaks) for n in (0, *contexts)},
            ops=ops,
            memory=decoder_bytes(decoder),
            slots={n: decoder.bucket(n) for n in contexts},
        )
