"""Steps are found by marks, annotations or repetition, and what was used, merged or left out is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.trace import Steps, load, repetition, steps
from profiling.trace.marks import ROUNDING_SHARE
from tests.synthetic_trace import Synthetic, eager
from variants.errors import UserError


def steps_of(synthetic: Synthetic, folder: Path, pattern: str | None = None) -> Steps:
    return steps(load(synthetic.write(folder / "t.json")), pattern)


def renamed(names: list[str], **more) -> Synthetic:
    """`eager`, its step marks under other names ("": none)."""
    synthetic = eager(steps=len(names), **more)
    marks = [e for e in synthetic.events if e["cat"] == "user_annotation"]
    for mark, name in zip(marks, names, strict=True):
        mark["name"] = name
    synthetic.events = [e for e in synthetic.events if e["name"]]
    return synthetic


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op", "Operator"])
def test_profiler_marks_win_and_none_is_dropped(tmp_path, category) -> None:
    synthetic = eager(steps=3)
    for event in synthetic.events:
        if event["name"].startswith("ProfilerStep"):
            event["cat"] = category
    synthetic.step(1_001_000, 1_100_000, "decode step 1")
    synthetic.event("gpu_user_annotation", "ProfilerStep#1", 0, 10_000_000, pid=0, tid=7)
    result = steps_of(synthetic, tmp_path)
    assert result.source == "ProfilerStep marks"
    assert result.table["name"].tolist() == ["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"]


@pytest.mark.parametrize(
    "name",
    [
        "execute_16_context_0(sq0sk0)_generation_16(sq16sk8193)",
        "execute_context_0(0)_generation_64(64)",
        "execute_new_0_cached_32",
        "step[DECODE bs=16]",
        "[Executor] _forward_step 12: 0 ctx reqs, 32 gen reqs",
    ],
)
def test_engines(tmp_path, name) -> None:
    result = steps_of(renamed([name, name]), tmp_path)
    assert len(result) == 2
    assert result.source.startswith("engine annotations like")


def test_nested_annotations_of_one_step_count_once(tmp_path) -> None:
    synthetic = renamed(["execute_1_context_0()_generation_1()"] * 2)
    for mark in [e for e in synthetic.events if e["name"].startswith("execute")]:
        synthetic.events.append(
            mark | {"name": "step[DECODE bs=1]", "ts": mark["ts"] + 5, "dur": mark["dur"] - 10}
        )
    result = steps_of(synthetic, tmp_path)
    assert result.table["name"].tolist() == ["execute_1_context_0()_generation_1()"] * 2
    assert result.notes == ["2 annotations inside another step's are counted as that step"]


def test_repeated_annotations_that_hold_the_launches(tmp_path) -> None:
    synthetic = renamed([f"generate token {n}" for n in range(4)])
    for n in range(40):
        synthetic.step(1_000_000 + n * 10_000, 1_002_000 + n * 10_000, f"layer {n}")
    assert steps_of(synthetic, tmp_path).source == "repeated annotation 'generate token #'"


def test_annotations_beside_the_launches_are_no_steps(tmp_path) -> None:
    synthetic = renamed([""] * 4)
    for n in range(4):
        synthetic.step(n * 10, n * 10 + 5, f"step {n}")
    synthetic.step(1_000_000, 9_000_000, "## Call CompiledFxGraph abc ##")
    assert steps_of(synthetic, tmp_path).source == "repetition of 10 launches"


def test_repetition_of_launches_begins_where_the_host_pauses(tmp_path) -> None:
    result = steps_of(renamed([""] * 5), tmp_path)
    assert result.source == "repetition of 10 launches"
    assert len(result) == 5
    assert result.notes == []
    starts = result.table["start_ns"].diff().dropna().unique()
    assert len(starts) == 1


@given(
    count=st.integers(4, 30),
    period=st.integers(3, 60),
    extra=st.dictionaries(st.integers(0, 29), st.integers(1, 4), max_size=4),
    head=st.integers(0, 20),
)
@settings(max_examples=50)
def test_more_launches_in_a_few_steps_hide_no_repetition(count, period, extra, head) -> None:
    """Sampling in every tenth step; the warm-up ahead of the steps is shorter than they are."""
    step = [0, *(n % 5 + 1 for n in range(period - 2)), 6]
    inserted = {at: n for at, n in extra.items() if at < count and n <= period // 4}
    if 5 * len(inserted) >= count:
        inserted = {}
    codes, bounds = [9] * min(head, period), []
    for at in range(count):
        bounds.append(len(codes))
        codes += step[: period // 2] + [7] * inserted.get(at, 0) + step[period // 2 :]
    times = np.arange(len(codes), dtype=np.int64) * 10 + 50 * np.cumsum(np.array(codes) == 0)
    assert len(codes) >= 2 * bounds[0]
    steps_of = repetition.find(np.array(codes), times, times + 5)
    assert steps_of is not None
    assert steps_of.tolist() == [*bounds, len(codes)]


@given(overlap=st.integers(1, 200_000), count=st.integers(2, 8))
@settings(max_examples=25)
def test_marks_that_overlap_are_cut_at_the_next_one(tmp_path_factory, overlap: int, count: int) -> None:
    """Rounding makes marks overlap by a microsecond, two steps in flight by much more."""
    synthetic = eager(steps=count)
    marks = [e for e in synthetic.events if e["cat"] == "user_annotation"]
    for mark in marks:
        mark["dur"] += 1 + overlap / 1000  # `eager` leaves 1 us between two steps
    result = steps_of(synthetic, tmp_path_factory.mktemp("t"))
    starts = [round(mark["ts"] * 1000) for mark in marks]
    known = count if overlap <= ROUNDING_SHARE * (starts[1] - starts[0]) else count - 1
    assert result.table["start_ns"].tolist() == starts[:known]
    assert result.table["end_ns"].tolist()[: count - 1] == starts[1:]
    assert any("overlap the next one" in note for note in result.notes)


@pytest.mark.parametrize("name", ["layer {}", "model.layers.{}.mlp", "part {}"])
def test_annotations_of_layers_are_no_steps(tmp_path, name) -> None:
    synthetic = renamed([""] * 4)
    launches = [e for e in synthetic.events if e["cat"] == "cuda_runtime" and "Launch" in e["name"]]
    for n, launch in enumerate(launches):
        start = round(launch["ts"] * 1000)
        synthetic.step(start - 5_000, start + 5_000, name.format(n % 10))
    assert steps_of(synthetic, tmp_path).source == "repetition of 10 launches"


def test_layers_inside_a_step_are_not_the_steps() -> None:
    layer, extra = [1, 2, 3, 4], [5, 6]
    codes = np.array([9, 9, *(([7] + layer * 12 + extra) * 6), 8])
    times = np.arange(len(codes), dtype=np.int64) * 10 + 50 * np.cumsum(codes == 7)
    bounds = repetition.find(codes, times, times + 5)
    assert bounds is not None
    assert bounds.tolist() == [2 + 51 * n for n in range(7)]


def test_what_repeats_in_a_corner_is_not_the_loop() -> None:
    codes = np.array([5] * 7 + [0, 1, 2, 3] * 40 + [6] * 3)
    times = np.arange(len(codes), dtype=np.int64) * 10 + 50 * np.cumsum(codes == 0)
    bounds = repetition.find(codes, times, times + 5)
    assert bounds is not None
    assert bounds.tolist() == [7 + 4 * n for n in range(41)]


def test_no_repetition_no_steps(tmp_path) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 30, 300)
    times = np.arange(300, dtype=np.int64)
    assert repetition.find(codes, times, times) is None
    result = steps_of(renamed([""], kernels=12), tmp_path)
    assert result.source == "whole trace"
    assert len(result) == 1


def test_cpu_traces_repeat_by_ops(tmp_path) -> None:
    synthetic = Synthetic()
    for step in range(6):
        for k in range(5):
            at = step * 1_000_000 + k * 10_000
            synthetic.op(f"aten::op{k}", at, at + 8_000)
            synthetic.op("aten::empty", at + 100, at + 200)
    result = steps_of(synthetic, tmp_path)
    assert result.source == "repetition of 5 ops"
    assert len(result) == 6


@pytest.mark.parametrize(("pattern", "count"), [("token 1", 1), (r"token \d", 3), ("aten::mm", 30)])
def test_step_names_of_ones_own(tmp_path, pattern, count) -> None:
    result = steps_of(renamed(["token 1", "token 2", "token 3"]), tmp_path, pattern)
    assert len(result) == count
    assert result.source == f"--step {pattern}"


@pytest.mark.parametrize(
    ("pattern", "said"), [("nothing like it", "annotations in the trace: ProfilerStep"), ("(", "regular")]
)
def test_step_names_that_match_nothing_are_refused(tmp_path, pattern, said) -> None:
    with pytest.raises(UserError, match=said):
        steps_of(eager(), tmp_path, pattern)


def test_marks_of_several_threads(tmp_path) -> None:
    """Marks that overlap on another thread are left out and counted; ones that do not are steps too."""
    synthetic = eager(steps=3)
    marks = [e for e in synthetic.events if e["cat"] == "user_annotation"]
    synthetic.events.append(marks[0] | {"tid": 5, "dur": marks[0]["dur"] + 20})
    result = steps_of(synthetic, tmp_path)
    assert len(result) == 3
    assert any("on other threads" in note for note in result.notes)
    marks[1]["tid"] = 6
    synthetic.events.pop()
    assert len(steps_of(synthetic, tmp_path)) == 3


def test_launches_outside_every_step_are_counted(tmp_path) -> None:
    synthetic = eager(steps=2)
    synthetic.launch((9_000_000, 9_001_000), (9_002_000, 9_003_000))
    assert steps_of(synthetic, tmp_path).notes == ["1 of 21 kernel and graph launches lie outside every step"]


def test_an_empty_trace_has_no_steps(tmp_path) -> None:
    result = steps_of(Synthetic(), tmp_path)
    assert len(result) == 0
    assert result.source == "nothing to take steps from"
