"""The one decoder: open slots filled by a `Variant`, nothing subclasses it.

decoder = Decoder.of(ladder("float32")["sdpa"], random_model(PRESETS["gpt2"]), capacity=1024)
logits = decoder.prefill(prompt)            # [B,P] int64 -> [B,V]
logits = decoder.step(logits.argmax(-1, keepdim=True))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from variants.backends.backend import TRANSFORMERS, Backend, Trunk
from variants.backends.modules import Modules
from variants.backends.plugin import PluginOption
from variants.backends.transformers_model import TransformersModel
from variants.errors import UserError
from variants.executors.executor import Executor, WarmUp
from variants.model import GPT, Model
from variants.slots.cache import Cache
from variants.spec import Variant


class Parts(NamedTuple):
    """What a decoder is composed of."""

    modules: Trunk  # any number of tokens: prompts and chunks; with the model and its cache
    backend: Backend  # one step; often the modules again
    executor: Executor  # how the step is run


def runs(variant: Variant, model: Model) -> bool:
    """Whether a model of this kind is what the variant runs."""
    return isinstance(model, TransformersModel) == (variant.backend is TRANSFORMERS)


def build_parts(variant: Variant, model: Model, batch: int, capacity: int) -> Parts:
    """The parts that this variant names, over a model of the root's precision on the model's device."""
    if isinstance(model, TransformersModel):
        trunk = model.trunk(variant.cache, batch, capacity)
        return Parts(trunk, variant.backend.build(trunk, variant.precision), variant.executor.build())
    assert isinstance(model, GPT)
    if isinstance(variant.backend, PluginOption):
        plugin = variant.backend.trunk(model, batch, capacity)
        return Parts(plugin, plugin, variant.executor.build())
    model = variant.pages.build(variant.precision.build(model))
    cache = variant.kv.build(variant.cache, model.config, batch, capacity, model.like)
    mask = variant.mask.build(model.config, model.device)
    modules = Modules(model, cache, mask, variant.attention.build(), variant.head.build())
    backend = variant.backend.build(modules, variant.precision)
    return Parts(modules, backend, variant.executor.build())


class Decoder:
    """A variant over one model, for `batch` rows of equal length and at most `capacity` tokens.

    `buckets` are the numbers of slots that fixed-shape steps attend over, ascending; the last one must
    be the capacity. A step uses the smallest bucket that holds its context. One compiled step (library,
    tape, graph) exists per bucket, built at its first use or by `warm_up`.

    Rows share one position: prompts of different lengths need one decoder each.
    """

    def __init__(
        self,
        variant: Variant,
        parts: Parts,
        *,
        batch: int,
        capacity: int,
        buckets: Sequence[int] = (),
    ) -> None:
        """`parts` were built for this batch and capacity; see `of`."""
        self.buckets = tuple(buckets) or (capacity,)
        if list(self.buckets) != sorted(set(self.buckets)) or self.buckets[-1] != capacity:
            raise ValueError(f"buckets {self.buckets} must ascend to the capacity {capacity}")
        self.variant, self.batch, self.capacity, self.length = variant, batch, capacity, 0
        self.modules, self.backend, self.executor = parts
        self.token = torch.zeros(batch, 1, dtype=torch.int64, device=self.model.device)
        self._steps: dict[int, Callable[[], Tensor]] = {}

    @classmethod
    def of(
        cls,
        variant: Variant,
        model: Model,
        *,
        batch: int = 1,
        capacity: int | None = None,
        buckets: Sequence[int] = (),
    ) -> Self:
        """The decoder of a variant, from its parts. Raises UserError for a capacity beyond the model's."""
        limit = model.config.n_ctx
        capacity = limit if capacity is None else capacity
        if not 1 <= capacity <= limit:
            raise UserError(f"capacity {capacity} is outside 1..{limit}, the model's limit")
        parts = build_parts(variant, model, batch, capacity)
        return cls(variant, parts, batch=batch, capacity=capacity, buckets=buckets)

    @property
    def model(self) -> Model:
        """The model as this variant stores it."""
        return self.modules.model

    @property
    def our_modules(self) -> Modules:
        """The trunk of our own modules. Raises TypeError where others run."""
        if not isinstance(self.modules, Modules):
            raise TypeError(f"{self.variant.name} does not run our modules")
        return self.modules

    @property
    def cache(self) -> Cache:
        """The trunk's cache, which step and prefill share."""
        return self.modules.cache

    # -- the interface that the gate proves and the runner times ------------------------------

    @torch.inference_mode()
    def prefill(self, tokens: Tensor) -> Tensor:
        """From an empty cache: tokens [B,P] int64 -> logits [B,V] after the last; feeds back the argmax."""
        tokens = self._checked(tokens, start=0)
        self.reset()
        logits = self._forward(tokens, every=False)[:, -1]
        self.token.copy_(logits.argmax(dim=-1, keepdim=True))
        return logits

    @torch.inference_mode()
    def extend(self, tokens: Tensor) -> Tensor:
        """tokens [B,T] int64 after those already held -> logits [B,T,V] of every position."""
        tokens = self._checked(tokens, start=self.length)
        logits = self._forward(tokens, every=True)[:, -tokens.size(1) :]
        self.token.copy_(logits[:, -1].argmax(dim=-1, keepdim=True))
        return logits

    @torch.inference_mode()
    def step(self, token: Tensor) -> Tensor:
        """token [B,1] int64 -> logits [B,V], copied: a later replay does not overwrite them."""
        self.token.copy_(self._checked(token, start=self.length))
        return self.advance().clone()

    @torch.inference_mode()
    def advance(self) -> Tensor:
        """One step from the token fed back by the last call. The logits [B,V] live until the next step."""
        self._require_room(self.length, 1)
        step = self._step_for(self.bucket(self.length))
        self.cache.reserve(self.length, 1)
        logits = step()
        self.length += 1
        return logits

    def verify(self) -> None:
        """Raises RuntimeError where the backend itself saw a step go wrong. Waits for the device."""
        self.backend.verify()

    @torch.inference_mode()
    def rewind(self, n: int) -> None:
        """Forget all but the first n tokens."""
        if not 0 <= n <= self.length:
            raise UserError(f"cannot rewind to {n} tokens: the decoder holds {self.length}")
        self.cache.rewind(n)
        self.length = n

    def reset(self) -> None:
        """Forget everything."""
        self.rewind(0)

    @torch.inference_mode()
    def load(self, tokens: Tensor, kv: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Hold these tokens [B,n] with their keys and values (per layer, [B,Hkv,n,D]), computed elsewhere.

        A runner that visits one context again and again must not pay a prefill each time.
        """
        tokens = self._checked(tokens, start=0)
        self.reset()
        self.cache.reserve(0, tokens.size(1))
        where = self.cache.begin(tokens).where
        for layer, (k, v) in enumerate(kv):
            like = self.model.like
            self.cache.append(layer, k.to(like), v.to(like), where)
        self.cache.advance(tokens)
        self.length = tokens.size(1)
        self.token.copy_(tokens[:, -1:])

    # -- fixed-shape steps --------------------------------------------------------------------

    def bucket(self, n: int) -> int:
        """Slots that a step at context n attends over."""
        if not self.variant.fixed_shape:
            return n + 1
        return next(slots for slots in self.buckets if slots > n)

    @torch.inference_mode()
    def warm_up(self, buckets: Sequence[int] = ()) -> list[WarmUp]:
        """Build the compiled steps of these buckets (default: all) and say what each cost."""
        if not self.variant.fixed_shape:
            return []
        for slots in buckets or self.buckets:
            self._step_for(slots)
        return self.executor.log

    def _step_for(self, slots: int) -> Callable[[], Tensor]:
        key = slots if self.variant.fixed_shape else 0
        self.cache.slots = slots
        if key not in self._steps:
            held, token = self.length, self.token.clone()
            self.cache.reserve(held, 1)

            def restore() -> None:
                """Undo a trial step: its slot lies past the length and is free anyway."""
                self.cache.rewind(held)
                self.token.copy_(token)

            self._steps[key] = self.executor.build(self.backend.step, self.token, restore)
        return self._steps[key]

    def _forward(self, tokens: Tensor, every: bool) -> Tensor:
        if self.variant.fixed_shape:
            self.cache.slots = self.bucket(self.length + tokens.size(1) - 1)
        self.cache.reserve(self.length, tokens.size(1))
        logits = self.backend.extend(tokens, every)
        if logits is None:
            logits = self.modules.forward(tokens, every)
        self.length += tokens.size(1)
        return logits

    # -- refusals, before anything is written -------------------------------------------------

    def _checked(self, tokens: Tensor, start: int) -> Tensor:
        if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.size(0) != self.batch:
            shape = tuple(tokens.shape) if isinstance(tokens, Tensor) else type(tokens).__name__
            raise UserError(
                f"expected tokens of shape [{self.batch}, T], got {shape}; "
                "rows of different lengths need one decoder each"
            )
        if tokens.size(1) == 0:
            raise UserError("expected at least one token, got none")
        self._require_room(start, tokens.size(1))
        return tokens.to(self.token.device)

    def _require_room(self, held: int, new: int) -> None:
        if held + new > self.capacity:
            raise UserError(
                f"{held} tokens held and {new} more do not fit into the capacity of {self.capacity}; "
                "rewind, reset, or build the decoder with a larger capacity"
            )
