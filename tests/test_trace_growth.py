"""What a trace says grows with it: no work per step and event, and the sums are those of a naive reading."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.analysis.attribution import cpu
from profiling.analysis.explanation import as_json, explain
from profiling.trace import load
from profiling.trace.file import host_ops_of
from profiling.trace.summary import window_numbers
from tests.synthetic_trace import Synthetic, eager, on_host, replayed

CALLS_PER_STEP = 150
"""A table of pandas made or filtered for every step alone takes several hundred."""


def calls_made(run: Callable[[], object]) -> int:
    """Function calls of Python and of its extensions."""
    count = 0

    def one_more(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(one_more)
    try:
        run()
    finally:
        sys.setprofile(before)
    return count


def long_host_loop(steps: int) -> Synthetic:
    trace = Synthetic()
    for number in range(steps):
        at = 1_000_000 + number * 100_000
        trace.op("aten::linear", at + 5_000, at + 40_000)
        trace.op("aten::addmm", at + 10_000, at + 39_000)
        trace.step(at, at + 90_000, f"ProfilerStep#{number}")
    return trace


@pytest.mark.parametrize("synthetic", [eager, replayed, long_host_loop])
def test_a_step_more_costs_few_calls(synthetic, tmp_path) -> None:
    def cost(steps: int) -> int:
        explanation = explain(synthetic(steps=steps).write(tmp_path / f"{steps}.json"))
        assert len(explanation.steps) == steps
        return calls_made(lambda: as_json(explanation, "t"))

    short, long = cost(20), cost(120)
    assert (long - short) / 100 < CALLS_PER_STEP


def spans(most: int, least: int = 0) -> st.SearchStrategy[list[tuple[int, int]]]:
    one = st.tuples(st.integers(0, 60), st.integers(least, 20)).map(lambda s: (s[0], s[0] + s[1]))
    return st.lists(one, min_size=1, max_size=most)


def union(parts: list[tuple[int, int]]) -> int:
    return len({tick for start, end in parts for tick in range(start, end)})


@given(spans(8), spans(4), st.integers(1, 5))
def test_windows_hold_what_a_naive_count_finds(tmp_path_factory, kernels, windows, lead) -> None:
    synthetic = Synthetic()
    for number, (start, end) in enumerate(kernels):
        called = 1000 * max(start - lead, 0)
        correlation = synthetic.call("cudaLaunchKernel", called, called + 1000, tid=number)
        synthetic.work(correlation, 1000 * start, 1000 * end, name=f"k{number}", stream=number)
    trace = load(synthetic.write(tmp_path_factory.mktemp("t") / "t.json"))
    table = pd.DataFrame(sorted(windows), columns=["start_ns", "end_ns"]) * 1000
    for row, (start, end) in zip(
        window_numbers(trace, table.assign(name="w", tid=1)), sorted(windows), strict=True
    ):
        launched = [k for k in kernels if start <= max(k[0] - lead, 0) < end]
        inside = union([(max(a, start), min(b, end)) for a, b in kernels])
        assert row["kernel_launch_calls"] == len(launched)
        on_device = row["devices"]["0"]
        assert on_device["gpu_events"] == on_device["kernels"] == len(launched)
        assert on_device["busy_us"] == union(launched)
        assert on_device["clipped"]["busy_us"] == inside
        assert on_device["clipped"]["idle_us"] == end - start - inside
        if launched:
            first, last = min(a for a, _ in launched), max(b for _, b in launched)
            assert on_device["gpu_span_us"] == last - first
            assert on_device["idle_in_gpu_span_us"] == last - first - union(launched)


def innermost(ops: pd.DataFrame, tick: int) -> str:
    """The class of the last op that begins at or ahead of a tick and has not ended."""
    around = ops[(ops["start_ns"] <= tick) & (ops["end_ns"] > tick)]
    return "python" if around.empty else str(around["class"].iloc[-1])


@given(spans(8, least=1), st.lists(st.integers(0, 80), min_size=2, max_size=7, unique=True))
def test_host_parts_are_those_of_the_innermost_op_at_each_tick(ops, edges) -> None:
    names = ["aten::mm", "aten::view", "aten::linear"]
    events: dict[str, Any] = {
        "cat": pd.Categorical(["cpu_op"] * len(ops)),
        "name": pd.Categorical([names[i % 3] for i in range(len(ops))]),
        "ts_ns": [start for start, _ in ops],
        "dur_ns": [end - start for start, end in ops],
        "thread": 1,
    }
    table = host_ops_of(pd.DataFrame(events))
    begin, end = np.array(sorted(edges)[:-1]), np.array(sorted(edges)[1:])
    for row, low, high in zip(cpu.parts_ns(table, begin, end), begin, end, strict=True):
        expected = dict.fromkeys(cpu.PARTS, 0)
        for tick in range(low, high):
            expected[innermost(table, tick)] += 1
        assert dict(zip(cpu.PARTS, row.tolist(), strict=True)) == expected


def test_a_thread_without_ops_is_unknown_time(tmp_path) -> None:
    trace = load(on_host().write(tmp_path / "t.json"))
    none = trace.host_ops.iloc[:0]
    assert cpu.parts_ns(none, np.array([0]), np.array([70])).tolist() == [[0, 0, 0, 70]]
