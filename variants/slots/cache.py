"""Slot `cache`: where the past is kept.

A cache decides which tokens a forward pass runs (`begin`), takes the new keys and values of a layer and
returns all that the queries may look at (`append`), and counts tokens (`advance`). Growing caches count in
Python; caches of fixed shape count in device memory, so that a recorded step needs no value from the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from variants.config import GPTConfig
from variants.option import Move, Option, anywhere
from variants.slots.mask import Where

if TYPE_CHECKING:
    from torch import Tensor


class Window(NamedTuple):
    """What one forward pass runs and sees."""

    tokens: Tensor  # int64 [B,T']: the new tokens, or the whole text where nothing is cached
    positions: Tensor  # int64 [T']
    where: Where  # the same positions, as the mask takes them
    slots: int  # S, how many keys the attention is given


class Cache(Protocol):
    """Keys and values of the tokens so far, of every layer, in the layout that the option chose."""

    slots: int  # how many slots a fixed-shape step attends over; growing caches ignore it

    def reserve(self, held: int, new: int) -> None:
        """Make room for `new` tokens after `held`; the host calls it before a pass. Most caches have it."""
        return

    def begin(self, tokens: Tensor) -> Window:
        """New tokens [B,T] -> what to run."""
        ...

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        """New k and v [B,Hkv,T,D] of one layer at `where` -> all keys and values [B,Hkv,S,D]."""
        ...

    def advance(self, tokens: Tensor) -> None:
        """The new tokens [B,T] have been appended in every layer."""
        ...

    def rewind(self, n: int) -> None:
        """Forget all but the first n tokens."""
        ...

    def held(self) -> int:
        """How many tokens the cache itself counts; waits for the device where it counts there."""
        ...

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B,Hkv,n,D] of the first n tokens."""
        ...

    def buffers(self) -> list[Tensor]:
        """The tensors that it keeps in memory, whatever part of them is filled."""
        ...


@runtime_checkable
class Preallocated(Protocol):
    """A cache whose slots are there before they are filled."""

    def poison(self, n: int, noise: float) -> None:
        """Overwrite every slot past the first n with finite noise."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheOption(Option):
    """`build` takes config, batch, capacity in tokens, and a tensor for dtype and device."""

    keeps: bool  # keys and values of the past; without them a step computes the whole text again
    fixed_shape: bool  # a step's tensors have the same shape at every context, so that it can be recorded
    build: Callable[[GPTConfig, int, int, Tensor], Cache]


def _none(config: GPTConfig, batch: int, capacity: int, like: Tensor) -> Cache:
    from variants.slots.growing_cache import NoCache

    return NoCache(config, batch, capacity, like)


def _concat(config: GPTConfig, batch: int, capacity: int, like: Tensor) -> Cache:
    from variants.slots.growing_cache import ConcatCache

    return ConcatCache(config, batch, capacity, like)


def _static(config: GPTConfig, batch: int, capacity: int, like: Tensor) -> Cache:
    from variants.slots.static_cache import StaticCache

    return StaticCache(config, batch, capacity, like)


def _paged(config: GPTConfig, batch: int, capacity: int, like: Tensor) -> Cache:
    from variants.slots.paged_cache import PagedCache

    return PagedCache(config, batch, capacity, like)


NONE = CacheOption(name="none", keeps=False, fixed_shape=False, build=_none, moves=(), why_not=anywhere)
CONCAT = CacheOption(
    name="concat",
    keeps=True,
    fixed_shape=False,
    build=_concat,
    moves=(
        Move("short", True, "one token of work instead of the whole text"),
        Move("long", True, "the longer the text, the more is saved"),
        Move("ttft", False, "the first pass computes every token with or without a cache"),
    ),
    why_not=anywhere,
)
STATIC = CacheOption(
    name="static",
    keeps=True,
    fixed_shape=True,
    build=_static,
    moves=(Move("long", True, "the concatenation copies the whole cache, which grows with the text"),),
    why_not=anywhere,
)
PAGED = CacheOption(name="paged", keeps=True, fixed_shape=True, build=_paged, moves=(), why_not=anywhere)
