"""What each kernel must move and compute: the distinct bytes that it reads, those that it writes, its FLOPs.

One function per kernel, proven against the bytes that the kernel touches in the interpreter. A multiply-add
counts as two FLOPs; norms, softmax and GELU are left out, as in `profiling.cost.work`. No torch here.
"""

from __future__ import annotations

from dataclasses import dataclass

from variants.backends.triton_step.plan import Geometry, Matrix

FLOAT_BYTES = 4
INT64_BYTES = 8
KERNELS_PER_LAYER = 5


@dataclass(frozen=True)
class Cost:
    """Distinct bytes and FLOPs of one launch."""

    read_bytes: int
    written_bytes: int
    flops: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
            self.flops + other.flops,
        )


def model_bytes(g: Geometry) -> int:
    """Bytes of one bias, norm parameter, embedding element, cached value or logit."""
    return 2 if g.half else 4


def matrix_bytes(m: Matrix, g: Geometry) -> int:
    """Bytes of a matrix itself."""
    return m.rows * m.columns * (1 if m.scaled else model_bytes(g))


def weight_bytes(m: Matrix, g: Geometry) -> int:
    """Bytes of a matrix with its scales, bias and the norm before it."""
    scales = m.rows * FLOAT_BYTES * m.scaled
    norm = m.columns * (1 if g.rms else 2) if m.normed else 0
    return matrix_bytes(m, g) + scales + (m.rows * m.biased + norm) * model_bytes(g)


def _product(m: Matrix, g: Geometry, read: int, written: int) -> Cost:
    return Cost(weight_bytes(m, g) + read, written, 2 * g.batch * m.rows * m.columns)


def qkv(g: Geometry, first: bool, tokens: int = 1) -> Cost:
    """Norm and projection to q, k and v; the `first` of a step reads `tokens` different embedding rows."""
    C, kv = g.qkv.columns, g.n_kv_head * g.head_dim
    copies = g.programs * g.batch * C * FLOAT_BYTES
    tables = (tokens + (not g.rotary)) * C * model_bytes(g) + g.batch * INT64_BYTES
    read = INT64_BYTES + (tables + copies if first else g.batch * C * FLOAT_BYTES)
    aside, cached = g.n_head * g.head_dim + kv * g.rotary, kv * (2 - g.rotary)
    written = g.batch * (aside * FLOAT_BYTES + cached * model_bytes(g))
    return _product(g.qkv, g, read, written + (copies if first else 0))


def attend(g: Geometry, length: int) -> Cost:
    """`length` old keys and the new one, which it may have to turn and to append. Partial results move only
    where several splits have work.
    """
    pairs, D = g.batch * g.n_head, g.head_dim
    keys = max(-(-length // g.splits), g.block)
    live = max(-(-length // keys), 1)
    partial = pairs * live * (D + 1) * FLOAT_BYTES if live > 1 else 0
    row = g.batch * g.n_kv_head * D  # of one slot's keys or values
    cached = (2 * length + 2 - g.rotary) * row * model_bytes(g)
    turned = (row * FLOAT_BYTES + (1 + 2 * g.qk_norm) * D * model_bytes(g)) * g.rotary
    vector = pairs * D * FLOAT_BYTES
    reset = pairs * FLOAT_BYTES if live > 1 else 0
    flops = 4 * pairs * D * (length + 1)
    appended = row * model_bytes(g) * g.rotary
    return Cost(INT64_BYTES + vector + turned + cached + partial, vector + appended + partial + reset, flops)


def out(g: Geometry) -> Cost:
    residual = g.batch * g.out.rows * FLOAT_BYTES
    return _product(g.out, g, g.batch * g.out.columns * FLOAT_BYTES + residual, residual)


def up(g: Geometry) -> Cost:
    return _product(g.up, g, g.batch * g.up.columns * FLOAT_BYTES, g.batch * g.down.columns * FLOAT_BYTES)


def down(g: Geometry) -> Cost:
    residual = g.batch * g.down.rows * FLOAT_BYTES
    return _product(g.down, g, g.batch * g.down.columns * FLOAT_BYTES + residual, residual)


def head(g: Geometry) -> Cost:
    best = 2 * g.batch * g.programs * FLOAT_BYTES
    read = INT64_BYTES + g.batch * g.head.columns * FLOAT_BYTES + best
    counters = 2 * FLOAT_BYTES
    state = (g.batch + 1) * INT64_BYTES + counters
    return _product(g.head, g, read, g.batch * g.head.rows * model_bytes(g) + best + state)


def asked_ahead(g: Geometry) -> int:
    """Bytes that the one launch asks for in the second-level cache: every matrix but the first one of the
    step, and of the head's rows as many as a program has of qkv."""
    layer = sum(matrix_bytes(m, g) for m in (g.qkv, g.out, g.up, g.down))
    rows = 0
    for program in range(g.programs):
        (q_row, q_end), (row, end) = (
            ((program * m.rows) // g.programs, ((program + 1) * m.rows) // g.programs)
            for m in (g.qkv, g.head)
        )
        rows += min(q_end - q_row, end - row)
    return g.n_layer * layer - matrix_bytes(g.qkv, g) + rows * matrix_bytes(g.head, g) // g.head.rows


def step(g: Geometry, length: int) -> dict[str, tuple[int, Cost]]:
    """(launches, cost of one) of every kernel of a step with `length` tokens held, in order."""
    return {
        "qkv_first": (1, qkv(g, first=True)),
        "qkv": (g.n_layer - 1, qkv(g, first=False)),
        "attend": (g.n_layer, attend(g, length)),
        "out": (g.n_layer, out(g)),
        "up": (g.n_layer, up(g)),
        "down": (g.n_layer, down(g)),
        "head": (1, head(g)),
    }


def total(g: Geometry, length: int) -> Cost:
    """Bytes and FLOPs of a step as `kernels` run it: what one phase hands to the next is written and read."""
    whole = Cost(0, 0, 0)
    for launches, cost in step(g, length).values():
        for _ in range(launches):
            whole += cost
    return whole
