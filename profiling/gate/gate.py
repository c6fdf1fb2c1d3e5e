"""Runs the checks and judges them.

A variant is allowed twice the error that plain cached eager makes at the same precision against float64,
over all checks, in the logits and in each layer's keys and values; plain cached eager itself is held to a
multiple of the precision's rounding unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property

import torch

from profiling.gate.checks import BRIEF, CHECKS, SMALL, Check, Parts, long_run
from profiling.gate.every_slot import NAME as EVERY_SLOT
from profiling.gate.every_slot import contexts, every_slot
from profiling.gate.evidence import LOGITS, Errors, Evidence, Mismatch
from profiling.gate.known import hold_reference
from profiling.gate.oracle import Oracle, Truth, agreement_with
from profiling.gate.plugin_checks import checks_of
from profiling.gate.stress import Scene, small_config, stressed
from profiling.gate.trial import Trial
from profiling.results.record import CheckErrors, Drift, GateCheck, GateResult, replaced
from variants.backends.plugin import NotAnswered, runs_elsewhere
from variants.decoder import Decoder
from variants.errors import one_line
from variants.ladder import BASELINE, ladder
from variants.model import GPT, Model
from variants.option import declared
from variants.slots.kv import AS_PRECISION, KvOption
from variants.slots.precision import PrecisionOption
from variants.spec import Variant

# Times the error of plain cached eager. Another order of the same sums errs as much again, independently: two
# errors of one size differ by sqrt(2) of it; 2 is the next power of two.
ALLOWED = 2.0
# What plain cached eager itself may err, in rounding units relative to the scale of the logits. A layer adds
# twice to the residual stream, each time with an error of about a unit; independent errors add in squares:
# sqrt(2 layers) units, 14 for 96 layers; 1 to 15 are seen from 2 to 48 layers. Twice the next power of two is
# for other libraries' order of summation. A fault of cache, mask or position moves logits by a good part of
# their scale, which is 2^23 units of float32 and 2^8 of bfloat16.
PLAIN_EAGER_ALLOWED = 64.0
# A narrow cache differs from the oracle's, rounded the same way, by whole steps, but only where a value lies
# so near to the middle between two that the arithmetic decides. For one in thousands float32 does; but behind
# a value that fell the other way those of later layers differ by more, and more of them fall: up to one in 15
# was seen in twelve layers, where two need no more than one in 256 (and hide a real fault beyond). The power
# joins the two, no theory does. The root of this share is that of a step in root mean square.
FELL_IN_TWO_LAYERS, MORE_BY_DEPTH = 1 / 256, 1.5
# A maximum against the root mean square: the largest of N normal errors lies near sqrt(2 ln N), 6.6 for the
# logits of 50,000 tokens at 50,000 positions; layers of different scale in one comparison stretch it.
PEAK = 8.0
FEW_STEPS = 8  # of a decoder without a cache, each a whole text
# Stressed weights and caches have means of 128 spreads and scores of 30 to 100: what cancels or is
# exponentiated there loses as many of float32's units; those of a reduced precision are coarse enough to
# count that. The few positions of a scene differ more between implementations, too.
AMPLIFIED, FINE = 128.0, 2.0**-20
STRESS_ALLOWED = 4.0
ROWS = 3  # of different text, each proven equal to a run of its own, on a small model
Budget = dict[tuple[str, int], Errors]  # by what stresses, and by layer


def _rounding(variant: Variant, n_layer: int, of_cache: bool) -> float:
    """Relative rounding unit: of the arithmetic, or of a narrow cache where that is coarser.

    The oracle rounds its cache the same way, so the two differ only where a value lies so near to the middle
    between two steps that the arithmetic's rounding decides: by whole steps, but few.
    """
    few = 1.0 if of_cache else (FELL_IN_TWO_LAYERS * max(n_layer / 2, 1) ** MORE_BY_DEPTH) ** 0.5
    return max(variant.precision.rounding, variant.kv.rounding * few)


def _budget_of(parts: Iterable[Evidence]) -> Budget:
    """The largest errors of what is stressed alike."""
    budget: Budget = {}
    for part in parts:
        for layer, errors in part.by_layer.items():
            key = part.stressed, layer
            budget[key] = budget[key].largest(errors) if key in budget else errors
    return budget


def _share(errors: Errors, allowed: Errors) -> float:
    """Share of what is allowed, the larger of rms and maximum; infinite where the errors are unknown."""
    if errors.max == 0:
        return 0.0
    share = max(errors.rms / allowed.rms, errors.max / allowed.max) if allowed.rms else math.inf
    return math.inf if math.isnan(share) else share


class Gate:
    """Judges decoders over one model. Truths and budgets are computed once per precision."""

    def __init__(
        self,
        model: Model,
        precision: str,
        *,
        batch: int = 1,
        capacity: int | None = None,
        contexts: Sequence[int] = (),
        steps: int = 200,
        forced: int = 32,
        seed: int = 0,
        brief: bool = False,
    ) -> None:
        """`steps` greedy tokens and `forced` random ones are proven, and a few at each of the `contexts` and
        at both ends of the decoder's buckets; `capacity` is that of the decoders.

        `brief`: `check` and the budget consist of the first two only, and the small model makes no long run.
        """
        self.model, self.precision, self.batch, self.seed = model, precision, batch, seed
        self.capacity, self.contexts, self.steps, self.forced = capacity, contexts, steps, forced
        self.brief = brief
        self.checks = self._chosen(CHECKS)
        self.scenes: list[Scene] = []
        self._every_slot: dict[int, Scene] = {}  # by context
        self._truths: dict[tuple[PrecisionOption, KvOption], Truth] = {}
        self._budgets: dict[str, Budget] = {}

    def _chosen(self, checks: dict[str, Check]) -> dict[str, Check]:
        return {name: check for name, check in checks.items() if name in BRIEF} if self.brief else checks

    def check_briefly(self, decoder: Decoder) -> GateResult:
        """The result of greedy and forced tokens only: for other widths of a model whose `check` passed."""
        return self._run(decoder, [name for name in CHECKS if name in BRIEF])

    def check_only(self, decoder: Decoder, name: str) -> GateResult:
        """The result of one of this gate's checks."""
        return self._run(decoder, [name])

    def check(self, decoder: Decoder) -> GateResult:
        """The result of every check, then of those of a small model. An exception is a failure."""
        result = self._run(decoder, [*checks_of(decoder), *self.checks])
        if result.status == "pass":
            result.checks.extend(self._of_small_model(decoder.variant))
        reduced = decoder.variant.precision.name != self.precision or decoder.variant.kv.narrow
        if result.status == "pass" and reduced:
            with suppress(NotAnswered):  # a process may give no logits
                return replaced(result, drift=self._drift(decoder))
        return result

    def _of_small_model(self, variant: Variant) -> list[GateCheck]:
        """The checks of the small model; not proven where a process is built for the large one alone."""
        names = self._chosen(SMALL)
        if runs_elsewhere(variant.backend):
            return [
                GateCheck(name, "not proven", "its process holds one row of this model") for name in names
            ]
        small = Decoder.of(variant, self.small.model, batch=ROWS, capacity=self.small.capacity)
        return self.small._run(small, list(self.small.checks)).checks

    def _run(self, decoder: Decoder, names: Sequence[str]) -> GateResult:
        checks: list[GateCheck] = []
        steps, name = 0, "build"
        try:
            trial = self._trial(decoder)
            steps, seen = trial.steps, list[Evidence]()
            for name in names:
                try:
                    parts = (self.checks | checks_of(decoder))[name](trial)
                except NotAnswered as missing:
                    checks.append(GateCheck(name, "not proven", str(missing)))
                    continue
                checks.append(self._check(name, parts, decoder.variant))
                seen += parts
            if decoder.variant.name == self.baseline and len(names) == len(self.checks):
                self._budgets[decoder.variant.precision.name] = _budget_of(seen)
        except Mismatch as mismatch:
            checks.append(GateCheck(name, "fail", str(mismatch)))
        except Exception as error:  # a variant that crashes is a failed variant, and the run goes on
            checks.append(GateCheck(name, "fail", one_line(error)))
        return GateResult(steps, checks)

    def _check(self, name: str, parts: Parts, variant: Variant) -> GateCheck:
        """The outcome of a check, by the comparison that came nearest to what is allowed."""
        comparisons = [
            (part.label(layer), errors, self._allowed_errors(part.stressed, layer, errors, variant))
            for part in parts
            for layer, errors in part.by_layer.items()
        ]
        if not comparisons:
            return GateCheck(name, "pass", "bit-equal or not applicable")
        label, errors, allowed = max(comparisons, key=lambda row: _share(row[1], row[2]))
        numbers = CheckErrors(errors.rms, errors.max, allowed.rms, allowed.max)
        if _share(errors, allowed) > 1:
            reason = (
                f"{label}: error rms {errors.rms:.2g}, max {errors.max:.2g} against float64, "
                f"allowed {allowed.rms:.2g} and {allowed.max:.2g}"
            )
            return GateCheck(name, "fail", reason, numbers)
        return GateCheck(name, "pass", errors=numbers)

    def _allowed_errors(self, stressed: str, layer: int, errors: Errors, variant: Variant) -> Errors:
        unit = _rounding(variant, self.model.config.n_layer, of_cache=layer != LOGITS)
        if stressed and unit < FINE:
            unit *= AMPLIFIED
        unit, times = unit * errors.scale, STRESS_ALLOWED if stressed else ALLOWED
        if variant.name == self.baseline:
            units = PLAIN_EAGER_ALLOWED * (STRESS_ALLOWED if stressed else 1) * unit
            return Errors(units, PEAK * units, errors.scale)
        plain = self._budget(variant.precision.name)[stressed, layer]
        peak = PEAK * unit if variant.kv.narrow or stressed else unit
        return Errors(times * max(plain.rms, unit), times * max(plain.max, peak), errors.scale)

    def _budget(self, precision: str) -> Budget:
        """The largest errors of plain cached eager at this precision."""
        if precision not in self._budgets:
            plain = Decoder.of(self._plain(precision), self.model, batch=self.batch, capacity=self.capacity)
            trial = self._trial(plain)
            errors = (
                part for check in self.checks.values() if check is not long_run for part in check(trial)
            )
            self._budgets[precision] = _budget_of(errors)
        return self._budgets[precision]

    def _trial(self, decoder: Decoder) -> Trial:
        """Without a cache a decoder is the reference itself; a few steps show that it is wired up."""
        variant, most = decoder.variant, None if decoder.variant.cache.keeps else FEW_STEPS
        truth = self._truth_for(variant.precision, variant.kv)
        tie = ALLOWED * PLAIN_EAGER_ALLOWED * _rounding(variant, self.model.config.n_layer, of_cache=False)
        steps, forced = (min(n, most or n) for n in (self.steps, self.forced))

        def scenes() -> list[Scene]:
            scenes_here = self._scenes(decoder)
            for scene in scenes_here:
                truth.arrange(scene.text[:, : scene.context], scene.kv)
            return scenes_here

        trial = Trial.of(decoder, self.model, truth, steps, forced, self.contexts, scenes, tie, self.seed)
        if "contexts" in self.checks:
            truth.learn(trial.text)
        return trial

    def _scenes(self, decoder: Decoder) -> list[Scene]:
        """With arranged caches, for this decoder."""
        if EVERY_SLOT not in self.checks or not decoder.variant.cache.keeps:
            return self.scenes
        assert isinstance(self.model, GPT)
        asked = contexts(self.contexts, decoder.buckets)
        for n in asked:
            if n not in self._every_slot:
                self._every_slot[n] = every_slot(self.model, self.batch, n, self.seed)
        return [self._every_slot[n] for n in asked]

    def _truth_for(self, precision: PrecisionOption, kv: KvOption = AS_PRECISION) -> Truth:
        if (precision, kv) not in self._truths:
            self._truths[precision, kv] = self._truth(precision, kv)
        return self._truths[precision, kv]

    @cached_property
    def small(self) -> Gate:
        """The gate of ROWS rows over a small model, for what needs no large one."""
        return self._small_gate()

    # -- what a trunk brings: its plain cached eager, its truth, its rows ---------------------

    baseline = BASELINE

    def _plain(self, precision: str) -> Variant:
        return ladder(precision)[self.baseline]

    def _truth(self, precision: PrecisionOption, kv: KvOption) -> Truth:
        assert isinstance(self.model, GPT)
        hold_reference()
        return Oracle(self.model, precision, kv, self.batch)

    def _small_gate(self) -> Gate:
        """Over a stressed model of the same family."""
        like = self.model.like
        model, scenes = stressed(small_config(self.model.config), ROWS, self.seed)
        model = model.to(dtype=like.dtype, device=like.device)
        gate = Gate(model, self.precision, batch=ROWS, forced=24, seed=self.seed)
        gate.checks = self._chosen(SMALL)
        gate.scenes = [scene.on(like.device) for scene in scenes]
        return gate

    @torch.inference_mode()
    def _drift(self, decoder: Decoder) -> Drift:
        trial = self._trial(decoder)
        fed, start = trial.after_prompt(trial.forced), trial.prompt.size(1) - 1
        logits = [decoder.prefill(trial.prompt)[:, None].clone()]
        logits += [decoder.step(token)[:, None] for token in fed.split(1, dim=1)]
        text = torch.cat([trial.prompt, fed], dim=1)
        root = self._truth_for(declared(PrecisionOption)[self.precision])
        return agreement_with(torch.cat(logits, dim=1), root.logits(text, position=start))
