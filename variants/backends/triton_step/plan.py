"""How one step is cut into programs and tiles. Plain integers: no torch, no Triton.

A `Geometry` is a compile-time constant of every kernel. Kernels bind its fields to local constexprs before
they use them, since Triton 3.6 does not take a field in every place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from typing import NamedTuple

from variants.config import GPTConfig

WARPS = 8  # a program has a multiprocessor to itself: 256 threads of up to 255 registers
TILE_BYTES = 32 << 10  # weights of one tile: 32 registers a thread, and two tiles are in flight
MAX_SPLITS = 16  # of the keys of one head
BATCH_TILE = 16  # the fewest rows of a matrix product (tl.dot); a batch of 1 is summed without one
MAX_ROWS = 16  # of a tile


class Ahead(IntEnum):
    """How the one launch asks for the next matrices in the second-level cache."""

    NONE = 0
    BY_LINE = 1  # a hint per thread and line
    IN_RUNS = 2  # one hint per program and matrix (compute capability 9.0)


@dataclass(frozen=True)
class Matrix:
    """A weight [rows, columns], read in tiles of [tile_rows, tile_columns]."""

    rows: int
    columns: int
    tile_rows: int
    tile_columns: int
    scaled: bool  # int8 with one float32 scale per row
    normed: bool  # its input goes through a norm first
    biased: bool
    unit: int  # rows that stay together in one program: 2 where gate and up alternate

    @property
    def chunks(self) -> int:
        """Tiles side by side in one row."""
        return -(-self.columns // self.tile_columns)


@dataclass(frozen=True)
class Geometry:
    """Everything about a step that is known before it runs."""

    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int
    head_tile: int
    capacity: int
    block: int  # keys per tile, and the least that one split takes
    splits: int
    split_tile: int
    batch: int
    batch_tile: int
    programs: int
    program_tile: int
    epsilon: float
    half: bool  # the model's activations are bfloat16
    ahead: int  # of `Ahead`
    rms: bool  # norms take no mean and add nothing
    silu: bool  # the activation, else GELU
    rotary: bool  # queries and keys are turned, and no position is added to the embedding
    qk_norm: bool  # and normed before, head by head
    qkv: Matrix
    out: Matrix
    up: Matrix
    down: Matrix
    head: Matrix


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << (n - 1).bit_length() if n > 1 else 1


def tile_rows(rows: int, columns: int, item_bytes: int, programs: int, batch: int, unit: int) -> int:
    """Rows of a tile: what one program owns, as far as two tiles of it fit into registers; whole units."""
    fitting = max(TILE_BYTES // (columns * max(item_bytes, 2)), 1)  # int8 is widened in registers
    fitting = min(power_of_two(fitting + 1) // 2, MAX_ROWS)
    least = 8 if batch > 1 else unit
    return max(min(power_of_two(-(-rows // programs)), fitting), least)


def tile_columns(columns: int, batch: int) -> int:
    """Columns of a tile, at least one element a thread where the row is long enough."""
    widest = 128 if batch > 1 else 256 if columns < 2048 else 1024
    return max(min(widest, power_of_two(columns)), 16)


class Setting(NamedTuple):
    """What a plan depends on, as plain integers: operators registered with torch take nothing richer."""

    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int
    n_embd: int
    n_inner: int
    vocab_size: int
    rms: int  # 1 where it is so, as all that follow but sizes
    silu: int
    gated: int
    rotary: int
    qk_norm: int
    qkv_bias: int
    out_bias: int
    mlp_bias: int
    capacity: int
    batch: int
    weight_bytes: int  # of one weight
    half: int  # 1 where activations are bfloat16
    programs: int
    block: int
    ahead: int

    @classmethod
    def of(
        cls,
        c: GPTConfig,
        capacity: int,
        batch: int,
        *,
        weight_bytes: int,
        half: bool,
        programs: int,
        block: int = 64,
        ahead: Ahead = Ahead.NONE,
    ) -> Setting:
        """That of a model and what it is run with."""
        sizes = (c.n_layer, c.n_head, c.n_kv_head, c.head_dim, c.n_embd, c.n_inner, c.vocab_size)
        kinds = (c.norm == "rms", c.activation == "silu", c.gated, c.rope is not None, c.qk_norm)
        facts = (*kinds, c.qkv_bias, c.out_bias, c.mlp_bias)
        run = (capacity, batch, weight_bytes, half, programs, block, ahead)
        return cls._make(int(value) for value in (*sizes, *facts, *run))


def ahead(matrix_bytes: int, cache_bytes: int, in_runs: bool) -> Ahead:
    """How to ask for the next matrices, of which two of the largest are on their way at once: not where they
    would take more than half of the second-level cache; in runs of bytes where the device can."""
    if 4 * matrix_bytes > cache_bytes:
        return Ahead.NONE
    return Ahead.IN_RUNS if in_runs else Ahead.BY_LINE


@cache
def plan(setting: Setting, epsilon: float) -> Geometry:
    """The geometry for `setting.programs` concurrent programs."""
    s = setting
    C, F, D = s.n_embd, s.n_inner, s.head_dim
    queries, unit = s.n_head * D, 2 if s.gated else 1

    def matrix(rows: int, columns: int, normed: bool, biased: int, unit: int = 1) -> Matrix:
        tile = tile_rows(rows, columns, s.weight_bytes, s.programs, s.batch, unit)
        scaled = s.weight_bytes == 1
        return Matrix(rows, columns, tile, tile_columns(columns, s.batch), scaled, normed, bool(biased), unit)

    qkv = matrix(queries + 2 * s.n_kv_head * D, C, True, s.qkv_bias)
    splits = max(1, min(MAX_SPLITS, s.programs // (s.batch * s.n_head)))
    return Geometry(
        n_layer=s.n_layer,
        n_head=s.n_head,
        n_kv_head=s.n_kv_head,
        head_dim=D,
        head_tile=power_of_two(D),
        capacity=s.capacity,
        block=s.block,
        splits=splits,
        split_tile=power_of_two(splits),
        batch=s.batch,
        batch_tile=BATCH_TILE if s.batch > 1 else 1,
        programs=s.programs,
        program_tile=power_of_two(s.programs),
        epsilon=epsilon,
        half=bool(s.half),
        ahead=s.ahead,
        rms=bool(s.rms),
        silu=bool(s.silu),
        rotary=bool(s.rotary),
        qk_norm=bool(s.qk_norm),
        qkv=qkv,
        out=matrix(C, queries, False, s.out_bias),
        up=matrix(unit * F, C, True, s.mlp_bias, unit),
        down=matrix(C, F, False, s.mlp_bias),
        # the tile of qkv, since the persistent kernel prefetches either with the same code
        head=replace(qkv, rows=s.vocab_size),
    )
