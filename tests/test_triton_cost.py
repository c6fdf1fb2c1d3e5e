"""The bytes that a cost function states are the bytes that its kernel touches in the interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton compiles here, so nothing is interpreted", allow_module_level=True)

import numpy as np
import torch
from triton.runtime import interpreter

from profiling.cost import work
from tests.triton_emulator import Emulated
from tests.triton_reference import LLAMA, QWEN3, Case
from variants.backends.triton_step import assembly, cost, ops, persistent, steps
from variants.backends.triton_step.interpreter import ASSEMBLY
from variants.backends.triton_step.plan import Ahead, Setting, ahead, plan
from variants.config import PRESETS, GPTConfig

CONFIG = GPTConfig(n_layer=2, n_head=4, n_embd=24, n_kv_head=2, n_ctx=24, vocab_size=37, n_inner=40)


class Traffic:
    """Distinct addresses read and written, with the size of their elements."""

    def __init__(self) -> None:
        self.read: dict[int, int] = {}
        self.written: dict[int, int] = {}

    def note(self, into: dict[int, int], pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8
        shape = np.broadcast_shapes(pointers.data.shape, mask.data.shape)
        addresses = np.broadcast_to(pointers.data, shape)[np.broadcast_to(mask.data, shape).astype(bool)]
        into.update(dict.fromkeys(np.unique(addresses).tolist(), size))


@contextmanager
def counted() -> Iterator[Traffic]:
    """Record every load and store of the interpreter; atomics stand outside."""
    builder, traffic = interpreter.interpreter_builder, Traffic()
    load, store = builder.create_masked_load, builder.create_masked_store

    def noted_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        traffic.note(traffic.read, pointers, mask)
        return load(pointers, mask, *rest)

    def noted_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        traffic.note(traffic.written, pointers, mask)
        return store(pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = noted_load, noted_store
    try:
        yield traffic
    finally:
        del builder.create_masked_load, builder.create_masked_store


@pytest.mark.parametrize(
    ("config", "precision", "length", "batch"),
    [
        (CONFIG, "float32", 13, 1),
        (CONFIG, "bfloat16", 3, 1),
        (CONFIG, "int8", 9, 2),
        (LLAMA, "float32", 13, 1),
        (QWEN3, "bfloat16", 9, 2),
    ],
)
def test_every_kernel_touches_the_bytes_that_its_cost_states(
    config: GPTConfig, precision: str, length: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(config, precision, length, batch)
    case.token.copy_(torch.arange(batch)[:, None])  # different tokens: different embedding rows
    backend = steps.TritonStep(case.model, case.cache, programs=9, block=4)
    g, seen = backend.geometry, []
    first = cost.qkv(g, True, tokens=batch)
    layer = [cost.qkv(g, False), cost.attend(g, length), cost.out(g), cost.up(g), cost.down(g)]
    expected = [first, *layer[1:], *layer, cost.head(g)]

    def counting(operator: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any) -> None:
            with counted() as traffic:
                operator(*arguments)
            seen.append((sum(traffic.read.values()), sum(traffic.written.values())))

        return run

    for name in ("qkv", "attend", "residual", "up", "head"):
        monkeypatch.setattr(ops, name, counting(getattr(ops, name)))
    backend.step(case.token)
    assert seen == [(c.read_bytes, c.written_bytes) for c in expected]


@pytest.mark.parametrize("weight_bytes", [4, 2, 1])
@pytest.mark.parametrize("length", [0, 100, 1000])
def test_the_step_reads_little_more_than_the_floor_counts(weight_bytes: int, length: int) -> None:
    """Against the independent count of `profiling.cost.work`; activations between kernels come on top."""
    c = PRESETS["gpt2"]
    setting = Setting.of(c, c.n_ctx, 1, weight_bytes=weight_bytes, half=weight_bytes == 2, programs=132)
    g = plan(setting, 1e-5)
    other = 2 if weight_bytes == 2 else 4
    floor = work.weights_read_bytes(c, weight_bytes, other_dtype_bytes=other)
    floor += work.kv_read_bytes(c, length, other)
    read = cost.total(g, length).read_bytes
    assert floor <= read < 1.03 * floor
    macs = work.step_macs(c, length)
    assert cost.total(g, length).flops == 2 * macs


LINE_BYTES = 128


@pytest.mark.parametrize(
    ("precision", "programs", "how"),
    [("float32", 3, Ahead.IN_RUNS), ("bfloat16", 2, Ahead.BY_LINE), ("int8", 5, Ahead.IN_RUNS)],
)
def test_the_one_launch_asks_ahead_for_the_bytes_that_its_cost_states(
    precision: str, programs: int, how: Ahead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte once and none outside a matrix, for rows of 24 bytes too, which end off every boundary."""
    asked: list[tuple[int, int]] = []

    def note(address: Any, size: Any) -> int:
        runs = zip(np.atleast_1d(address).tolist(), np.atleast_1d(size).tolist(), strict=True)
        most = LINE_BYTES if how == Ahead.BY_LINE else 1 << 30
        asked.extend((start, start + min(left, most)) for start, left in runs if left > 0)
        return 0

    for text in (assembly.PREFETCH_LINE, assembly.PREFETCH_RUN):
        monkeypatch.setitem(ASSEMBLY, text.value, note)
    monkeypatch.setattr(persistent, "one_step", Emulated(persistent.one_step))
    case = Case(CONFIG, precision, 5)
    backend = steps.PersistentStep(
        case.model, case.cache, programs=programs, resident=programs, block=4, ahead=how
    )
    case.check_step(backend)
    asked.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(asked)), "asked for twice"
    assert all(end - start < 1 << 30 and start % 16 == end % 16 == 0 for start, end in asked)
    matrices = [backend.head.matrix, *(w.matrix for layer in backend.layers for w in layer.values())]
    places = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in matrices]
    assert all(any(a <= start and end <= b for a, b in places) for start, end in asked), "outside a matrix"
    rounded = 16 * (len(matrices) + programs) if precision == "int8" else 0
    difference = cost.asked_ahead(backend.geometry) - sum(end - start for start, end in asked)
    assert 0 <= abs(difference) <= rounded


@pytest.mark.parametrize(
    ("matrix", "cache", "in_runs", "expected"),
    [
        (4 * 768 * 3072, 60 << 20, True, Ahead.IN_RUNS),  # float32 on an H200
        (4 * 768 * 3072, 40 << 20, False, Ahead.BY_LINE),  # on an A100
        (2 * 768 * 3072, 6 << 20, False, Ahead.NONE),  # bfloat16 on an A40: they would push each other out
        (1, 0, True, Ahead.NONE),
    ],
)
def test_what_does_not_fit_into_the_second_level_cache_is_not_asked_for(
    matrix: int, cache: int, in_runs: bool, expected: Ahead
) -> None:
    assert ahead(matrix, cache, in_runs) == expected
