"""The planning question backwards: given a device's memory, how many tokens and requests fit?

No torch here. What the weights leave of the usable share of memory is divided by what a token, or a
request, keeps. Blocks are counted as serving does it: a request holds whole blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling.results.record import FittingPlan, ModelShape
from profiling.sizing.model_shape import (
    KvFormat,
    attention_pairs,
    kv_bytes,
    kv_token_bytes,
    longest_context,
)
from variants.errors import UserError

GIB = 2**30
MAX_GIB = 2.0**20  # beyond any device, and a number of bytes that every float holds exactly
BLOCK_TOKENS = 16  # vLLM's default block size


@dataclass(frozen=True)
class DeviceMemory:
    """Of one device: its size, the share that may be used, and what neither weights nor cache take
    (activations, graphs). Raises UserError for numbers that cannot be."""

    gib: float
    utilisation: float = 0.9
    other_gib: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.gib <= MAX_GIB and 0 < self.utilisation <= 1 and 0 <= self.other_gib <= MAX_GIB):
            raise UserError(
                f"cannot plan on {self.gib} GiB used to {self.utilisation} with {self.other_gib} GiB for "
                f"other things: memory must be positive and at most {MAX_GIB:,.0f} GiB, the share in 0 to 1"
            )

    @property
    def usable_bytes(self) -> int:
        return int(self.gib * GIB * self.utilisation)

    @property
    def other_bytes(self) -> int:
        return int(self.other_gib * GIB)


def plan(
    shape: ModelShape, kv: KvFormat, lengths: Sequence[int], memory: DeviceMemory, shared_prefix: int = 0
) -> FittingPlan:
    """Fit requests of these lengths, in tokens, each as likely as any other; one length: all have it.

    `shared_prefix`: tokens that all of them begin with; its whole blocks are kept once. Raises UserError
    where the numbers cannot be, or the weights' size is unknown.
    """
    if shape.weights_bytes is None:
        raise UserError(f"{shape.name}: the size of the weights is not known; give it by --weights-gib")
    windowed = any(window is not None for window in shape.windows)
    if not 0 <= shared_prefix < min(lengths) or (shared_prefix and windowed):
        what = "a model whose layers have windows" if windowed else f"a request of {min(lengths)} tokens"
        raise UserError(f"a shared prefix of {shared_prefix:,} tokens cannot be planned with {what}")
    shared = kv_bytes(shape, shared_prefix // BLOCK_TOKENS * BLOCK_TOKENS, kv)
    sizes = {n: kv_bytes(shape, _whole_blocks(n), kv) for n in set(lengths)}
    request = math.ceil(sum(sizes[n] for n in lengths) / len(lengths)) - shared
    free = memory.usable_bytes - shape.weights_bytes - memory.other_bytes
    limits = (longest_context(shape, max(0, free), kv), shape.max_context)
    return FittingPlan(
        memory.usable_bytes,
        free,
        None if windowed else max(0, free) // kv_token_bytes(shape, kv),
        max(0, (free - shared) // request),
        request,
        min((limit for limit in limits if limit is not None), default=None),
        devices_for(shape, max(sizes.values()), memory),
    )


def _whole_blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS


def devices_for(shape: ModelShape, request_bytes: int, memory: DeviceMemory) -> int | None:
    """Fewest such devices that hold the weights and the cache of one request, by tensor parallelism: weights
    and heads are split evenly, a KV head or a latent vector is not. None: no number of them does."""
    assert shape.weights_bytes is not None
    kv_heads = 1 if shape.latent else shape.n_kv_head
    for devices in range(1, shape.n_head + 1):
        if shape.n_head % devices or (kv_heads % devices and devices % kv_heads):
            continue
        cache = request_bytes / min(devices, kv_heads)
        if shape.weights_bytes / devices + cache <= memory.usable_bytes - memory.other_bytes:
            return devices
    return None


def read_requests(path: Path) -> list[tuple[int, ...]]:
    """Tokens of each request in a file: a line each, all of them, or prompt and new ones; `#` starts a
    comment. Raises UserError that names the line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # a table of Windows begins with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--lengths {path}: not a readable text file ({error})") from None
    requests = []
    for number, line in enumerate(lines, 1):
        fields = re.split(r"[,;\s]+", line.partition("#")[0].strip(" ,;\t"))
        if fields == [""]:
            continue
        if len(fields) > 2 or not all(re.fullmatch(r"\d{1,9}", field) for field in fields):
            raise UserError(
                f"--lengths {path}, line {number}: {line[:60]!r}; a number of tokens, or two (prompt, new), "
                "is needed"
            )
        requests.append(tuple(map(int, fields)))
    if min(map(sum, requests), default=0) < 1:
        raise UserError(f"--lengths {path}: requests of at least 1 token are needed")
    return requests


def doubling(shape: ModelShape, kv: KvFormat, context: int) -> dict[str, float]:
    """Factors by which bytes and work grow when the context doubles, by what they are of."""
    n = context
    return {
        "cache of a request": kv_bytes(shape, 2 * n, kv) / kv_bytes(shape, n, kv),
        "prefill, attention": attention_pairs(shape, 2 * n) / attention_pairs(shape, n),
        "prefill, linear layers": 2.0,
        "decode step, attention": kv_bytes(shape, 2 * n, kv) / kv_bytes(shape, n, kv),
        "decode step, linear layers": 1.0,
    }
