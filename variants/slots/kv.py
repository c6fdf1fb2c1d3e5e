"""Slot `kv`: how the cached keys and values are stored, where that is not as everything else is.

They are encoded when appended and decoded when read, so every query sees what the cache holds, also during
prefill. The modules decode the whole cache in every layer: there a narrow cache saves memory, takes time, and
is for the proof. The one-launch kernels read it as it lies.

int8 is symmetric with one float32 scale per token and head (in K and V each): value = scale * q.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from variants.config import DTYPE_BYTES, GPTConfig
from variants.option import Move, Option, anywhere
from variants.slots.cache import STATIC, Cache, CacheOption

if TYPE_CHECKING:
    from torch import Tensor

Parts: TypeAlias = "tuple[Tensor, ...]"  # values [B,Hkv,T,D] and, if scaled, scales [B,Hkv,T,1]
StoredLayer: TypeAlias = "tuple[Parts, Parts]"  # keys and values
Encode: TypeAlias = "Callable[[Tensor], Parts]"
FEWER_BYTES = Move(
    "long", True, "fewer bytes of cache to read, by kernels; modules widen the whole cache first"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class KvOption(Option):
    """How a cached value is stored: `encoder` gives k or v [B,Hkv,T,D] -> what is kept in its place."""

    caches: tuple[CacheOption, ...] | None  # that it is written for; None: any
    encoder: Callable[[], Encode]
    element_bytes: Callable[
        [GPTConfig, int], float
    ]  # per cached value, scales included, from the model's own
    # relative rounding unit of a stored value, by which the gate bounds what storing it may cost; 0: none
    rounding: float

    @property
    def narrow(self) -> bool:
        """Whether values take fewer bits than the arithmetic."""
        return self.rounding > 0

    def build(self, cache: CacheOption, config: GPTConfig, batch: int, capacity: int, like: Tensor) -> Cache:
        """The cache, which stores its values so; its tensors otherwise as `like`."""
        if not self.narrow:
            return cache.build(config, batch, capacity, like)
        from variants.slots.narrow_cache import NarrowCache

        return NarrowCache(config, batch, capacity, like, self.encoder())


def _per_token_and_head() -> Encode:
    from variants.slots.quantised import quantise_rows

    return lambda x: quantise_rows(x.float())


AS_PRECISION = KvOption(
    name="as precision",
    caches=None,
    encoder=lambda: lambda x: (x,),
    element_bytes=lambda config, width: width,
    rounding=0.0,
    moves=(),
    why_not=anywhere,
)
KV_BFLOAT16 = KvOption(
    name="bfloat16",
    caches=(STATIC,),
    encoder=lambda: lambda x: (x.bfloat16(),),
    element_bytes=lambda config, width: DTYPE_BYTES["bfloat16"],
    rounding=2.0**-8,
    moves=(FEWER_BYTES,),
    why_not=anywhere,
)
KV_INT8 = KvOption(
    name="int8",
    caches=(STATIC,),
    encoder=_per_token_and_head,
    element_bytes=lambda config, width: 1 + DTYPE_BYTES["float32"] / config.head_dim,
    rounding=2.0**-7,
    moves=(FEWER_BYTES,),
    why_not=anywhere,
)
