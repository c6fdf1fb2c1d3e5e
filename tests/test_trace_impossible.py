"""Device events whose times cannot be are named and left out, and what is left is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.analysis.explanation import explain
from profiling.trace import load
from profiling.trace.clocks import EARLY, LENGTH, ORDER, ZERO
from tests.synthetic_trace import Synthetic, eager, replayed


def kernels(synthetic: Synthetic) -> list[dict]:
    return [e for e in synthetic.events if e["cat"] == "kernel"]


def stretch(event: dict, by: float) -> None:
    event["dur"] = by


def hurry(event: dict, by: float) -> None:
    event["ts"] -= by


def delay(event: dict, by: float) -> None:
    event["ts"] += by


def to_zero(event: dict, by: float) -> None:
    event["ts"] = 0


@given(
    which=st.sets(st.integers(0, 190), min_size=1, max_size=4),
    by_us=st.integers(5_000, 10**11),
    fault=st.sampled_from([(stretch, LENGTH), (hurry, EARLY), (delay, ORDER), (to_zero, ZERO)]),
)
@settings(max_examples=40)
def test_impossible_events_are_isolated(tmp_path_factory, which, by_us, fault) -> None:
    """A launch-bound loop stays one, whatever a few of its 200 kernels claim."""
    spoil, reason = fault
    synthetic = eager(steps=10, kernels=20)
    for event in synthetic.events:
        event["ts"] += 10_000_000
    events = kernels(synthetic)
    for n in which:
        spoil(events[n], by_us)
    explanation = explain(synthetic.write(Path(tmp_path_factory.mktemp("t")) / "t.json"))
    impossible = explanation.trace.impossible
    assert len(impossible) == len(which)
    assert set(impossible["reason"]) <= {reason, EARLY, ORDER}  # an event can be wrong in two ways
    assert explanation.reading.label == "launch-bound", explanation.reading.rule
    assert any(f"{len(which)} device events have impossible times" in note for note in explanation.warnings)


def test_too_many_impossible_events_end_the_reading(tmp_path) -> None:
    synthetic = eager(steps=4, kernels=10)
    for event in kernels(synthetic)[::8]:
        event["dur"] = 1_600_000
    explanation = explain(synthetic.write(tmp_path / "t.json"))
    assert explanation.reading.label == "cannot tell"
    assert "impossible times" in explanation.reading.rule


def side_by_side() -> Synthetic:
    """Two branches of a graph, reported on the stream that it was launched on."""
    synthetic = Synthetic()
    for at in range(0, 10_000_000, 1_000_000):
        short = [(at + 20_000 + 1_000 * n, at + 20_900 + 1_000 * n) for n in range(20)]
        synthetic.graph((at, at + 5_000), [(at + 10_000, at + 100_000), *short])
    return synthetic


def two_threads() -> Synthetic:
    """Two threads launch on one stream at once, and enter it in the other order."""
    synthetic = Synthetic()
    for at in range(0, 1_000_000, 100_000):
        synthetic.launch((at + 1_000, at + 9_000), (at + 20_000, at + 30_000))
        synthetic.launch((at + 2_000, at + 6_000), (at + 10_000, at + 20_000))
    return synthetic


@pytest.mark.parametrize(
    "synthetic",
    [eager(), replayed(), side_by_side(), two_threads()],
    ids=["eager", "replayed", "branches", "threads"],
)
def test_what_is_possible_is_not_accused(tmp_path, synthetic) -> None:
    assert load(synthetic.write(tmp_path / "t.json")).impossible.empty


@pytest.mark.parametrize("copies", [2, 3])
def test_a_file_joined_to_itself_counts_once(tmp_path, copies) -> None:
    synthetic = eager()
    synthetic.events = synthetic.events * copies
    explanation = explain(synthetic.write(tmp_path / "t.json"))
    assert explanation.attribution.counts["kernels"].tolist() == [10] * 4
    assert any("are repeated" in note for note in explanation.warnings)


@pytest.mark.parametrize(
    ("process", "more"),
    [
        ("Ascend Hardware", {}),
        ("NPU 3", {"args": None}),
        ("/device:TPU:0 XLA Ops", {}),
        ("/device:GPU:0", {"cat": None}),
        ("MTIA 0", {"cat": "mtia_ccp_events"}),
        ("worker", {"cat": "mtia_ccp_events"}),
        ("worker", {"cat": "hpu_op", "args": {}}),
        ("worker", {"args": {"hlo_op": "fusion.1", "hlo_module": "jit_step"}}),
        ("worker", {"args": {"Task Type": "AI_CORE", "Stream Id": 2}}),
    ],
)
def test_rows_of_an_unknown_device_are_said(tmp_path, process, more) -> None:
    synthetic = Synthetic()
    for at in range(0, 200_000, 10_000):
        synthetic.op("aten::mm", at, at + 5_000)
        synthetic.events.append(
            {"ph": "X", "name": "MatMulV2", "pid": 9, "tid": 2, "ts": at, "dur": 4} | more
        )
    synthetic.events.append({"ph": "M", "name": "process_name", "pid": 9, "args": {"name": process}})
    explanation = explain(synthetic.write(tmp_path / "t.json"))
    assert explanation.reading.label == "cannot tell"
    assert f"20 rows of an unknown device ({process})" in explanation.reading.rule
    assert explanation.prediction is None


@pytest.mark.parametrize("process", ["python", "CPU", "Spans"])
def test_rows_of_the_host_are_no_device(tmp_path, process) -> None:
    synthetic = Synthetic()
    for at in range(0, 200_000, 10_000):
        synthetic.op("aten::mm", at, at + 5_000)
        synthetic.events.append(
            {"ph": "X", "cat": "mine", "name": "x", "pid": 9, "tid": 2, "ts": at, "dur": 4}
        )
    synthetic.events.append({"ph": "M", "name": "process_name", "pid": 9, "args": {"name": process}})
    assert explain(synthetic.write(tmp_path / "t.json")).reading.label == "host compute-bound"
