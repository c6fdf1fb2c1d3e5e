"""The one-launch backend, as Python sees it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from variants.backends.backend import Backend
from variants.backends.one_launch import library
from variants.errors import UserError
from variants.model import GPT
from variants.slots.paged_cache import PagedCache
from variants.slots.precision import PrecisionOption
from variants.slots.static_cache import StaticCache

PHASES = ("embed", "qkv", "attention", "out", "up", "down", "head")
CACHE_LINE = 64  # bytes
MOST_PLAIN = 16  # tokens of a pass whose weights are numbers that libraries multiply faster from there on


class Span(NamedTuple):
    """One thread's work in one phase, without its wait at the barrier. Nanoseconds since the epoch."""

    phase: str
    layer: int
    thread: int
    start_ns: int
    end_ns: int


class OneLaunch(Backend):
    """One C++ call per step over a static or a paged cache, with torch's thread setting.

    It reads the model's tensors in place, keys and values as they are stored, and attends over length + 1
    slots, whatever the bucket. So do passes over several tokens, which read the weights once; what is longer
    goes through the modules, over the same cache, where their matrix products are the faster ones.
    """

    def __init__(self, model: GPT, cache: StaticCache | PagedCache, precision: PrecisionOption) -> None:
        if not model.config.alike or (model.config.gated and model.config.activation != "silu"):
            raise UserError(
                "the one-launch kernels run GPT-2 and Llama's kind: no windows shorter than the run, layers "
                "without positions, norms behind attention and MLP, or scaled embeddings"
            )
        library.load()
        self.model, self.cache, self.precision = model, cache, precision
        rows = cache.table if isinstance(cache, PagedCache) else cache.stored()[0][0][0]
        self.logits = model.like.new_empty(rows.size(0), model.config.vocab_size)

    @cached_property
    def plan(self) -> Any:
        """The kernels' view of model and cache; made at the first step, until which pages may be shared."""
        config, stored = self.model.config, self.cache.stored()
        parameters = self.model.named_parameters(remove_duplicate=False)
        named = {**dict(parameters), **dict(self.model.named_buffers())}
        return torch.classes.decode_floor.Plan(
            self.precision.name,
            [config.n_head, int(config.gated)],
            config.layer_norm_epsilon,
            {name: _as_kernels_take_it(tensor.detach()) for name, tensor in named.items()},
            [list(keys) for keys, _ in stored],
            [list(values) for _, values in stored],
            self.cache.table if isinstance(self.cache, PagedCache) else None,
        )

    @cached_property
    def number(self) -> int:
        """The plan's, by which an operation finds it."""
        number: int = self.plan.number()
        return number

    def step(self, token: Tensor) -> Tensor:
        """token int64 [B,1], overwritten with the argmax -> logits [B,V], overwritten by the next step."""
        torch.ops.decode_floor.one_launch_step.default(self.number, token, self.cache.length, self.logits)
        return self.logits

    def extend(self, tokens: Tensor, every: bool) -> Tensor | None:
        """tokens int64 [B,T] -> logits [B,T,V], or [B,1,V] of the last; None where the modules are faster."""
        batch, n = tokens.shape
        if self.precision.plain and n > MOST_PLAIN:
            return None
        logits = self.logits.new_empty(batch, n if every else 1, self.logits.size(1))
        operation = torch.ops.decode_floor.one_launch_extend.default
        operation(self.number, tokens.contiguous(), self.cache.length, logits)
        return logits

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
