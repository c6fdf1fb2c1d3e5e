"""What sets the step where no device shows: computing, dispatch, Python or waiting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling.analysis.explain import as_json, explain
from profiling.analysis.timeline import median_step
from profiling.trace.redact import redact
from reports.explain import median_parts
from tests.synthetic_trace import Synthetic, on_host


@given(
    st.sampled_from(["compute", "overhead", "python", "waiting"]),
    st.integers(60, 90),
    st.integers(3, 6),
)
def test_a_host_step_is_read_by_what_fills_it(tmp_path_factory, what, share, steps) -> None:
    made = Synthetic()
    for number in range(steps):
        begin, end = number * 1_000_000, (number + 1) * 1_000_000
        inside = begin + 10_000 * share
        if what == "compute":
            made.op("aten::mm", begin, inside)
        elif what == "overhead":
            made.op("aten::view", begin, inside)
        elif what == "waiting":
            made.event("python_function", "<built-in function sleep>", begin, inside)
        other = "aten::mm" if what != "compute" else "aten::view"
        made.op(other, inside, end)
        made.step(begin, end, f"ProfilerStep#{number}")
    path = made.write(tmp_path_factory.mktemp("t") / "t.json")
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
    made = on_host()
    for at in (1_000_000, 1_100_000):
        made.op("aten::as_strided", at + 51_000, at + 70_000)
    reading = explain(made.write(tmp_path / "u.json")).reading
    assert reading.label == "host mixed"
    assert reading.headline.startswith("of a step of 90 us, compute 29 us, overhead ")


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_the_step_that_is_drawn_is_the_one_whose_parts_are_shown(tmp_path, count) -> None:
    made, at = Synthetic(), 0
    for number in range(count):
        made.op("aten::mm", at, at + 1_000 * (number + 1))
        made.step(at, at + 2_000 * (number + 1), f"ProfilerStep#{number}")
        at += 100_000
    found = explain(made.write(tmp_path / "t.json"))
    drawn = median_step(found.trace, found.steps, found.attribution)
    assert drawn is not None
    (step,) = drawn.steps
    assert step.length_us == sum(median_parts(as_json(found, "t")).values()) == 2 * ((count + 1) // 2)
