"""Verdicts on the traces that people have: odd steps, two phases, pauses, the profiler's own work."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.analysis.explanation import Explanation, as_json, explain
from profiling.analysis.kinds import kinds_of, phase
from tests.synthetic_trace import Synthetic, eager


def loop(
    synthetic: Synthetic, at: int, launches: int, host_ns: int, kernel_ns: int, pause_ns: int = 0
) -> int:
    """One step; returns its end. The device takes work in order; `pause_ns` in the middle of the host."""
    free = 0
    for k in range(launches):
        at += host_ns + (pause_ns if k == launches // 2 else 0)
        start = max(at + 4_000 + 1_000, free)
        free = start + kernel_ns
        synthetic.launch((at, at + 4_000), (start, free), name=f"k{k}")
        at += 4_000
    end = max(free, at) + 3_000
    synthetic.call("cudaStreamSynchronize", at + 500, end)
    return end + 1_000


def read(synthetic: Synthetic, folder: Path) -> Explanation:
    return explain(synthetic.write(folder / "t.json"))


@given(odd=st.sets(st.integers(0, 19), min_size=1, max_size=3), pause_ms=st.integers(3, 200))
@settings(max_examples=15, deadline=None)
def test_odd_steps_are_named_and_change_nothing(tmp_path_factory, odd, pause_ms) -> None:
    """A compile in step 0, a garbage collection in one of 20."""
    synthetic = Synthetic()
    at = 0
    for step in range(20):
        end = loop(synthetic, at, 40, 12_000, 3_000, pause_ms * 1_000_000 if step in odd else 0)
        synthetic.step(at, end - 1_000, f"ProfilerStep#{step}")
        at = end
    explanation = read(synthetic, tmp_path_factory.mktemp("t"))
    assert explanation.reading.label == "launch-bound", explanation.reading.rule
    assert any(f"{len(odd)} of 20 steps are outliers" in note for note in explanation.warnings)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("execute_context_1(4096)_generation_0(0)", "execute_context_0(0)_generation_8(8)"),
        ("step[EXTEND bs=1]", "step[DECODE bs=8]"),
        (
            "[Executor] _forward_step 1: 1 ctx reqs, 0 gen reqs",
            "[Executor] _forward_step 2: 0 ctx reqs, 8 gen",
        ),
    ],
)
def test_prefill_and_decode_are_read_apart(tmp_path, prefill, decode) -> None:
    synthetic = Synthetic()
    at = 0
    for step in range(8):
        end = (
            loop(synthetic, at, 50, 5_000, 1_000_000) if step == 0 else loop(synthetic, at, 50, 12_000, 3_000)
        )
        synthetic.step(at, end - 1_000, decode if step else prefill)
        at = end
    explanation = read(synthetic, tmp_path)
    assert explanation.reading.label == "launch-bound", explanation.reading.rule
    assert any(
        "1 prefill steps" in n and "apart from decode: device-bound" in n for n in explanation.warnings
    )


def test_phases_and_batch_sizes_by_name() -> None:
    import pandas as pd

    assert phase("execute_context_2(64)_generation_3(3)") == "prefill and decode"
    assert phase("execute_new_0_cached_32") == "decode"
    assert phase("ProfilerStep#3") == ""
    names = pd.Series(["step[DECODE bs=64]"] * 3 + ["step[DECODE bs=32]"] * 3)
    assert kinds_of(names).tolist() == ["decode of 64"] * 3 + ["decode of 32"] * 3
    assert set(kinds_of(names.iloc[:4])) == {"decode"}, "one step of a batch size is not read apart"


@given(host_us=st.integers(10, 60), kernel_us=st.integers(1, 3), count=st.integers(12, 300))
@settings(max_examples=20, deadline=None)
def test_a_loop_of_one_kernel_is_launch_bound(tmp_path_factory, host_us, kernel_us, count) -> None:
    """The first loop that everybody tries: `for _ in range(300): torch.add(a, b)`."""
    synthetic = Synthetic()
    loop(synthetic, 0, count, host_us * 1_000, kernel_us * 1_000)
    assert read(synthetic, tmp_path_factory.mktemp("t")).reading.label == "launch-bound"


@pytest.mark.parametrize("flushes", [1, 3])
def test_what_the_profiler_takes_is_taken_off(tmp_path, flushes) -> None:
    synthetic = Synthetic()
    at = 0
    for step in range(5):
        begin = at
        for part in range(4):
            at = loop(synthetic, at, 20, 4_000, 40_000)
            if part < flushes:
                synthetic.event("overhead", "Activity Buffer Request", at, at + 3_000_000)
                at += 3_000_000
        synthetic.step(begin, at - 1_000, f"ProfilerStep#{step}")
    explanation = read(synthetic, tmp_path)
    assert explanation.reading.label == "device-bound", explanation.reading.rule
    assert any("the profiler itself took" in note for note in explanation.warnings)


@pytest.mark.parametrize("pause_us", [200, 400, 2_000])
@pytest.mark.parametrize("marked", [True, False])
def test_pauses_before_a_replay_are_the_hosts(tmp_path, pause_us, marked) -> None:
    synthetic = Synthetic()
    at = 0
    for step in range(20):
        call = at + pause_us * 1_000
        nodes = [(call + 10_000 + 1_000 * k, call + 11_000 + 1_000 * k) for k in range(20)]
        synthetic.graph((call, call + 8_000), nodes)
        synthetic.call("cudaStreamSynchronize", call + 9_000, nodes[-1][1] + 3_000)
        if marked:
            synthetic.step(at, nodes[-1][1] + 3_500, f"ProfilerStep#{step}")
        at = nodes[-1][1] + 4_000
    explanation = read(synthetic, tmp_path)
    assert len(explanation.steps) == 20
    assert explanation.reading.label == "host-bound outside launches", explanation.reading.rule


@pytest.mark.parametrize("steps", [1, 3])
def test_one_launch_of_two_milliseconds_is_not_too_small(tmp_path, steps) -> None:
    synthetic = Synthetic()
    for at in range(0, steps * 2_100_000, 2_100_000):
        synthetic.launch((at + 10_000, at + 20_000), (at + 22_000, at + 2_022_000), name="decode_step")
        copy = synthetic.call("cudaMemcpyAsync", at + 21_000, at + 2_030_000)
        synthetic.work(copy, at + 2_023_000, at + 2_025_000, "Memcpy DtoH (Device -> Pageable)", "gpu_memcpy")
        synthetic.step(at, at + 2_090_000, f"ProfilerStep#{at // 2_100_000}")
    assert read(synthetic, tmp_path).reading.label == "device-bound"


def test_steps_without_device_work_are_counted(tmp_path) -> None:
    synthetic = eager(steps=3)
    for step in range(9):
        synthetic.step(5_000_000 + step * 100_000, 5_090_000 + step * 100_000, f"ProfilerStep#{10 + step}")
    explanation = read(synthetic, tmp_path)
    assert explanation.reading.label == "launch-bound", explanation.reading.rule
    assert any("9 of 12 steps launch nothing" in note for note in explanation.warnings)


def test_the_first_line_has_the_microseconds_at_stake(tmp_path) -> None:
    """20 of 24 us of each launch are the host's; the kernel of 3 us ends its own wait."""
    explanation = read(eager(steps=5, kernels=20), tmp_path)
    assert explanation.reading.headline.startswith("the device waits for the host's launches for 8")
    headline = as_json(explanation, "t.json")["headline"]
    assert headline.startswith(explanation.reading.headline)
    assert "; one graph replay would save about" in headline


@given(
    pieces=st.integers(2, 12),
    nodes=st.integers(3, 20),
    batches=st.lists(st.sampled_from([64, 56, 32]), min_size=6, max_size=10),
    busy_ns=st.integers(40_000, 80_000),
)
@settings(max_examples=8, deadline=None)
def test_graphs_in_pieces_with_eager_attention_between(
    tmp_path_factory, pieces, nodes, batches, busy_ns
) -> None:
    """vLLM's piecewise graphs: nodes by piece and batch size, of which few steps are, attention between."""
    synthetic, at = Synthetic(), 0
    for batch in batches:
        begin = free = at
        for piece in range(pieces):
            count = nodes + batch // 8 + 3 * (piece == 0)
            first = max(at + 8_000, free)
            runs = [(first + n * busy_ns, first + (n + 1) * busy_ns) for n in range(count)]
            synthetic.graph((at, at + 6_000), runs, name=f"piece{piece}")
            free = runs[-1][1] + busy_ns
            synthetic.launch((at + 7_000, at + 10_000), (runs[-1][1], free), name="paged_attention")
            at += 11_000
        at = free + 5_000
        synthetic.call("cudaStreamSynchronize", begin + pieces * 11_000, at)
        synthetic.step(begin, at, f"execute_context_0(0)_generation_{batch}({batch})")
        at += 1_000
    explanation = read(synthetic, tmp_path_factory.mktemp("t"))
    label, rule = explanation.reading.label, explanation.reading.rule
    assert label == "device-bound", rule


@given(accepted=st.lists(st.integers(1, 5), min_size=5, max_size=12), node_us=st.integers(20, 60))
@settings(max_examples=8, deadline=None)
def test_a_draft_of_any_length_ahead_of_its_target(tmp_path_factory, accepted, node_us) -> None:
    """Speculative decoding: so many small replays, then a large one, at another place in each step."""
    synthetic, at = Synthetic(), 0
    for step, drafts in enumerate(accepted):
        begin = at
        for size in [6] * drafts + [60]:
            nodes = [
                (at + 9_000 + n * node_us * 1_000, at + 9_000 + (n + 1) * node_us * 1_000)
                for n in range(size)
            ]
            synthetic.graph((at, at + 5_000), nodes, name="target" if size == 60 else "draft")
            at = nodes[-1][1] + 3_000
        synthetic.step(begin, at, f"ProfilerStep#{step}")
        at += 1_000
    explanation = read(synthetic, tmp_path_factory.mktemp("t"))
    label, rule = explanation.reading.label, explanation.reading.rule
    assert label == "device-bound", rule


@given(kernels=st.integers(10, 60), kernel_us=st.integers(60, 200), ahead=st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_a_scheduler_that_runs_ahead_of_the_device(tmp_path_factory, kernels, kernel_us, ahead) -> None:
    """The host issues later steps while the device is at an earlier one, and waits for that one's end."""
    synthetic, at, free = Synthetic(), 0, 0
    ends: list[int] = []
    for step in range(10):
        begin = at
        for k in range(kernels):
            start = max(at + 5_000, free)
            free = start + kernel_us * 1_000
            synthetic.launch((at, at + 4_000), (start, free), name=f"k{k}")
            at += 6_000
        ends.append(free)
        if step >= ahead:
            waited = max(at + 2_000, ends[step - ahead] + 2_000)
            synthetic.call("cudaEventSynchronize", at, waited)
            at = waited
        synthetic.step(begin, at + 500, f"step[DECODE bs={kernels}]")
        at += 1_000
    explanation = read(synthetic, tmp_path_factory.mktemp("t"))
    label, rule = explanation.reading.label, explanation.reading.rule
    assert label == "device-bound", rule


@given(large=st.integers(3, 8), small=st.integers(9, 14))
@settings(max_examples=8, deadline=None)
def test_batch_sizes_are_read_apart(tmp_path_factory, large, small) -> None:
    """A batch that fills the device, then one that does not: the verdict is that of most of the steps."""
    synthetic, at = Synthetic(), 0
    for step in range(large + small):
        bs, kernel_ns = (64, 90_000) if step < large else (2, 2_000)
        end = loop(synthetic, at, 30, 12_000, kernel_ns)
        synthetic.step(at, end - 1_000, f"step[DECODE bs={bs}]")
        at = end
    explanation = read(synthetic, tmp_path_factory.mktemp("t"))
    label, rule = explanation.reading.label, explanation.reading.rule
    assert label == "launch-bound", rule
    assert any(
        f"{large} decode of 64 steps" in n and n.endswith("device-bound") for n in explanation.warnings
    )
    assert explanation.reading.mean.steps == list(range(large, large + small))


@pytest.mark.parametrize("compile_ms", [20, 900, 30_000])
def test_a_compile_in_step_0_of_few(tmp_path, compile_ms) -> None:
    synthetic, at = Synthetic(), 0
    for step in range(4):
        end = loop(synthetic, at, 40, 4_000, 60_000, compile_ms * 1_000_000 * (step == 0))
        synthetic.step(at, end - 1_000, f"ProfilerStep#{step}")
        at = end
    explanation = read(synthetic, tmp_path)
    label, rule = explanation.reading.label, explanation.reading.rule
    assert label == "device-bound", rule
    assert any("step 0" in note and "outliers" in note for note in explanation.warnings)


@given(lost=st.integers(1, 3), negative=st.booleans())
@settings(max_examples=8, deadline=None)
def test_a_few_kernels_without_a_length_are_counted(tmp_path_factory, lost, negative) -> None:
    synthetic = eager(steps=10, kernels=20)
    kernels = [event for event in synthetic.events if event["cat"] == "kernel"]
    for event in kernels[50 : 50 + 40 * lost : 40]:
        event["dur"] = -5 if negative else "NaN"
    explanation = read(synthetic, tmp_path_factory.mktemp("t"))
    label, rule = explanation.reading.label, explanation.reading.rule
    assert label == "launch-bound" or "events were dropped" in rule
    assert any(f"{lost} x event without a usable dur" in note for note in explanation.warnings)
