"""Device time is divided exactly, and each kind of trouble in a trace is seen for what it is."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiling.analysis.attribution import Attribution, attribute, cautions_of, integrity
from profiling.analysis.explanation import as_json, explain
from profiling.analysis.predict import Costs, replay
from profiling.analysis.reading import read
from profiling.analysis.timeline import median_step
from profiling.trace import Steps, Trace, load, steps
from profiling.trace.summary import file_numbers, window_numbers
from tests.synthetic_trace import Synthetic, eager, replayed

Found = tuple[Trace, Steps, Attribution]


def attributed(synthetic: Synthetic, folder: Path, pattern: str | None = None) -> Found:
    trace = load(synthetic.write(folder / "t.json"))
    marks = steps(trace, pattern)
    return trace, marks, attribute(trace, marks)


def parts_ns(result: Found, step: int = 0, device: str = "0") -> dict[str, int]:
    rows = result[2].parts
    rows = rows[(rows["step"] == step) & (rows["device"] == device) & (rows["ns"] != 0)]
    return dict(zip(rows["part"], rows["ns"], strict=True))


@pytest.mark.parametrize("numbers", ["float", "text"])
@pytest.mark.parametrize("rocm", [False, True])
def test_every_part_of_a_step_by_hand(tmp_path, numbers, rocm) -> None:
    synthetic = Synthetic(numbers=numbers, rocm=rocm)
    synthetic.step(0, 100_000)
    synthetic.launch((10_000, 12_000), (15_000, 25_000))  # lead-in 15 us
    synthetic.launch((40_000, 44_001), (47_000, 50_000))  # gap of 22: 15 before, 4.001 during, 2.999 after
    synthetic.work(9999, 60_000, 61_000)  # no call: 10 unknown
    assert parts_ns(attributed(synthetic, tmp_path)) == {
        "lead_in": 15_000,
        "busy": 14_000,
        "gap_before_call": 15_000,
        "gap_during_call": 4_001,
        "gap_after_call": 2_999,
        "gap_unknown": 10_000,
        "tail": 39_000,
    }


def test_work_belongs_to_the_step_that_launched_it_wherever_it_runs(tmp_path) -> None:
    """All device work of both steps runs after both host windows (asynchronous scheduling)."""
    synthetic = Synthetic()
    synthetic.step(0, 10_000, "ProfilerStep#1")
    synthetic.step(10_000, 20_000, "ProfilerStep#2")
    synthetic.graph((1_000, 2_000), [(30_000, 40_000), (40_000, 50_000)])
    synthetic.graph((11_000, 12_000), [(50_000, 70_000)])
    result = attributed(synthetic, tmp_path)
    assert parts_ns(result, 0) == {"lead_in": 30_000, "busy": 20_000}
    assert parts_ns(result, 1) == {"busy": 20_000}
    assert result[2].counts["kernels"].tolist() == [2, 1]
    assert result[2].counts["graph_launches"].tolist() == [1, 1]


def test_work_from_before_the_trace_is_not_the_first_steps(tmp_path) -> None:
    synthetic = Synthetic()
    synthetic.work(1, -40_000, -20_000)
    synthetic.work(2, -20_000, 30_000)
    synthetic.step(0, 100_000)
    synthetic.call("cudaDeviceSynchronize", 1_000, 31_000)
    synthetic.launch((40_000, 41_000), (42_000, 100_000))
    result = attributed(synthetic, tmp_path)
    assert parts_ns(result) == {"lead_in": 12_000, "busy": 58_000}
    assert any("before the trace began" in note for note in cautions_of(*result))


def test_overlap_in_a_stream_and_between_streams_counts_once(tmp_path) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 50_000)
    synthetic.graph((0, 1_000), [(10_000, 20_000), (19_000, 30_000), (29_500, 31_000)])  # dependent launch
    synthetic.launch((2_000, 3_000), (12_000, 33_000), stream=9)
    result = attributed(synthetic, tmp_path)
    assert parts_ns(result)["busy"] == 23_000
    numbers = file_numbers(result[0])["devices"]["0"]
    assert numbers["same_stream_overlaps"] == 2
    assert numbers["sum_dur_us"] == 43.5


def test_devices_are_divided_apart(tmp_path) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 50_000)
    synthetic.launch((0, 1_000), (10_000, 20_000), device=0)
    synthetic.launch((1_000, 2_000), (20_000, 50_000), device=3)
    result = attributed(synthetic, tmp_path)
    assert parts_ns(result, device="0") == {"lead_in": 10_000, "busy": 10_000, "tail": 30_000}
    assert parts_ns(result, device="3") == {"lead_in": 20_000, "busy": 30_000}


def test_what_sits_on_device_rows_without_being_work_is_not_busy(tmp_path) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 50_000)
    synthetic.launch((0, 1_000), (10_000, 20_000))
    row = {"pid": 0, "tid": 7, "args": {"device": 0, "stream": 7, "correlation": 5}}
    synthetic.event("cuda_sync", "Stream Sync", 20_000, 45_000, **row)
    synthetic.event("gpu_user_annotation", "ProfilerStep#1", 5_000, 45_000, **row)
    synthetic.event("cpu_op", "triton_poi_fused_0", 5_000, 45_000, args={"stream": 7})
    synthetic.event("overhead", "Activity Buffer Request", 5_000, 45_000, **row)
    result = attributed(synthetic, tmp_path)
    assert parts_ns(result)["busy"] == 10_000
    assert len(result[0].device_events) == 1
    assert any("profiler itself took 40.0 us" in note for note in cautions_of(*result))


ns = st.integers(0, 200_000)


@st.composite
def any_trace(draw: st.DrawFn) -> Synthetic:
    synthetic = Synthetic(numbers="text")
    at = draw(st.integers(0, 10**12))
    for number in range(draw(st.integers(0, 4))):
        start = at + draw(ns)
        at = start + draw(ns)
        synthetic.step(start, at, f"ProfilerStep#{number}")
    origin = draw(st.integers(0, max(at, 1)))
    for _ in range(draw(st.integers(0, 12))):
        call = origin + draw(ns)
        ids = [
            synthetic.call(
                draw(st.sampled_from(["cudaLaunchKernel", "cudaGraphLaunch", "cuLaunchKernelEx"])),
                call,
                call + draw(ns),
            )
        ]
        for _ in range(draw(st.integers(0, 3))):
            start = call + draw(st.integers(-1000, 400_000))
            correlation = draw(st.sampled_from([*ids, 1, -1]))
            device, stream = draw(st.integers(0, 1)), draw(st.integers(6, 7))
            synthetic.work(correlation, start, start + draw(ns), device=device, stream=stream)
    return synthetic


@given(synthetic=any_trace())
@settings(max_examples=25)
def test_parts_always_sum_to_the_interval(tmp_path_factory, synthetic: Synthetic) -> None:
    trace, marks, attribution = attributed(synthetic, tmp_path_factory.mktemp("t"))
    sums = attribution.parts.groupby(["step", "device"])["ns"].sum()
    spans = attribution.intervals.set_index(["step", "device"])
    assert (attribution.parts["ns"] >= 0).all()
    assert sums.to_dict() == (spans["end_ns"] - spans["start_ns"]).to_dict()
    for numbers in file_numbers(trace)["devices"].values():
        assert 0 <= numbers["busy_us"] <= numbers["span_us"]
        assert sum(numbers["idle_split_us"].values()) == pytest.approx(numbers["idle_us"], abs=1e-6)
    read(trace, marks, attribution)
    replay(trace, marks, attribution)
    entry = as_json(explain(trace.path), "t.json")
    assert len(entry["steps"]) == len(marks)
    median_step(trace, marks, attribution)


@given(synthetic=any_trace(), shift=st.integers(0, 10**9), seed=st.integers(0, 99))
@settings(max_examples=20)
def test_order_and_origin_change_nothing(
    tmp_path_factory, synthetic: Synthetic, shift: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    before = attributed(synthetic, folder)
    for event in synthetic.events:
        event["ts"] = str(Decimal(event["ts"]) + Decimal(shift) / 1000)
    random.Random(seed).shuffle(synthetic.events)
    after = attributed(synthetic, folder)
    columns = ["step", "device", "part", "ns"]
    assert before[2].parts[columns].values.tolist() == after[2].parts[columns].values.tolist()
    assert before[2].counts.equals(after[2].counts)


@pytest.mark.parametrize(
    ("synthetic", "label"),
    [
        (eager(), "launch-bound"),
        (eager(kernel_ns=300_000, kernels=4), "device-bound"),
        (replayed(kernel_ns=30_000), "device-bound"),
        (eager(kernel_ns=18_000, host_ns=28_000), "mixed"),
        (eager(steps=1, kernels=3), "too small to judge"),
    ],
    ids=["small kernels", "large kernels", "graph", "both", "tiny"],
)
def test_readings(tmp_path, synthetic, label) -> None:
    trace, marks, attribution = attributed(synthetic, tmp_path)
    reading = read(trace, marks, attribution)
    assert reading.label == label, reading.rule
    assert reading.shares == {} or sum(reading.shares.values()) == pytest.approx(1)


def test_reading_sync_bound(tmp_path) -> None:
    """Every second kernel is read back, so the device runs dry while the host comes round again."""
    synthetic = Synthetic()
    synthetic.step(0, 2_000_000)
    for k in range(20):
        at = k * 100_000
        synthetic.launch((at + 60_000, at + 62_000), (at + 64_000, at + 70_000))
        copy = synthetic.call("cudaMemcpyAsync", at + 62_500, at + 75_000)
        synthetic.work(copy, at + 71_000, at + 72_000, "Memcpy DtoH (Device -> Pageable)", "gpu_memcpy")
    result = attributed(synthetic, tmp_path)
    assert read(*result).label == "sync-bound"
    assert result[2].counts["syncs"].tolist() == [20]
    assert any("20 copies to the host block" in note for note in cautions_of(*result))


@pytest.mark.parametrize("where", ["in the step", "between steps", "behind the last event"])
def test_reading_host_bound_outside_launches(tmp_path, where) -> None:
    synthetic = Synthetic()
    pause = 4_000_000
    for number in range(3):
        begin = at = number * 10_000_000
        for k in range(10):
            at += pause if where == "in the step" and k == 5 else 10_000
            synthetic.launch((at, at + 2_000), (at + 3_000, at + 9_000))
        end = at + 20_000 + (pause if where == "behind the last event" else 0)
        synthetic.step(begin, end, f"ProfilerStep#{number}")
    assert read(*attributed(synthetic, tmp_path)).label == "host-bound outside launches"


def drop(synthetic: Synthetic, keep) -> Synthetic:
    synthetic.events = [e for i, e in enumerate(synthetic.events) if keep(i, e)]
    return synthetic


def is_kernel(event: dict) -> bool:
    return event["cat"] == "kernel"


def test_profiler_without_kernels_is_an_error(tmp_path) -> None:
    trace, marks, attribution = attributed(drop(eager(), lambda i, e: not is_kernel(e)), tmp_path)
    assert "recorded no device activity" in integrity(trace, marks, attribution)[0]
    assert read(trace, marks, attribution).label == "no device events"


@pytest.mark.parametrize("calls_too", [False, True])
def test_kernels_dropped_at_the_head_are_noticed(tmp_path, calls_too) -> None:
    def keep(i: int, event: dict) -> bool:
        early = event["ts"] < 1_000 + 150
        return not (early and (is_kernel(event) or (calls_too and event["cat"] == "cuda_runtime")))

    trace, marks, attribution = attributed(drop(eager(), keep), tmp_path)
    problems = integrity(trace, marks, attribution)
    assert any("fewer kernels" in p for p in problems), problems
    assert read(trace, marks, attribution).label == "cannot tell"
    assert replay(trace, marks, attribution) is not None  # `explain` prints none after this reading


def test_an_under_recorded_graph_is_not_idle_time(tmp_path) -> None:
    synthetic = replayed(steps=5)
    lost = [i for i, e in enumerate(synthetic.events) if is_kernel(e) and 1_040 < e["ts"] < 1_085]
    result = attributed(drop(synthetic, lambda i, e: i not in lost[2:]), tmp_path)
    assert any("graph launches show" in p for p in integrity(*result))
    assert read(*result).label == "cannot tell"


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=6),
    count=st.integers(3, 8),
    shrink=st.integers(0, 1),
    lost=st.booleans(),
)
@example(sizes=[4, 1], count=7, shrink=1, lost=True)
@settings(max_examples=25)
def test_graphs_are_compared_with_their_own_kind(tmp_path_factory, sizes, count, shrink, lost) -> None:
    """Graphs in pieces, of a draft and a target, and of batches that shrink differ, and none is short."""
    synthetic = Synthetic()
    at = 0
    for step in range(count):
        begin = at
        for place, size in enumerate(sizes):
            if shrink and 2 * step >= count and count >= 6:
                size += 40
            nodes = [(at + 10_000 + n * 5_000, at + 15_000 + n * 5_000) for n in range(size)]
            if lost and step == 1 and place == 0:
                nodes = nodes[: size // 2 - 1] if size > 3 else nodes
            synthetic.graph((at, at + 5_000), nodes, name=f"piece {place}")
            at += 20_000 + len(nodes) * 5_000
        synthetic.step(begin, at - 1, f"ProfilerStep#{step}")
    problems = integrity(*attributed(synthetic, tmp_path_factory.mktemp("t")))
    assert any("graph launches show" in p for p in problems) == (lost and sizes[0] > 3)


@pytest.mark.parametrize("ids", ["all the same", "two calls each"])
def test_ids_that_many_calls_carry_are_linked_in_time(tmp_path, ids) -> None:
    synthetic = eager(steps=40, kernels=50)
    for event in synthetic.events:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] = 0 if ids == "all the same" else event["args"]["correlation"] % 1000
    trace = load(synthetic.write(tmp_path / "t.json"))
    linked = trace.device_events
    later = trace.calls["start_ns"].to_numpy()[linked["call"].to_numpy()]
    assert (linked["call"] >= 0).all()
    assert (later <= linked["start_ns"].to_numpy()).all()


def test_steps_that_differ_in_launches_are_a_caution(tmp_path) -> None:
    synthetic = eager(steps=5)
    last = 4_000_000
    for at in range(last, last + 450_000, 30_000):
        synthetic.launch((at, at + 4_000), (at + 5_000, at + 9_000))
    synthetic.step(last, last + 500_000, "ProfilerStep#9")
    result = attributed(synthetic, tmp_path)
    assert integrity(*result) == []
    assert any("not alike: 10 to 15 kernels" in note for note in cautions_of(*result))


def test_issued_work_on_an_idle_device_means_that_work_is_missing(tmp_path) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 2_000_000)
    for k in range(10):
        start = (20_000 if k < 5 else 1_500_000) + k * 10_000
        synthetic.launch((k * 1_000, k * 1_000 + 500), (start, start + 9_000))
    result = attributed(synthetic, tmp_path)
    assert any("missing in the trace" in p for p in integrity(*result))
    assert read(*result).label == "cannot tell"


def test_launches_into_a_graph_being_captured_are_not_lost(tmp_path) -> None:
    synthetic = eager()
    synthetic.call("cudaStreamBeginCapture", 1_001_000, 1_001_100)
    for k in range(5):
        synthetic.call("cudaLaunchKernel", 1_001_200 + 100 * k, 1_001_250 + 100 * k)
    synthetic.call("cudaStreamEndCapture", 1_002_000, 1_002_100)
    result = attributed(synthetic, tmp_path)
    assert integrity(*result) == []
    assert any("5 launches went into a graph" in note for note in cautions_of(*result))


def test_unlinked_work_among_linked_work_is_a_problem(tmp_path) -> None:
    synthetic = eager()
    for event in synthetic.events:
        if is_kernel(event) and event["name"] in ("kernel_4", "kernel_7"):
            event["args"]["correlation"] = 0
    problems = integrity(*attributed(synthetic, tmp_path))
    assert any("have no launch call although" in p for p in problems)


@pytest.mark.parametrize(("skew_ns", "fatal"), [(8_000, False), (400_000, True)])
def test_clock_skew(tmp_path, skew_ns, fatal) -> None:
    synthetic = eager()
    for event in synthetic.events:
        if is_kernel(event):
            event["ts"] -= skew_ns / 1000
    result = attributed(synthetic, tmp_path)
    assert any("clocks disagree" in p for p in integrity(*result)) == fatal
    assert any("clocks disagree" in note for note in cautions_of(*result))


@pytest.mark.parametrize("same_id", [True, False])
@pytest.mark.parametrize("linked_to", ["outer", "inner"])
def test_a_driver_call_inside_a_runtime_call_is_one_launch(tmp_path, same_id, linked_to) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 60_000)
    for at in (0, 30_000):
        outer = synthetic.call("cudaLaunchKernel", at + 1_000, at + 9_000)
        inner = synthetic.call("cuLaunchKernel", at + 3_000, at + 5_000)
        if same_id:
            synthetic.events[-1]["args"]["correlation"] = inner = outer
        synthetic.work(outer if linked_to == "outer" else inner, at + 12_000, at + 20_000)
    synthetic.call("cuLaunchKernel", 31_000, 32_000, tid=99)  # at the same time on another thread: a launch
    result = attributed(synthetic, tmp_path)
    assert result[2].counts["launches"].tolist() == [3]
    assert parts_ns(result)["gap_during_call"] == 8_000
    assert file_numbers(result[0])["gpu_events_without_call"] == 0


def test_unknown_launch_names_are_counted_when_they_start_work(tmp_path) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 50_000)
    synthetic.work(synthetic.call("cudaLaunchSomethingNew", 1_000, 2_000), 3_000, 4_000)
    trace, marks, attribution = attributed(synthetic, tmp_path)
    assert attribution.counts["launches"].tolist() == [1]
    assert window_numbers(trace, marks.table)[0]["kernel_launch_calls"] == 1


NAMES = {
    "kernel": """
        cudaLaunchKernel cudaLaunchKernelExC cudaLaunchKernel_ptsz cudaLaunchCooperativeKernel
        cuLaunchKernel cuLaunchKernelEx cuLaunchKernel_ptsz cuLaunchCooperativeKernel
        hipLaunchKernel hipExtLaunchKernel hipModuleLaunchKernel hipExtModuleLaunchKernel
        hipLaunchCooperativeKernel hipLaunchKernelExC hipDrvLaunchKernelEx
        hipModuleLaunchCooperativeKernel hipLaunchByPtr urEnqueueKernelLaunch
        urEnqueueKernelLaunchWithArgsExp urEnqueueCooperativeKernelLaunchExp
        zeCommandListAppendLaunchKernel zeCommandListAppendLaunchKernelWithArguments
    """,
    "graph": """
        cudaGraphLaunch cudaGraphLaunch_ptsz cuGraphLaunch hipGraphLaunch urEnqueueCommandBufferExp
    """,
    "memcpy": """
        cudaMemcpyAsync cudaMemcpy cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 hipMemcpyWithStream
        hipMemcpyAsync hipMemcpyDtoD urEnqueueUSMMemcpy zeCommandListAppendMemoryCopy
    """,
    "memset": """
        cudaMemsetAsync cuMemsetD8Async hipMemsetAsync urEnqueueUSMFill
        zeCommandListAppendMemoryFill
    """,
    "sync": """
        cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize cuCtxSynchronize
        cuStreamSynchronize hipDeviceSynchronize hipStreamSynchronize hipEventSynchronize
        urEventWait urQueueFinish zeEventHostSynchronize
    """,
    "other": """
        cudaStreamWaitEvent cudaEventRecord cudaGraphInstantiate cudaLaunchHostFunc cudaMalloc
        hipMalloc cudaStreamIsCapturing cudaPeekAtLastError hipGetDevicePropertiesR0600
        cuModuleLoadData
    """,
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_calls(kind) -> None:
    from profiling.trace.names import call_kind

    assert {name: call_kind(name) for name in NAMES[kind].split()} == dict.fromkeys(NAMES[kind].split(), kind)


def test_prediction_from_the_eager_trace_meets_the_replayed_one(tmp_path) -> None:
    costs = Costs(
        lead_in_us=(6, 7, 8), node_gap_us=(0, 0, 0), sync_us=(2, 3, 4), measured=frozenset({"lead_in_us"})
    )
    predicted = replay(*attributed(eager(), tmp_path), costs)
    assert predicted is not None and predicted.replay_us is not None
    low, mid, high = predicted.replay_us
    assert (low, mid, high) == pytest.approx((38, 40, 42))
    assert any("lead in 7 us [6, 8] (measured)" in a for a in predicted.assumptions)
    real = attributed(replayed(), tmp_path)[2].intervals
    assert low <= (real["end_ns"] - real["start_ns"]).mean() / 1000 <= high


def test_a_trace_of_replays_says_what_is_left(tmp_path) -> None:
    synthetic = replayed()
    synthetic.launch((1_000_500, 1_000_700), (1_003_000, 1_004_000), name="outside")
    predicted = replay(*attributed(synthetic, tmp_path))
    assert predicted is not None and predicted.replay_us is None
    assert predicted.left["graph_launches"] == 1
    assert predicted.left["graph_launch_call_us"] == pytest.approx(5)
    assert predicted.left["kernels_outside"] == 0.25
    assert predicted.left["between_replays_us"] == pytest.approx(12)
