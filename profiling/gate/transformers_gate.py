"""The gate over a model of transformers: its truth is its own forward pass, in float64 and without a cache.

transformers computes norms in float32 also there, so the truth is off by about a float32 rounding unit: it
serves for float32 and coarser.
"""

from __future__ import annotations

import torch
from torch import Tensor

from profiling.gate.checks import Check, batch_rows
from profiling.gate.every_slot import NAME as EVERY_SLOT
from profiling.gate.gate import ROWS, Gate
from profiling.gate.oracle import KV, Answer, Truth
from variants.backends.transformers_model import GrowingLayers, TransformersModel
from variants.ladder import transformers_ladder
from variants.slots.kv import KvOption
from variants.slots.precision import PrecisionOption
from variants.spec import Variant


class Uncached(Truth):
    """Float64 logits of whole texts, nothing cached; keys and values from a pass that starts empty."""

    def __init__(self, model: TransformersModel) -> None:
        """The copy takes 8 bytes per parameter."""
        super().__init__()
        self.model = model.exact()

    @torch.inference_mode()
    def kv(self, tokens: Tensor) -> KV:
        cache, n = GrowingLayers(), tokens.size(1)
        self.model(tokens, cache.cache, every=False)
        return [cache.contents(layer, n) for layer in range(self.model.config.n_layer)]

    @torch.inference_mode()
    def _compute(self, tokens: Tensor, position: int, slot: int) -> Answer:
        kv = [(k[:, :, slot:].clone(), v[:, :, slot:].clone()) for k, v in self.kv(tokens)]
        return Answer(self.model(tokens)[:, position:].clone(), kv)


class TransformersGate(Gate):
    """Judges decoders of a `TransformersModel`; plain cached eager is its `hf`."""

    model: TransformersModel
    baseline = "hf"

    def _plain(self, precision: str) -> Variant:
        return transformers_ladder(precision)[self.baseline]

    def _truth(self, precision: PrecisionOption, kv: KvOption) -> Truth:
        return Uncached(self.model)

    def _chosen(self, checks: dict[str, Check]) -> dict[str, Check]:
        """Without caches that are arranged: its truth takes no keys and values."""
        return {name: check for name, check in super()._chosen(checks).items() if name != EVERY_SLOT}

    def _small_gate(self) -> Gate:
        """A gate over the same model, since its family may have no other size; its runs are short."""
        gate = TransformersGate(
            self.model, self.precision, batch=ROWS, capacity=self.capacity, forced=24, seed=self.seed
        )
        gate.checks = {"batch rows": batch_rows}
        return gate
