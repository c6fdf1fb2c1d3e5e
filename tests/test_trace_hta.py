"""Where Holistic Trace Analysis is right, it and we agree; skipped where it is not installed.

It rounds nanoseconds to whole microseconds inwards, misses graph and driver launches and counts every event
with an `args.stream`; on a trace in whole microseconds with runtime launches of one stream none of that
shows.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from profiling.trace import load
from profiling.trace.summary import file_numbers
from tests.synthetic_trace import Synthetic

hta = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")


def in_whole_microseconds(folder: Path) -> Path:
    synthetic = Synthetic(numbers="int")
    for k in range(200):
        at = 1_000_000 + k * 50_000
        synthetic.op("aten::mm", at, at + 20_000)
        synthetic.launch(
            (at + 10_000, at + 14_000), (at + 16_000 + 1_000 * (k % 7), at + 30_000), name=f"gemm_{k % 5}"
        )
    return synthetic.write(folder / "trace.json")


def test_busy_idle_and_launches_agree(tmp_path) -> None:
    path = in_whole_microseconds(tmp_path)
    ours = file_numbers(load(path))
    analysis = hta.TraceAnalysis(trace_files={0: str(path)}, trace_dir="")
    theirs = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    device = ours["devices"]["0"]
    assert theirs["kernel_time(us)"] == device["span_us"]
    assert theirs["idle_time(us)"] == device["idle_us"]
    launches = analysis.get_cuda_kernel_launch_stats(visualize=False)[0]
    assert len(launches) == ours["delay_start_to_start_us_eager"]["n"]
    assert launches["launch_delay"].median() == ours["delay_call_end_to_start_us_eager"]["median"]
    assert launches["cpu_duration"].sum() == ours["launch_call_cpu_us"]["total"]
