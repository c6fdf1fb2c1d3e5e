"""The one runner: predicts, builds, proves, times, traces. Nothing else in this project times a step.

The baseline is visited twice under two names, so that each run carries its own noise; the memory floor of
each case's own bytes is read in the same round.
"""

from __future__ import annotations

import gc
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from profiling.gate import Gate
from profiling.measure.cases import Case, Inputs, described, narrow_config, width_configs
from profiling.measure.clock import Clock
from profiling.measure.duel import Ring, fight, planned
from profiling.measure.environment import environment
from profiling.measure.expect import floor_bytes, predict, step_ops
from profiling.measure.memory import decoder_bytes
from profiling.measure.peaks import ceilings
from profiling.measure.rounds import Visit, in_rounds
from profiling.measure.tracing import LARGE_TRACE_BYTES, traced
from profiling.measure.visits import FirstToken, Generation, Prefills, Steps, plain_reads
from profiling.measure.workload import Workload
from profiling.results.metrics import AGAIN, REPLAYS, Measured
from profiling.results.record import RunFolder
from profiling.results.verdict import UNDECIDED, verdict
from variants.decoder import Decoder
from variants.errors import one_line
from variants.ladder import BASELINE
from variants.model import GPT, random_model
from variants.spec import Variant

GATE_FORCED = 32  # random tokens that the gate feeds in one by one
Progress = Callable[[str, int, int], None]  # (what is done, how many, of how many)


class Runner:
    """One run of one workload over some variants of one model."""

    def __init__(self, run: RunFolder, workload: Workload, model: GPT, variants: list[Variant]) -> None:
        self.run, self.workload, self.model, self.variants = run, workload, model, variants
        self.progress: Progress = lambda what, done, total: None
        self.clock = Clock(model.device)
        self.precision = next(
            v for v in [variants[0], *variants[0].ancestors()] if v.parent is None
        ).precision.name
        self.cases: list[Case] = []
        self.record: dict[str, Any] = run.data
        self.record["variants"] = {v.name: described(v) for v in variants}
        self.entropy: int = self.record.setdefault("entropy", secrets.randbits(53))
        self.record.setdefault("samples", [])
        self.record.setdefault("floors", [])
        self.record.setdefault("ttft", [])

    # -- phases, in order ---------------------------------------------------------------------

    def describe(self, model_name: str) -> None:
        """Environment, workload and ceilings: everything that does not depend on a variant."""
        config = self.model.config
        self.record["environment"] = environment(self.model.device)
        self.record["workload"] = asdict(self.workload)
        self.record["model"] = {"name": model_name, "precision": self.precision, **asdict(config)}
        self.record["ceilings"] = ceilings(self.model.device, self.model.dtype)
        self.run.save()

    def prove(self) -> None:
        """Build, predict, warm up and prove every variant at full size."""
        self._prepare_model(self.model, self.workload.contexts, self.variants, self.workload.gate_steps)

    def prepare(self) -> None:
        """The same, then narrow."""
        self.prove()
        narrow = narrow_config(self.model.config)
        between = [] if self.workload.brief_gate else width_configs(self.model.config)
        for config in (narrow, *between):
            model = random_model(config, self.workload.seed, self.model.dtype, self.model.device)
            passed = [v for v in self.variants if self._entry(v.name)["status"] == "proven"]
            chosen = [v for v in passed if v.cache.keeps and (config is narrow or not v.executor.compiles)]
            self._prepare_model(model, self.workload.contexts[:1], chosen, gate_steps=16)

    def measure(self) -> None:
        """All rounds that are not in the record yet: steps, first tokens, and plain reads of their bytes."""
        if not self.cases:
            self.run.warn("no variant is proven here, so nothing was timed")
            return
        gc.collect()  # the proof's float64 copy of the model hangs in reference cycles
        record, workload = self.record, self.workload
        steps = [Steps(case, self.clock, record["samples"], self.entropy) for case in self.cases]
        first = [FirstToken(case, self.clock, record["ttft"]) for case in self.cases if case.full_size]
        reads = plain_reads(self.cases, workload.steps, record["floors"])
        done = 1 + max((sample["round"] for sample in record["samples"]), default=-1)
        before = _compiled_graphs()
        for rounds in self._rounds([*steps, *first, *reads], range(done, workload.rounds)):
            if rounds.is_integer():
                record["recompiles_while_timing"] = _compiled_graphs() - before
                self.progress("rounds", int(rounds), workload.rounds)

    def duel(self, max_seconds: float, traces: bool) -> None:
        """Blocks of single steps for what decides and for every rung, added to what the record has."""
        contestants = {c.name: c for c in self._traceable() if c.cached}
        plan = planned({name: self._entry(name)["parent"] for name in contestants})
        if plan is None:
            return
        stored = self.record.setdefault("duel", {"turns": 0, "looks": [], "blocks": [], "traces": []})
        ring = Ring(contestants, self.workload.contexts[0], self.clock, self.entropy, self._drop)
        path = self.run.traces / "duel.pt.trace.json.gz"

        def trace() -> dict[str, Any]:
            return ring.trace(plan.traced or BASELINE, path, self.record["ceilings"])

        def decided() -> bool:
            self.run.save()
            return verdict(Measured(self.record)).word != UNDECIDED

        def progress(done: int, look: int) -> None:
            self.progress("duel", done, look)

        with_traces = trace if traces and plan.traced else None
        fight(ring, plan, stored, max_seconds, with_traces, decided, progress)
        self.run.save()

    def time_generations(self, prompt: int, new: int, rounds: int) -> None:
        """Whole generations of every case, into the record's `generations`."""
        into = self.record.setdefault("generations", [])
        visits = [Generation(case, self.clock, into, prompt, new) for case in self._once()]
        self._loop(f"generate {new} tokens", visits, rounds)

    def time_prefills(self, lengths: Sequence[int], rounds: int) -> None:
        """Prefills of these lengths of every case, into the record's `prefills`."""
        into = self.record.setdefault("prefills", [])
        visits = [Prefills(case, self.clock, into, lengths) for case in self._once()]
        self._loop("prefill", visits, rounds)

    def _loop(self, what: str, visits: Sequence[Visit], rounds: int) -> None:
        self.progress(what, 0, rounds * len(visits))
        for done in self._rounds(visits, range(rounds)):
            self.progress(what, round(done * len(visits)), rounds * len(visits))

    def _rounds(self, visits: Sequence[Visit], numbers: range) -> Iterator[float]:
        """The rounds, stored at the end of each."""
        for done in in_rounds(visits, self.entropy, numbers, self._drop):
            if done.is_integer():
                self.run.save()
            yield done

    def _drop(self, name: str, error: Exception) -> None:
        """A variant that crashes while it is timed leaves, and the others go on."""
        if name not in self.record["variants"]:
            raise error
        self._entry(name).update(status="failed", reason=one_line(error))
        self.cases = [case for case in self.cases if case.decoder.variant.name != name]

    def _once(self) -> list[Case]:
        """Every case once: the baseline's second name is left out."""
        return [case for case in self.cases if case.name != AGAIN]

    def predict_replay(self) -> None:
        """From the eager trace alone, what the replay rung will cost; stored before that rung is timed."""
        parents = {self._entry(name)["parent"] for name in REPLAYS if name in self.record["variants"]}
        for case in self._traceable():
            if case.name in parents:
                path = self.run.traces / "before-timing.pt.trace.json.gz"
                analysis = traced(case, path, self.record["ceilings"])["analysis"]
                self.record["predicted_replay"] = {"from": case.name, **(analysis["replay"] or {})}
        self.run.save()

    def trace(self) -> None:
        """A few profiled steps of every full-size case at its smallest context."""
        cases = self._traceable()
        for number, case in enumerate(cases):
            self.progress("trace", number, len(cases))
            path = self.run.traces / f"{case.name}.pt.trace.json.gz"
            self._entry(case.name)["trace"] = traced(case, path, self.record["ceilings"])
            if path.stat().st_size > LARGE_TRACE_BYTES:
                self.run.warn(f"{path.name} is {path.stat().st_size >> 20} MiB: viewers may open it empty")
            self.run.save()
        self.progress("trace", len(cases), len(cases))

    def _traceable(self) -> list[Case]:
        return [case for case in self._once() if case.full_size]

    # -- building and proving -----------------------------------------------------------------

    def _entry(self, name: str) -> dict[str, Any]:
        entry: dict[str, Any] = self.record["variants"][name]
        return entry

    def _prepare_model(
        self,
        model: GPT,
        contexts: tuple[int, ...],
        variants: list[Variant],
        gate_steps: int,
    ) -> None:
        full, workload = model is self.model, self.workload
        buckets = workload.buckets(model.config) if full else (model.config.n_ctx,)
        inputs = Inputs(model, self.precision, workload, max(*contexts, workload.prompt if full else 1))
        gate = Gate(
            model,
            self.precision,
            batch=workload.batch,
            capacity=buckets[-1],
            steps=gate_steps,
            forced=min(GATE_FORCED, gate_steps),
            seed=workload.seed,
            brief=workload.brief_gate,
        )
        # the baseline first: its errors are the budget of all others
        for number, variant in enumerate(sorted(variants, key=lambda v: v.name != BASELINE)):
            self.progress(
                f"build and prove {variant.name}, width {model.config.n_embd}", number, len(variants)
            )
            decoder = self._proven(variant, inputs, buckets, gate, full)
            if decoder is not None:
                for name in (variant.name, AGAIN) if variant.name == BASELINE and full else (variant.name,):
                    self.cases.append(Case(name, decoder, contexts, inputs, full, workload))
            self.run.save()

    def _proven(
        self, variant: Variant, inputs: Inputs, buckets: tuple[int, ...], gate: Gate, full: bool
    ) -> Decoder | None:
        """A decoder that passed the gate, or None with the reason in the record."""
        entry, model = self._entry(variant.name), inputs.model
        reason = variant.why_not(model.device.type)
        if reason:
            entry.update(status="not run", reason=reason)
            return None
        start = time.perf_counter()
        try:
            decoder = Decoder.of(
                variant, model, batch=self.workload.batch, capacity=buckets[-1], buckets=buckets
            )
            warm_up = [asdict(cost) for cost in decoder.warm_up()]
            seconds = time.perf_counter() - start
            result = gate.check(decoder) if full else gate.check_briefly(decoder)
            decoder.verify()
            if full and result.status == "pass":
                self._describe_decoder(entry, decoder, inputs)
        except Exception as error:  # whatever a variant does wrong, the others are still measured
            entry.update(status="failed", reason=one_line(error))
            return None
        if full:
            entry.update(gate=asdict(result), warm_up=warm_up, warm_up_s=seconds)
        else:
            n_bytes = floor_bytes(decoder, self.workload.contexts[0])
            entry.setdefault("narrow_bytes", {})[str(model.config.n_embd)] = n_bytes
            if result.status == "fail":
                result.reason = f"at width {model.config.n_embd}: {result.reason}"
        entry.update(status="proven" if result.status == "pass" else "failed", reason=result.reason)
        return decoder if result.status == "pass" else None

    def _describe_decoder(self, entry: dict[str, Any], decoder: Decoder, inputs: Inputs) -> None:
        """Prediction and ops before anything is timed, and what it holds at the largest context."""
        rates = self.record["ceilings"]
        entry["prediction"] = {str(n): predict(decoder, n, rates) for n in (0, *self.workload.contexts)}
        entry["ops"] = step_ops(decoder)
        decoder.load(*inputs.first(self.workload.contexts[-1]))
        entry["memory"] = decoder_bytes(decoder)
        entry["slots"] = {str(n): decoder.bucket(n) for n in self.workload.contexts}


def _compiled_graphs() -> int:
    """Graphs that torch.compile has built in this process. Loading it for a count would take seconds."""
    loaded = sys.modules.get("torch._dynamo.utils")
    return 0 if loaded is None else int(loaded.counters["stats"]["unique_graphs"])
