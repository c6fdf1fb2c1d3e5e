"""Traces that torch itself writes here: own times per class of op, and busy-waits that land where they were
put.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, schedule

from profiling.analysis.attribution import attribute
from profiling.analysis.predict import Costs, replay
from profiling.trace import load, names, steps
from profiling.trace.names import op_class
from tests.synthetic_trace import Synthetic

STEPS = 8


def traced(run: Callable[[], object], path: Path, **options) -> profile:
    """Profile `STEPS` steps of `run`, with step marks, into a trace file."""
    with torch.inference_mode():
        plan = schedule(wait=0, warmup=1, active=STEPS, repeat=1)
        with profile(activities=[ProfilerActivity.CPU], schedule=plan, **options) as profiler:
            for _ in range(STEPS + 1):
                run()
                profiler.step()
    profiler.export_chrome_trace(str(path))
    return profiler


def spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.fixture(scope="module")
def spinning_op():
    """A custom op that waits busily."""
    library = torch.library.Library("decode_floor_test", "DEF")
    library.define("spin(Tensor x, float seconds) -> Tensor")

    def spin_op(x: torch.Tensor, seconds: float) -> torch.Tensor:
        spin(seconds)
        return x

    library.impl("spin", spin_op, "CPU")
    yield torch.ops.decode_floor_test.spin
    library._destroy()


@pytest.mark.parametrize(
    ("in_python", "in_op", "at_end"), [(0.003, 0, 0), (0, 0.003, 0), (0, 0, 0.003), (0.001, 0.002, 0.003)]
)
def test_a_busy_wait_lands_where_it_was_put(tmp_path, spinning_op, in_python, in_op, at_end) -> None:
    """Held against the program's own clock, since a shared machine makes any wait longer than asked for."""
    x = torch.zeros(4)
    begun: list[float] = []
    in_ops: list[float] = []

    def run() -> None:
        begun.append(time.perf_counter())
        spin(in_python)
        start = time.perf_counter()
        spinning_op(x, in_op)
        in_ops.append(time.perf_counter() - start)
        spin(at_end)

    traced(run, tmp_path / "t.json")
    trace = load(tmp_path / "t.json")
    table = attribute(trace, steps(trace)).parts.pivot(index="step", columns="part", values="us")
    step_us = np.diff(begun)[1:] * 1e6
    op_us = np.array(in_ops)[1:-1] * 1e6
    parts = {part: table[part].to_numpy()[:-1] for part in table}  # the last step has no end on our clock
    truth = {"compute": op_us, "python": step_us - op_us, "overhead": 0 * op_us, "unknown": 0 * op_us}
    for part, wanted in truth.items():
        tolerance = max(20.0, 0.05 * float(np.median(step_us)))
        assert float(np.median(parts[part] - wanted)) == pytest.approx(0, abs=tolerance), part
    assert np.median(op_us) >= in_op * 1e6
    assert np.median(step_us - op_us) >= (in_python + at_end) * 1e6


def test_own_times_are_those_of_key_averages(tmp_path) -> None:
    net = torch.nn.Sequential(*[torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)] * 3).eval()
    x = torch.randn(2, 32)
    profiler = traced(lambda: net(x), tmp_path / "t.json.gz", record_shapes=True, with_stack=True)
    trace = load(tmp_path / "t.json.gz").host_ops
    sums = trace.groupby(trace["name"].astype(str))["self_ns"].agg(["size", "sum"])
    theirs = {row.key: row for row in profiler.key_averages() if row.key.startswith("aten::")}
    assert set(theirs) == set(sums.index)
    for name, row in theirs.items():
        assert row.count == sums.loc[name, "size"], name
        assert row.self_cpu_time_total == pytest.approx(
            sums.loc[name, "sum"] / 1000, abs=0.002 * row.count + 0.01
        )


def test_steps_and_counts_of_our_own_traces(tmp_path) -> None:
    traced(lambda: torch.ones(4) + 1, tmp_path / "t.json")
    trace = load(tmp_path / "t.json")
    marks = steps(trace)
    assert marks.source == "ProfilerStep marks"
    assert len(marks) == STEPS
    attribution = attribute(trace, marks)
    assert attribution.counts["host_ops"].nunique() == 1
    assert attribution.counts[["kernels", "launches", "graph_launches", "syncs"]].to_numpy().sum() == 0
    assert set(attribution.parts["device"]) == {"cpu"}
    walls = (marks.table["end_ns"] - marks.table["start_ns"]).tolist()
    assert attribution.parts.groupby("step")["ns"].sum().tolist() == walls


def test_compiled_code_without_events_is_unknown(tmp_path) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 100_000)
    synthetic.op("TorchDynamo Cache Lookup", 5_000, 10_000)
    synthetic.op("Torch-Compiled Region: 0/0", 10_000, 90_000)
    synthetic.op("## Call CompiledFxGraph abc ##", 20_000, 80_000)
    synthetic.op("aten::addmm", 30_000, 50_000)
    synthetic.op("graph_0_cpp_fused_gelu_0", 50_000, 60_000)
    trace = load(synthetic.write(tmp_path / "t.json"))
    parts = attribute(trace, steps(trace)).parts_us(0, "cpu")
    assert parts == {"compute": 30, "overhead": 25, "python": 15, "unknown": 30}


def test_a_region_stands_for_compiled_code_that_has_no_events(tmp_path) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 100_000)
    synthetic.op("Torch-Compiled Region: 0/0", 10_000, 90_000)
    trace = load(synthetic.write(tmp_path / "t.json"))
    assert attribute(trace, steps(trace)).parts_us(0, "cpu")["unknown"] == 80


@st.composite
def nested_ops(draw: st.DrawFn) -> Synthetic:
    synthetic = Synthetic(numbers="text")
    synthetic.step(1_000, 1_000 + draw(st.integers(0, 10_000)))
    names = st.sampled_from(["aten::mm", "aten::view", "Torch-Compiled Region: 0/0", "mine::op"])
    for _ in range(draw(st.integers(0, 15))):
        start = draw(st.integers(0, 12_000))
        synthetic.op(draw(names), start, start + draw(st.integers(0, 6_000)))
    return synthetic


@given(synthetic=nested_ops())
@settings(max_examples=30)
def test_host_parts_sum_to_the_window(tmp_path_factory, synthetic: Synthetic) -> None:
    """Even where ops overlap in ways that nesting forbids."""
    trace = load(synthetic.write(tmp_path_factory.mktemp("t") / "t.json"))
    marks = steps(trace)
    parts = attribute(trace, marks).parts
    assert (parts["ns"] >= 0).all()
    assert parts["ns"].sum() == marks.table["end_ns"].iat[0] - marks.table["start_ns"].iat[0]


@given(synthetic=nested_ops())
@settings(max_examples=25)
def test_own_times_by_brute_force(tmp_path_factory, synthetic: Synthetic) -> None:
    """Each nanosecond belongs to the op that started last among those that cover it (the shortest of
    equals).
    """
    trace = load(synthetic.write(tmp_path_factory.mktemp("t") / "t.json")).host_ops
    owner = np.full(20_000, -1)
    for row, (start, end) in enumerate(zip(trace["start_ns"], trace["end_ns"], strict=True)):
        owner[start:end] = row
    counted = np.bincount(owner[owner >= 0], minlength=len(trace))
    assert counted.tolist() == trace["self_ns"].tolist()


def kernels(name: str) -> set[str]:
    """Dispatch keys under which the installed torch has kernels for an op's overloads, `out` variants
    apart.
    """
    overloads = [o for o in torch._C._dispatch_get_all_op_names() if o.split(".")[0] == f"aten::{name}"]
    assert overloads, name
    keys = (
        "CompositeImplicitAutograd",
        "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
        "CPU",
    )
    return {
        key
        for overload in overloads
        if "out" not in overload.partition(".")[2]
        for key in keys
        if torch._C._dispatch_has_kernel_for_dispatch_key(overload, key)
    }


def test_classes_of_ops_agree_with_the_dispatcher() -> None:
    for name in names.IMPLICIT.split():
        assert "CompositeImplicitAutograd" in kernels(name), name
        assert "CPU" not in kernels(name), name
    for name in set(names.EXPLICIT.split()) - {"_local_scalar_dense"}:
        assert "CPU" not in kernels(name), name
    for name in [*names.VIEWS.split(), *names.ALLOCATION.split()]:
        assert kernels(name), name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::addmm", "compute"),
        ("aten::linear", "overhead"),
        ("aten::view", "overhead"),
        ("aten::empty", "overhead"),
        ("aten::copy_", "compute"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "compute"),
        ("mylib::view", "compute"),
        ("graph_0_cpp_fused_0", "compute"),
        ("## Call CompiledFxGraph x ##", "unknown"),
        ("Torch-Compiled Region: 0/0", "region"),
    ],
)
def test_class_of_an_op(name, kind) -> None:
    assert op_class(name) == kind


def test_tape_prediction_counts_what_a_tape_would_hold(tmp_path) -> None:
    """`linear` holds one `addmm`; what `addmm` calls inside is not on the tape."""
    synthetic = Synthetic()
    synthetic.step(0, 100_000)
    synthetic.op("aten::linear", 10_000, 50_000)
    synthetic.op("aten::t", 11_000, 12_000)
    synthetic.op("aten::addmm", 20_000, 45_000)
    synthetic.op("aten::expand", 21_000, 22_000)
    synthetic.op("aten::copy_", 22_000, 24_000)
    synthetic.op("aten::gelu", 60_000, 70_000)
    trace = load(synthetic.write(tmp_path / "t.json"))
    marks = steps(trace)
    predicted = replay(trace, marks, attribute(trace, marks), Costs(tape_op_us=(1, 2, 3)))
    assert predicted is not None
    compute = 25 - 1 + 10
    assert predicted.replay_us == pytest.approx((compute + 3, compute + 6, compute + 9))
    assert predicted.step_us == 100
