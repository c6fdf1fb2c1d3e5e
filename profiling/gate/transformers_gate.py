"""The gate over a model of transformers: its truth is its own forward pass, in float64 and without a cache.

transformers computes norms in float32 also there, so the truth is off by about a float32 rounding unit: it
serves for float32 and coarser.
"""

from __future__ import annotations

import torch
from torch import Tensor

from profiling.gate.checks import Check, batch_rows
from profiling.gate.every_slot import NAME as EVERY_SLOT
from profiling.gate.evidence import Mismatch
from profiling.gate.gate import ROWS, Gate
from profiling.gate.oracle import KV, Answer, Truth, first_slots
from profiling.results.record import GateCheck, GateResult
from variants.backends.transformers_model import GrowingLayers, TransformersModel
from variants.decoder import Decoder
from variants.ladder import THEIRS, transformers_ladder
from variants.slots.kv import KvOption
from variants.slots.precision import PrecisionOption
from variants.spec import Variant

SAME = 1e-6  # of the largest logit: float32 norms, and the kernel's choice by the shape of its mask
NOT_PROVEN = {
    EVERY_SLOT: "its truth computes keys and values and takes none",
    "numerics": "needs weights made for it, in the model's own family",
    "long run": "a thousand steps are made on a small model only, which its family may not have",
}


class Uncached(Truth):
    """Float64 logits, keys and values of whole texts: what a pass computes that finds nothing cached."""

    def __init__(self, model: TransformersModel) -> None:
        """`model`: it is copied."""
        super().__init__()
        self.model = model.exact()
        self.learned: tuple[Tensor, KV] | None = None
        self.compared = False

    def learn(self, tokens: Tensor) -> None:
        """Keys and values of this text [B,T], once: they are causal, so those of its beginnings are known."""
        if self.learned is None or not torch.equal(self.learned[0], tokens):
            self.learned = tokens, self._pass(tokens).kv

    def kv(self, tokens: Tensor) -> KV:
        n = tokens.size(1)
        if self.learned is not None and torch.equal(self.learned[0][:, :n], tokens):
            return first_slots(self.learned[1], n)
        return self._pass(tokens).kv

    def _compute(self, tokens: Tensor, position: int, slot: int) -> Answer:
        logits, kv = self._pass(tokens)
        return Answer(
            logits[:, position:].clone(), [(k[:, :, slot:].clone(), v[:, :, slot:].clone()) for k, v in kv]
        )

    @torch.inference_mode()
    def _pass(self, tokens: Tensor) -> Answer:
        """Of all tokens, from an empty cache, which only collects: the first time held to a pass without one.

        Raises Mismatch where the two differ: then nothing here is a truth.
        """
        cache, n = GrowingLayers(), tokens.size(1)
        logits = self.model(tokens, cache.cache)
        if not self.compared:
            plain = self.model(tokens)
            if not torch.allclose(logits, plain, rtol=0, atol=SAME * float(plain.abs().max())):
                raise Mismatch("the model computes something else with an empty cache than without one")
            self.compared = True
        return Answer(logits, [cache.contents(layer, n) for layer in range(self.model.config.n_layer)])


class TransformersGate(Gate):
    """Judges decoders of a `TransformersModel`; plain cached eager is its `hf`."""

    model: TransformersModel
    baseline = THEIRS.baseline

    def check(self, decoder: Decoder) -> GateResult:
        """What it cannot ask stands there as not proven."""
        result = super().check(decoder)
        if result.status == "pass":
            result.checks.extend(GateCheck(name, "not proven", why) for name, why in NOT_PROVEN.items())
        return result

    def _plain(self, precision: str) -> Variant:
        return transformers_ladder(precision)[self.baseline]

    def _truth(self, precision: PrecisionOption, kv: KvOption) -> Truth:
        return Uncached(self.model)

    def _chosen(self, checks: dict[str, Check]) -> dict[str, Check]:
        return {name: check for name, check in super()._chosen(checks).items() if name not in NOT_PROVEN}

    def _small_gate(self) -> Gate:
        """A gate over the same model and truth, since its family may have no other size; with short runs."""
        gate = TransformersGate(
            self.model, self.precision, batch=ROWS, capacity=self.capacity, forced=24, seed=self.seed
        )
        gate.checks = {"batch rows": batch_rows}
        gate._truths = self._truths
        return gate
