"""The device's clock is checked before anything is read: moved, it may take the verdict away, no more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.analysis.explanation import explain
from profiling.analysis.reading import NO_VERDICT, explained
from profiling.trace import Trace, load, steps
from tests.synthetic_trace import Synthetic, eager, replayed

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
PUBLIC = sorted((TRACES / "public").glob("*.json.gz"))
REFERENCES = [*PUBLIC, *sorted((TRACES / "excerpts").glob("*.json"))]
SHIFTS = (-(10**7), -100_000, -10_000, 10_000, 50_000, 100_000, 10**7)


def with_device_clock(trace: Trace, ns: int) -> Trace:
    """As if the device's clock had stood elsewhere when the file was written."""
    moved = trace.moved(ns)
    moved.__dict__.pop("clocks", None)
    return moved


def label(trace: Trace) -> str:
    return explained(trace, steps(trace))[1].label


@given(
    kernels=st.integers(2, 30),
    kernel_ns=st.integers(500, 100_000),
    host_ns=st.integers(2_000, 100_000),
    replay=st.booleans(),
    shift=st.one_of(st.integers(-60_000, 60_000), st.integers(-(10**12), 10**12)),
)
@settings(max_examples=60, deadline=None)
def test_a_shift_never_makes_another_verdict(
    tmp_path_factory, kernels, kernel_ns, host_ns, replay, shift
) -> None:
    synthetic = replayed(5, kernels, kernel_ns) if replay else eager(5, kernels, kernel_ns, host_ns)
    trace = load(synthetic.write(tmp_path_factory.mktemp("t") / "t.json"))
    truth = label(trace)
    moved = with_device_clock(trace, shift)
    assert label(moved) in {truth, *NO_VERDICT} or truth in NO_VERDICT
    assert moved.clocks.nearest_ns == pytest.approx(-shift, abs=200_000)


@pytest.mark.skipif(not REFERENCES, reason="the reference traces are not at hand")
@pytest.mark.parametrize("path", REFERENCES, ids=lambda p: p.name.split(".")[0])
def test_a_shift_of_a_reference_never_makes_another_verdict(path: Path) -> None:
    trace = load(path)
    marks = steps(trace)
    truth = explained(trace, marks)[1].label

    @given(st.one_of(st.sampled_from(SHIFTS), st.integers(-300_000, 300_000), st.integers(-(10**12), 10**12)))
    @settings(max_examples=10, deadline=None)
    def check(shift: int) -> None:
        moved = explained(with_device_clock(trace, shift), marks)[1].label
        assert moved in {truth, *NO_VERDICT} or truth in NO_VERDICT

    check()


@pytest.mark.skipif(not PUBLIC, reason="the public traces are not at hand")
@pytest.mark.parametrize("path", PUBLIC, ids=lambda p: p.name.split(".")[0])
def test_a_public_trace_raises_no_false_alarm(path: Path) -> None:
    assert load(path).clocks.nearest_ns == 0


@pytest.mark.parametrize(("drift_us", "told"), [(0, True), (5, True), (30, False), (400, False)])
def test_a_clock_that_drifts(tmp_path, drift_us, told) -> None:
    synthetic = eager(steps=10)
    times = [e["ts"] for e in synthetic.events]
    first, span = min(times), max(times) - min(times)
    for event in synthetic.events:
        if event["cat"] == "kernel":
            event["ts"] += drift_us * (event["ts"] - first) / span
    explanation = explain(synthetic.write(tmp_path / "t.json"))
    assert (explanation.reading.label == "launch-bound") == told, explanation.reading.rule
    assert any("run apart" in note for note in explanation.warnings) == (not told)


def test_a_sync_of_another_stream_proves_nothing(tmp_path) -> None:
    """Two streams: the sync may be of the one that had nothing to do."""
    synthetic = eager()
    synthetic.launch((900_000, 901_000), (902_000, 903_000), stream=9)
    long = synthetic.call("cudaLaunchKernel", 990_000, 991_000)
    synthetic.work(long, 992_000, 1_900_000, stream=9)
    assert load(synthetic.write(tmp_path / "t.json")).clocks.high_ns is None


def late(start_late_ns: int, per_step: int = 20) -> Synthetic:
    """One launch at a time with a sync behind each, on a device that starts everything late."""
    synthetic = Synthetic()
    at = 0
    for step in range(4):
        begin = at
        for _ in range(per_step):
            call = (at + 3_000, at + 6_000)
            kernel = (call[1] + start_late_ns, call[1] + start_late_ns + 4_000)
            synthetic.launch(call, kernel)
            synthetic.call("cudaStreamSynchronize", call[1] + 500, kernel[1] + 2_000)
            at = kernel[1] + 3_000
        synthetic.step(begin, at - 1, f"ProfilerStep#{step}")
    return synthetic


@pytest.mark.parametrize("start_late_us", [3, 15, 30, 90, 500])
def test_a_device_that_starts_late_is_not_busy(tmp_path, start_late_us) -> None:
    explanation = explain(late(start_late_us * 1_000).write(tmp_path / "t.json"))
    assert explanation.reading.label in ("launch-bound", "sync-bound", "mixed", "cannot tell")
