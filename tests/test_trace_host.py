"""What sets the step where no device shows: computing, dispatch, Python or waiting."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.analysis.explanation import as_json, explain
from profiling.analysis.timeline import median_step
from profiling.trace.redaction import redact
from tests.synthetic_trace import Synthetic, on_host


@given(
    st.sampled_from(["compute", "overhead", "python", "waiting"]),
    st.integers(60, 90),
    st.integers(3, 6),
)
@settings(max_examples=25)
def test_a_host_step_is_read_by_what_fills_it(tmp_path_factory, what, share, steps) -> None:
    synthetic = Synthetic()
    for number in range(steps):
        begin, end = number * 1_000_000, (number + 1) * 1_000_000
        inside = begin + 10_000 * share
        if what == "compute":
            synthetic.op("aten::mm", begin, inside)
        elif what == "overhead":
            synthetic.op("aten::view", begin, inside)
        elif what == "waiting":
            synthetic.event("python_function", "<built-in function sleep>", begin, inside)
        other = "aten::mm" if what != "compute" else "aten::view"
        synthetic.op(other, inside, end)
        synthetic.step(begin, end, f"ProfilerStep#{number}")
    path = synthetic.write(tmp_path_factory.mktemp("t") / "t.json")
    reading = explain(path).reading
    words = {"overhead": "host dispatch-bound", "waiting": "host waiting", "python": "host Python-bound"}
    assert reading.label == words.get(what, "host compute-bound")
    assert reading.shares[what] == pytest.approx(share / 100, abs=0.01)
    assert f"{10 * share} of 1000 us" in reading.headline
    redact(path, path.with_name("shared.json"))
    assert explain(path.with_name("shared.json")).reading == reading


def test_no_part_of_a_host_step_may_dominate(tmp_path) -> None:
    reading = explain(on_host().write(tmp_path / "t.json")).reading
    assert reading.label == "host Python-bound"
    synthetic = on_host()
    for at in (1_000_000, 1_100_000):
        synthetic.op("aten::as_strided", at + 51_000, at + 70_000)
    reading = explain(synthetic.write(tmp_path / "u.json")).reading
    assert reading.label == "host mixed"
    assert reading.headline.startswith("of a step of 90 us, compute 29 us, overhead ")


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_the_step_that_is_drawn_is_the_median_of_those_that_are_read(tmp_path, count) -> None:
    synthetic, at = Synthetic(), 0
    for number in range(count):
        synthetic.op("aten::mm", at, at + 1_000 * (number + 1))
        synthetic.step(at, at + 2_000 * (number + 1), f"ProfilerStep#{number}")
        at += 100_000
    explanation = explain(synthetic.write(tmp_path / "t.json"))
    read = explanation.reading.mean.steps
    drawn = median_step(explanation.trace, explanation.steps, explanation.attribution, judged=read)
    assert drawn is not None
    (step,) = drawn.steps
    assert step.length_us == 2 * (read[(len(read) - 1) // 2] + 1)
    lengths = [entry["interval_us"] for entry in as_json(explanation, "t")["steps"]]
    assert explanation.reading.mean.length_us == pytest.approx(fmean(lengths[number] for number in read))


def filled(parts: dict[str, int], steps: int = 3) -> Synthetic:
    """Steps of 1 ms: so many us of each part; what is neither an op nor a wait is Python's."""
    synthetic = Synthetic()
    names = {"compute": "aten::mm", "overhead": "aten::view", "unknown": "## Call CompiledFxGraph x ##"}
    for number in range(steps):
        begin = at = 1_000_000 * number
        for part, us in parts.items():
            if part == "waiting":
                synthetic.event("python_function", "queue.py(3): get", at, at + 1_000 * us)
            elif part in names and us:
                synthetic.op(names[part], at, at + 1_000 * us)
            at += 1_000 * us
        synthetic.step(begin, begin + 1_000_000, f"ProfilerStep#{number}")
    return synthetic


WORDS = {
    "compute": ("host compute-bound", "the host computes inside ops for"),
    "overhead": ("host dispatch-bound", "the host is in views, allocation and dispatch for"),
    "python": ("host Python-bound", "the host is in Python between ops for"),
    "waiting": ("host waiting", "the host waits for"),
}


@pytest.mark.parametrize("part", WORDS)
@pytest.mark.parametrize("us", [499, 500])
def test_a_part_dominates_from_half_of_the_step_on(tmp_path, part, us) -> None:
    others = [name for name in WORDS if name != part]
    parts = {part: us} | dict(zip(others, (250, 200, 550 - us), strict=True)) | {"unknown": 0}
    reading = explain(filled(parts).write(tmp_path / "t.json")).reading
    assert reading.mean.parts_us[part] == us
    if us < 500:
        assert reading.label == "host mixed"
    else:
        label, said = WORDS[part]
        assert (reading.label, reading.headline) == (label, f"{said} 50% of each step: 500 of 1000 us")


@pytest.mark.parametrize(("us", "label"), [(249, "host mixed"), (250, "no device events")])
def test_nothing_is_read_where_a_quarter_is_unknown(tmp_path, us, label) -> None:
    parts = {"compute": 400, "overhead": 300, "unknown": us}
    assert explain(filled(parts).write(tmp_path / "t.json")).reading.label == label


def test_only_the_waits_of_the_steps_own_thread_count_and_not_the_ops_inside_them(tmp_path) -> None:
    synthetic = Synthetic()
    for number in range(3):
        at = 1_000_000 * number
        synthetic.op("aten::mm", at, at + 100_000)
        synthetic.event("python_function", "<built-in method sleep of module>", at, at + 990_000, tid=77)
        synthetic.event("python_function", "threading.py(9): wait", at + 100_000, at + 900_000)
        synthetic.op("aten::mm", at + 200_000, at + 400_000)
        synthetic.step(at, at + 1_000_000, f"ProfilerStep#{number}")
    reading = explain(synthetic.write(tmp_path / "t.json")).reading
    assert reading.label == "host waiting"
    assert reading.mean.parts_us == {
        "compute": 300,
        "overhead": 0,
        "python": 100,
        "waiting": 600,
        "unknown": 0,
    }


@pytest.mark.parametrize("pause_us", [900, 1_000, 50_000])
@pytest.mark.parametrize("frame", [None, "model.py(3): sample"])
def test_a_long_pause_without_a_frame_may_be_anything(tmp_path, pause_us, frame) -> None:
    """Python, a sleep, a lock: the profiler says which only where it was asked for stacks."""
    synthetic, at = Synthetic(), 0
    for number in range(4):
        synthetic.op("aten::mm", at + 10_000, at + 60_000)
        end = at + 60_000 + 1_000 * pause_us
        if frame:
            synthetic.event("python_function", frame, at + 60_000, end)
        synthetic.op("aten::mm", end, end + 50_000)
        synthetic.step(at, end + 60_000, f"ProfilerStep#{number}")
        at = end + 60_000
    reading = explain(synthetic.write(tmp_path / "t.json")).reading
    silent = pause_us if frame is None and pause_us >= 1_000 else 0
    assert reading.mean.parts_us["unknown"] == silent
    assert reading.label == ("no device events" if silent else "host Python-bound")
