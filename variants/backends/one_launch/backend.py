"""The one-launch backend, as Python sees it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from variants.backends.backend import Backend
from variants.backends.one_launch import library
from variants.model import GPT
from variants.slots.static_cache import StaticCache

PHASES = ("embed", "qkv", "attention", "out", "up", "down", "head")
CACHE_LINE = 64  # bytes


class Span(NamedTuple):
    """One thread's work in one phase, without its wait at the barrier. Nanoseconds since the epoch."""

    phase: str
    layer: int
    thread: int
    start_ns: int
    end_ns: int


class OneLaunch(Backend):
    """One C++ call per step over a static cache, with torch's thread setting.

    It reads the model's tensors in place, keys and values as they are stored, and attends over length + 1
    slots, whatever the bucket. Prompts and chunks go through the modules, over the same cache.
    """

    def __init__(self, model: GPT, cache: StaticCache, precision: str) -> None:
        library.load()
        config = model.config
        named = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
        self.cache, stored = cache, cache.stored()
        self.plan = torch.classes.decode_floor.Plan(
            precision,
            [config.n_head, config.n_kv_head, int(config.gated)],
            config.layer_norm_epsilon,
            {name: _as_kernels_take_it(tensor.detach()) for name, tensor in named.items()},
            [list(keys) for keys, _ in stored],
            [list(values) for _, values in stored],
        )
        self.number = self.plan.number()
        self.logits = model.like.new_empty(stored[0][0][0].size(0), config.vocab_size)

    def step(self, token: Tensor) -> Tensor:
        """token int64 [B,1], overwritten with the argmax -> logits [B,V], overwritten by the next step."""
        torch.ops.decode_floor.one_launch_step.default(self.number, token, self.cache.length, self.logits)
        return self.logits

    def watch(self, on: bool) -> None:
        """Record the phases of the following steps, for `spans`."""
        self.plan.watch(on)

    def spans(self) -> list[Span]:
        """What the threads did in the steps watched since the last call."""
        return [Span(PHASES[phase], *rest) for phase, *rest in self.plan.spans().tolist()]


def _as_kernels_take_it(tensor: Tensor) -> Tensor:
    """Biases, norms and scales in float32 whatever the weights are; rows of int8 in whole cache lines."""
    if tensor.dim() == 1:
        return tensor.float()
    if tensor.dtype == torch.int8:
        return functional.pad(tensor, (0, -tensor.size(1) % CACHE_LINE)).contiguous()
    return tensor
