"""Runs the checks and judges them.

A variant is allowed twice the error that plain cached eager makes at the same precision against float64,
over all checks, in the logits and in each layer's keys and values; plain cached eager itself is held to a
multiple of the precision's rounding unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from profiling.gate.checks import CHECKS, Parts
from profiling.gate.evidence import LOGITS, Errors, Evidence, Mismatch
from profiling.gate.oracle import Oracle, Truth, agreement_with
from profiling.gate.trial import Trial
from profiling.results.record import CheckErrors, Drift, GateCheck, GateResult, replaced
from variants.config import GPTConfig
from variants.decoder import Decoder
from variants.errors import one_line
from variants.ladder import BASELINE, ladder
from variants.model import GPT, Model, random_model
from variants.option import declared
from variants.slots.kv import AS_PRECISION, KvOption
from variants.slots.precision import PrecisionOption
from variants.spec import Variant

BRIEF = ("greedy", "forced")  # what a short proof consists of
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
# so near to the middle between two that the arithmetic decides. Of one value in 256 that is 1/16 of a step in
# root mean square; float32 arithmetic decides for one in thousands.
FEW = 16.0
# A maximum against the root mean square: the largest of N normal errors lies near sqrt(2 ln N), 6.6 for the
# logits of 50,000 tokens at 50,000 positions; layers of different scale in one comparison stretch it.
PEAK = 8.0
FEW_STEPS = 8  # of a decoder without a cache, each a whole text
ROWS = 3  # of different text, each proven equal to a run of its own, on a small model


def _rows_config(config: GPTConfig) -> GPTConfig:
    """A small model of the same family, whose rows are proven against solo runs."""
    return replace(
        config,
        n_layer=1,
        n_head=4,
        n_kv_head=2,
        n_embd=64,
        n_inner=256,
        head_width=None,
        n_ctx=64,
        vocab_size=199,
    )


def _rounding(variant: Variant, of_cache: bool) -> float:
    """Relative rounding unit: of the arithmetic, or of a narrow cache where that is coarser.

    The oracle rounds its cache the same way, so the two differ only where a value lies so near to the middle
    between two steps that the arithmetic's rounding decides: by whole steps, but few.
    """
    stored = variant.kv.rounding
    return max(variant.precision.rounding, stored if of_cache else stored / FEW)


def _share(errors: Errors, allowed: Errors) -> float:
    """How much of what is allowed; infinite where the errors are unknown."""
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

        `brief`: `check` and the budget consist of the first two only.
        """
        self.model, self.precision, self.batch, self.seed = model, precision, batch, seed
        self.capacity, self.contexts, self.steps, self.forced = capacity, contexts, steps, forced
        self.names = list(BRIEF if brief else CHECKS)
        self._truths: dict[tuple[PrecisionOption, KvOption], Truth] = {}
        self._budgets: dict[str, Evidence] = {}
        self._rows: Gate | None = None

    def check_briefly(self, decoder: Decoder) -> GateResult:
        """Greedy and forced tokens only: for another width of a model on which the variant passed `check`."""
        return self._run(decoder, list(BRIEF))

    def check_only(self, decoder: Decoder, name: str) -> GateResult:
        """One check of CHECKS."""
        return self._run(decoder, [name])

    def check(self, decoder: Decoder) -> GateResult:
        """Every check, then rows of a batch against solo runs. An exception is a failure."""
        result = self._run(decoder, self.names)
        if result.status == "pass":
            rows = self._rows_gate()
            small = Decoder.of(decoder.variant, rows.model, batch=ROWS, capacity=rows.capacity)
            outcome = rows._run(small, ["forced"]).checks[0]
            detail = f"{outcome.check}: {outcome.detail}" if outcome.status == "fail" else outcome.detail
            result.checks.append(GateCheck("batch rows", outcome.status, detail, outcome.errors))
        reduced = decoder.variant.precision.name != self.precision or decoder.variant.kv.narrow
        if result.status == "pass" and reduced:
            return replaced(result, drift=self._drift(decoder))
        return result

    def _run(self, decoder: Decoder, names: list[str]) -> GateResult:
        checks: list[GateCheck] = []
        steps, name = 0, "build"
        try:
            trial = self._trial(decoder)
            steps, seen = trial.steps, list[Evidence]()
            for name in names:
                parts = CHECKS[name](trial)
                checks.append(self._judged(name, parts, decoder.variant))
                seen += parts
            if decoder.variant.name == self.baseline and names == self.names:
                self._budgets[decoder.variant.precision.name] = Evidence.joined(seen)
        except Mismatch as mismatch:
            checks.append(GateCheck(name, "fail", str(mismatch)))
        except Exception as error:  # a variant that crashes is a failed variant, and the run goes on
            checks.append(GateCheck(name, "fail", one_line(error)))
        return GateResult(steps, checks)

    def _judged(self, name: str, parts: Parts, variant: Variant) -> GateCheck:
        """By the comparison that came nearest to what is allowed."""
        compared = [
            (part.label(layer), layer, found) for part in parts for layer, found in part.by_layer.items()
        ]
        if not compared:
            return GateCheck(name, "pass", "bit-equal or not applicable")
        judged = [(label, found, self._allowed(layer, found, variant)) for label, layer, found in compared]
        label, errors, allowed = max(judged, key=lambda row: _share(row[1], row[2]))
        numbers = CheckErrors(errors.rms, errors.max, allowed.rms, allowed.max)
        if _share(errors, allowed) > 1:
            said = (
                f"{label}: error rms {errors.rms:.2g}, max {errors.max:.2g} against float64, "
                f"allowed {allowed.rms:.2g} and {allowed.max:.2g}"
            )
            return GateCheck(name, "fail", said, numbers)
        return GateCheck(name, "pass", errors=numbers)

    def _allowed(self, layer: int, errors: Errors, variant: Variant) -> Errors:
        unit = _rounding(variant, of_cache=layer != LOGITS) * errors.scale
        if variant.name == self.baseline:
            return Errors(PLAIN_EAGER_ALLOWED * unit, PEAK * PLAIN_EAGER_ALLOWED * unit, errors.scale)
        plain = self._budget(variant.precision.name).by_layer[layer]
        peak = PEAK * unit if variant.kv.narrow else unit
        return Errors(ALLOWED * max(plain.rms, unit), ALLOWED * max(plain.max, peak), errors.scale)

    def _budget(self, precision: str) -> Evidence:
        """The largest errors of plain cached eager at this precision."""
        if precision not in self._budgets:
            plain = Decoder.of(self._plain(precision), self.model, batch=self.batch, capacity=self.capacity)
            trial = self._trial(plain)
            self._budgets[precision] = Evidence.joined(
                part for name in self.names for part in CHECKS[name](trial)
            )
        return self._budgets[precision]

    def _trial(self, decoder: Decoder) -> Trial:
        """Without a cache a decoder is the reference itself; a few steps show that it is wired up."""
        variant, most = decoder.variant, None if decoder.variant.cache.keeps else FEW_STEPS
        truth = self._truth_for(variant.precision, variant.kv)
        tie = ALLOWED * PLAIN_EAGER_ALLOWED * _rounding(variant, of_cache=False)
        steps, forced = (min(n, most or n) for n in (self.steps, self.forced))
        trial = Trial.of(decoder, truth, steps, forced, self.contexts, tie, self.seed)
        if self.names != list(BRIEF):
            truth.learn(trial.text)
        return trial

    def _truth_for(self, precision: PrecisionOption, kv: KvOption = AS_PRECISION) -> Truth:
        if (precision, kv) not in self._truths:
            self._truths[precision, kv] = self._truth(precision, kv)
        return self._truths[precision, kv]

    def _rows_gate(self) -> Gate:
        if self._rows is None:
            self._rows = self._for_rows()
        return self._rows

    # -- what a trunk brings: its plain cached eager, its truth, its rows ---------------------

    baseline = BASELINE

    def _plain(self, precision: str) -> Variant:
        return ladder(precision)[self.baseline]

    def _truth(self, precision: PrecisionOption, kv: KvOption) -> Truth:
        assert isinstance(self.model, GPT)
        return Oracle(self.model, precision, kv, self.batch)

    def _for_rows(self) -> Gate:
        """The gate of ROWS rows, on a small model of the same family."""
        config = _rows_config(self.model.config)
        model = random_model(config, self.seed, dtype=self.model.dtype, device=self.model.device)
        return Gate(model, self.precision, batch=ROWS, steps=8, forced=24, seed=self.seed, brief=True)

    @torch.inference_mode()
    def _drift(self, decoder: Decoder) -> Drift:
        trial = self._trial(decoder)
        fed, start = trial.after_prompt(trial.forced), trial.prompt.size(1) - 1
        logits = [decoder.prefill(trial.prompt)[:, None].clone()]
        logits += [decoder.step(token)[:, None] for token in fed.split(1, dim=1)]
        text = torch.cat([trial.prompt, fed], dim=1)
        root = self._truth_for(declared(PrecisionOption)[self.precision])
        return agreement_with(torch.cat(logits, dim=1), root.logits(text, position=start))
