"""The one runner: predicts, builds, proves, times, traces. Nothing else in this project times a step.

The baseline is visited twice under two names, so that each run carries its own noise; the memory floor of
each case's own bytes is read in the same round.
"""

from __future__ import annotations

import gc
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from profiling.gate import KeptSteps
from profiling.measure.cases import Case, narrow_config, new_entry, width_configs
from profiling.measure.clock import Clock
from profiling.measure.duel import Ring, contrasts, fight, stepping, traced_beside
from profiling.measure.environment import environment
from profiling.measure.guard import Guard, unfit
from profiling.measure.peaks import SquareMatmul, peaks
from profiling.measure.proving import Proving, begin_building, note
from profiling.measure.tracing import LARGE_TRACE_BYTES, traced, traced_and_drawn
from profiling.measure.visits import (
    PlainMatmul,
    Prompt,
    Steps,
    Visit,
    in_rounds,
    plain_reads,
    reading,
)
from profiling.results.duel import read_of
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import (
    DuelSteps,
    DuelTrace,
    Entry,
    Measurement,
    Peaks,
    PredictedReplay,
    Workload,
)
from profiling.results.record import Model as StudiedModel
from profiling.results.record.pictures import Steps as Drawn
from profiling.results.record.samples import AGAIN_SUFFIX
from profiling.results.rules import UNDECIDED
from profiling.results.verdict import verdicts
from variants.backends.plugin import runs_elsewhere
from variants.decoder import runs
from variants.errors import one_line
from variants.executors.executor import compiled_graphs
from variants.ladder import REPLAYS, roles
from variants.model import GPT, Model, random_model
from variants.spec import Variant

Progress = Callable[[str, int, int], None]  # (what is done, how many, of how many)


M = TypeVar("M", bound=Measurement)


class Runner(Generic[M]):
    """One run of one workload over some variants of one model, and of the same one in others' code."""

    def __init__(
        self, run: RunFolder[M], workload: Workload, model: Model, variants: list[Variant], *beside: Model
    ) -> None:
        """Each variant runs that of the models which is of its kind."""
        self.run, self.workload, self.model, self.variants = run, workload, model, variants
        self.models = (model, *beside)
        self.progress: Progress = lambda what, done, total: None
        self.clock = Clock(model.device)
        self.precision = next(
            v for v in [variants[0], *variants[0].ancestors()] if v.parent is None
        ).precision.name
        self.cases: list[Case] = []
        self.kept_steps: list[KeptSteps] = []
        self.drawn: dict[str, Drawn | None] = {}  # the median step of each trace, for the report
        known = run.record.variants  # of a resumed run: what was found stays until it is found anew
        run.update(
            variants={v.name: known.get(v.name) or new_entry(v) for v in variants},
            entropy=run.record.entropy or secrets.randbits(53),
        )

    @property
    def record(self) -> M:
        return self.run.record

    @property
    def peaks(self) -> Peaks:
        assert self.record.peaks is not None  # `describe` comes first
        return self.record.peaks

    # -- phases, in order ---------------------------------------------------------------------

    def describe(self, model_name: str) -> None:
        """Environment, workload and peaks: everything that does not depend on a variant."""
        self.run.update(
            environment=environment(self.model.device),
            workload=self.workload,
            model=StudiedModel(model_name, self.precision, self.model.config),
        )
        for reason in unfit(torch.get_num_threads()):
            self.run.warn(reason)
        self.run.save()  # before what takes a second: an interrupted run says what it was of
        self.run.update(peaks=peaks(self.model.device, self.model.dtype))
        self.run.save()

    def prove(self) -> None:
        """Build, predict, warm up and prove every variant at full size."""
        begin_building(self.variants, self.model.device.type)
        for model in self.models:
            self._prepare_model(model, self.workload.contexts, self.variants, self.workload.gate_steps)

    def prepare(self) -> None:
        """Build, predict, warm up and prove every variant at full size, and then as narrow models.

        What compiles for half a minute per shape has no narrow models, nor has what others wrote: they may
        not make it in any other size, and an engine would convert it anew.
        """
        self.prove()
        ours = [model for model in self.models if isinstance(model, GPT)]
        configs = [narrow_config(model.config) for model in ours]
        if not self.workload.brief_gate:
            configs += [config for model in ours for config in width_configs(model.config)]
        for config in configs:
            model = random_model(config, self.workload.seed, self.model.dtype, self.model.device)
            passed = [v for v in self.variants if self._entry(v.name).status == "proven"]
            here = [v for v in passed if not runs_elsewhere(v.backend)]
            chosen = [v for v in here if v.cache.keeps and not v.executor.compiles]
            self._prepare_model(model, self.workload.contexts[:1], chosen, gate_steps=16)

    def measure(self) -> None:
        """All rounds that are not in the record yet: steps, first tokens, and plain reads of their bytes."""
        if not self.cases:
            self.run.warn("no variant is proven here, so nothing was timed")
            return
        gc.collect()  # the proof's float64 copy of the model hangs in reference cycles
        record, workload = self.record, self.workload
        steps = [Steps(case, self.clock, record.entropy, record.samples) for case in self.cases]
        first = [Prompt(case, self.clock, record.ttft) for case in self.cases if case.full_size]
        reads = plain_reads(self.cases, workload.steps, record.floors)
        product = SquareMatmul(self.model.device, self.model.dtype)
        matmul = PlainMatmul(product, self.clock, workload.steps, record.matmuls)
        whole = {look.round for look in record.machine} & {sample.round for sample in record.samples}
        done = 1 + max(whole, default=-1)  # looks are also at rounds of other visits, samples of broken ones
        stored: list[list[Any]] = [record.samples, record.ttft, record.floors, record.matmuls]
        for timed in stored:  # what a round left that was broken off is timed again
            timed[:] = [one for one in timed if one.round < done]
        before = compiled_graphs()
        for rounds in self._rounds([*steps, *first, *reads, matmul], range(done, workload.rounds)):
            if rounds.is_integer():
                self.run.update(recompiles_while_timing=compiled_graphs() - before)
                self.progress("rounds", int(rounds), workload.rounds)

    def duel(self, max_seconds: float, traces: bool) -> None:
        """Blocks of single steps for what decides and for every rung, added to what the record has."""
        contestants = {c.name: c for c in self._traceable() if c.cached}
        plan = contrasts({name: self._entry(name).parent for name in contestants})
        if plan is None:
            return
        context = self.workload.contexts[0]
        timed = {name: stepping(case, context, self.clock) for name, case in contestants.items()}
        timed |= {read_of(name): reading(contestants[name]) for name in plan.traced}
        ring = Ring(timed, self.record.entropy, self._drop)
        narrow = {c.decoder.variant.name: c for c in self.cases if not c.full_size}

        def trace(name: str) -> DuelTrace:
            case, path = contestants[name], self.run.traces / f"duel-{name}.pt.trace.json.gz"
            return traced_beside(case, narrow.get(name, case), context, self.clock, path, self.peaks)

        def keep(steps: DuelSteps) -> None:
            self.run.update(duel=steps)

        def decided() -> bool:
            self.run.save()
            return all(one.word != UNDECIDED for one in verdicts(Measured(self.record)))

        def progress(done: int, look: int) -> None:
            self.progress("duel", done, look)

        steps = self.record.duel or DuelSteps()
        fight(ring, plan, steps, max_seconds, trace if traces else None, keep, decided, progress)
        self.run.save()

    def time(self, what: str, visits: Sequence[Visit], rounds: int) -> None:
        """Rounds of these visits, which store what they time."""
        self.progress(what, 0, rounds * len(visits))
        for done in self._rounds(visits, range(rounds)):
            self.progress(what, round(done * len(visits)), rounds * len(visits))

    def _rounds(self, visits: Sequence[Visit], numbers: range) -> Iterator[float]:
        """The rounds, stored at the end of each."""
        guard = Guard()
        for done in in_rounds(visits, self.record.entropy, numbers, self._drop):
            if done.is_integer():
                self.record.machine.append(guard.look(round(done) - 1))
                self.run.save()
            yield done

    def _drop(self, name: str, error: Exception) -> None:
        """A variant that crashes while it is timed leaves, and the others go on."""
        if name not in self.record.variants:
            raise error
        self._note(name, status="failed", reason=one_line(error))
        self.cases = [case for case in self.cases if case.decoder.variant.name != name]

    def once(self) -> list[Case]:
        """Every case once: the baseline's second name is left out."""
        return [case for case in self.cases if not case.name.endswith(AGAIN_SUFFIX)]

    def predict_replay(self) -> None:
        """Predict from the eager trace alone what the first replay costs; stored before that is timed."""
        parents = (self._entry(name).parent for name in REPLAYS if name in self.record.variants)
        first = next(parents, None)
        for case in self._traceable():
            if case.name == first:
                path = self.run.traces / "before-timing.pt.trace.json.gz"
                replay = traced(case, path, self.peaks).replay
                self.run.update(predicted_replay=PredictedReplay(case.name, replay))
        self.run.save()

    def trace(self) -> None:
        """A few profiled steps of every full-size case at its smallest context."""
        cases = self._traceable()
        for number, case in enumerate(cases):
            self.progress("trace", number, len(cases))
            path = self.run.traces / f"{case.name}.pt.trace.json.gz"
            trace, self.drawn[case.name] = traced_and_drawn(case, path, self.peaks)
            self._note(case.name, trace=trace)
            if path.stat().st_size > LARGE_TRACE_BYTES:
                self.run.warn(f"{path.name} is {path.stat().st_size >> 20} MiB: viewers may open it empty")
            self.run.save()
        self.progress("trace", len(cases), len(cases))

    def repeat(self) -> None:
        """Drop every timed decoder that no longer gives what it gave when it was proven: it has no times."""
        timed = {id(case.decoder) for case in self.cases}
        for steps in self.kept_steps:
            if id(steps.decoder) in timed and (why := steps.why_not_again()):
                self._drop(steps.decoder.variant.name, RuntimeError(why))
        self.run.save()

    def _traceable(self) -> list[Case]:
        """What runs in this process at full size."""
        return [case for case in self.once() if case.full_size and case.elsewhere is None]

    # -- building and proving -----------------------------------------------------------------

    def _entry(self, name: str) -> Entry:
        return self.record.variants[name]

    def _note(self, name: str, **changes: object) -> None:
        note(self.record.variants, name, **changes)

    def _prepare_model(
        self, model: Model, contexts: tuple[int, ...], variants: list[Variant], gate_steps: int
    ) -> None:
        """Build and prove those of the variants that run this model; what passes becomes a case."""
        full, workload = model in self.models, self.workload
        variants = [variant for variant in variants if runs(variant, model)]
        proving = Proving.of(
            model, self.precision, workload, contexts, full, gate_steps, self.peaks, self.record.variants
        )
        # the baseline first: its errors are the budget of all others
        for number, variant in enumerate(sorted(variants, key=lambda v: v.name != roles(v).baseline)):
            self.progress(
                f"build and prove {variant.name}, width {model.config.n_embd}", number, len(variants)
            )
            decoder = proving.decoder(variant)
            if decoder is not None:
                case = Case(variant.name, decoder, contexts, proving.inputs, full, workload)
                self.cases.append(case)
                if full and variant.name == self.record.baseline:
                    self.cases.append(replace(case, name=case.name + AGAIN_SUFFIX))
                self.kept_steps.append(KeptSteps(decoder, case.kept_contexts, case.load))
            self.run.save()
