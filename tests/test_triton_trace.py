"""The launch patterns of the GPU rungs, as a profiler would record them, and what attribution makes of them.

Synthetic traces whose truth is known: a graph of 61 kernels, dependent launches whose kernels overlap, and
one cooperative launch per step.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.analysis.attribution import attribute, integrity
from profiling.analysis.predict import replay
from profiling.trace import load, steps
from tests.synthetic_trace import Synthetic

LAYER = ("qkv_kernel", "attend_kernel", "residual_kernel", "up_kernel", "residual_kernel")
STEP = [*LAYER * 12, "head_kernel"]
KERNEL_NS, GAP_NS, STEPS = 4_000, 1_300, 3


def graph(at: int, trace: Synthetic) -> int:
    """61 nodes of one launch, a gap between each two. Returns the end of the last kernel."""
    correlation = trace.call("cudaGraphLaunch", at + 1_000, at + 5_000)
    start = at + 8_000
    for name in STEP:
        trace.work(correlation, start, start + KERNEL_NS, name=name)
        start += KERNEL_NS + GAP_NS
    return start - GAP_NS


def dependent(at: int, trace: Synthetic) -> int:
    """Each kernel has its own call and starts before its predecessor has ended."""
    start = at + 8_000
    for number, name in enumerate(STEP):
        call = at + 1_000 + 100 * number
        correlation = trace.call("cuLaunchKernelEx", call, call + 90)
        trace.work(correlation, start, start + KERNEL_NS, name=name)
        start += KERNEL_NS - 1_000
    return start + 1_000


def one_launch(at: int, trace: Synthetic) -> int:
    correlation = trace.call("cuLaunchKernelEx", at + 1_000, at + 4_000)
    trace.work(correlation, at + 8_000, at + 108_000, name="one_step")
    return at + 108_000


# pattern -> kernels, launches, graph launches per step, device busy and gaps between kernels in ns
PATTERNS = {
    graph: (61, 0, 1, 61 * KERNEL_NS, 60 * GAP_NS),
    dependent: (61, 61, 0, 61 * KERNEL_NS - 60 * 1_000, 0),
    one_launch: (1, 1, 0, 100_000, 0),
}


@pytest.mark.parametrize("pattern", list(PATTERNS), ids=lambda p: p.__name__)
def test_every_pattern_is_counted_and_divided_exactly(pattern, tmp_path: Path) -> None:
    synthetic, at = Synthetic(), 1_000_000
    for number in range(STEPS):
        end = pattern(at, synthetic)
        synthetic.call("cudaStreamSynchronize", at + 7_500, end + 1_000)
        synthetic.step(at, end + 2_000, f"ProfilerStep#{number}")
        at = end + 3_000
    trace = load(synthetic.write(tmp_path / "t.json"))
    marks = steps(trace, None)
    attributed = attribute(trace, marks)
    assert integrity(trace, marks, attributed) == []
    kernels, launches, graphs, busy_ns, gap_ns = PATTERNS[pattern]
    for row in attributed.counts.to_dict("records"):
        assert (row["kernels"], row["launches"], row["graph_launches"]) == (kernels, launches, graphs)
    for step in range(STEPS):
        rows = attributed.parts[(attributed.parts["step"] == step) & (attributed.parts["device"] == "0")]
        parts = dict(zip(rows["part"], rows["ns"], strict=True))
        assert parts["busy"] == busy_ns
        assert sum(ns for part, ns in parts.items() if part.startswith("gap")) == gap_ns
    predicted = replay(trace, marks, attributed)
    assert predicted.step_us > busy_ns / 1e3
