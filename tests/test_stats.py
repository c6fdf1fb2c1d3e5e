"""Intervals cover what they claim, records survive a crash."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.results.folder import RunFolder
from profiling.results.record import Counts, FloorRecord, Trace, Workload
from profiling.results.stats import (
    Estimate,
    Quantiles,
    combined,
    difference_interval,
    estimate,
    intercepts,
    quantiles,
    ratio_interval,
    robust_interval,
    widening,
)
from profiling.results.verdict import busy_ms
from variants.config import PRESETS
from variants.errors import UserError


def burst(rng: np.random.Generator, n: int) -> np.ndarray:
    """Quiet rounds, of which 15 % in a row were disturbed."""
    values, length = rng.normal(0, 0.05, n), max(1, round(0.15 * n))
    values[(first := rng.integers(n - length)) : first + length] += rng.exponential(0.7, length)
    return values


def alike(rng: np.random.Generator, n: int) -> np.ndarray:
    """Neighbours with a correlation of 0.4."""
    values = rng.normal(size=n + 30)
    for i in range(1, n + 30):
        values[i] += 0.4 * values[i - 1]
    return values[30:]


@pytest.mark.parametrize("n", [4, 10, 21, 40])
def test_the_estimate_is_yuens(n: int) -> None:
    """Against scipy's t test with trimming, which knows of no alike neighbours."""
    from scipy.stats import trim_mean, ttest_ind

    values = np.random.default_rng(n).standard_t(2, size=n)
    estimated, cut = estimate(values), int(0.2 * n)
    winsorised = np.clip(values, *np.sort(values)[[cut, n - 1 - cut]])
    right = ttest_ind(values, np.zeros(n), equal_var=False, trim=0.2)
    assert estimated.mid == pytest.approx(trim_mean(values, 0.2))
    assert estimated.error == pytest.approx(estimated.mid / right.statistic * widening(winsorised))
    assert estimated.freedom == pytest.approx(right.df) and widening(winsorised) >= 1


@pytest.mark.parametrize("draw", [alike, lambda rng, n: rng.standard_t(2, n)], ids=["alike", "heavy tails"])
def test_false_alarms_stay_below_five_percent(draw) -> None:
    rng = np.random.default_rng(0)
    alarms = sum(not robust_interval(draw(rng, 20)).contains(0.0) for _ in range(1500))
    assert alarms / 1500 < 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5


def test_a_burst_neither_carries_the_estimate_nor_opens_its_interval() -> None:
    rng = np.random.default_rng(3)
    intervals = [robust_interval(burst(rng, 20)) for _ in range(400)]
    plain = [2 * 1.96 * burst(rng, 20).std(ddof=1) / 20**0.5 for _ in range(400)]
    assert np.median([i.high - i.low for i in intervals]) < 0.6 * np.median(plain)
    assert abs(np.mean([i.mid for i in intervals])) < 0.02


def test_alike_neighbours_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(size=400)
    drifting = np.array([noise[: i + 1][-30:].sum() for i in range(400)])[::10]
    shuffled = rng.permutation(drifting)
    wide, narrow = robust_interval(drifting), robust_interval(shuffled)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)


def test_errors_of_a_sum_are_those_of_a_simulation() -> None:
    rng = np.random.default_rng(2)
    first, second = Estimate(3.0, 0.2, 9), Estimate(1.0, 0.5, 4)
    total = combined((1.0, first), (-0.5, second))
    drawn = 3.0 + 0.2 * rng.normal(size=20000) - 0.5 * (1.0 + 0.5 * rng.normal(size=20000))
    assert (total.mid, total.error) == pytest.approx((drawn.mean(), drawn.std()), rel=0.02)
    assert 4 < total.freedom < 13 and combined((2.0, first)) == Estimate(6.0, 0.4, pytest.approx(9))


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=30), st.floats(0.2, 5))
@settings(max_examples=60)
def test_a_constant_ratio_is_found_exactly_whatever_the_drift(drift: list[float], factor: float) -> None:
    interval = ratio_interval([factor * x for x in drift], drift)
    assert interval == pytest.approx((factor, factor, factor))
    assert difference_interval(drift, drift) == pytest.approx((0, 0, 0))


def test_one_round_has_no_interval() -> None:
    assert robust_interval([1.0]) is None and ratio_interval([1.0], [2.0]) is None
    far = ratio_interval([1e-40, 1e40], [1.0, 1.0])  # two values leave its end open
    assert far is not None and far.low == 0.0 and far.high == float("inf")


def test_intercept_and_slope_of_each_round() -> None:
    x = [128, 512, 1024]
    rounds = np.array([[5 + 0.01 * n for n in x], [6 + 0.02 * n for n in x]])
    intercept, slope = intercepts(x, rounds)
    assert intercept == pytest.approx([5, 6]) and slope == pytest.approx([0.01, 0.02])


def test_quantiles_of_known_values() -> None:
    assert quantiles(list(range(101))) == Quantiles(50, 95, 99)


def test_the_profilers_own_share_is_taken_off_busy() -> None:
    trace = Trace(
        file="",
        context=10,
        profiled_ms=[11.0],
        steps_parts_us=[{"compute": 5000.0, "python": 6000.0}],
        counts=Counts(0, 0, 0, 0, 0),
        busy_share_of_events=0.25,
    )
    assert busy_ms(trace, plain_ms=9.0) == pytest.approx(4.5)
    assert busy_ms(trace, plain_ms=12.0) == pytest.approx(5.0), "it cost nothing, it takes nothing off"


def test_a_record_is_whole_after_a_crash_while_writing(tmp_path: Path, monkeypatch) -> None:
    run = RunFolder.create(tmp_path, FloorRecord, "cpu")
    run.warn("kept")
    run.save()

    def crash(self: Path, target: Path) -> None:
        raise OSError("disk full")

    run.warn("lost")
    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(UserError, match=r"disk full.*holds what was saved before"):
        run.save()
    assert RunFolder.load(run.path, FloorRecord).record.warnings == ["kept"]


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path) -> None:
    assert len({RunFolder.create(tmp_path, FloorRecord, "cpu").path for _ in range(3)}) == 3


@pytest.mark.skipif(os.name != "posix", reason="the message is POSIX's")
def test_an_unwritable_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--out"):
        RunFolder.create(tmp_path / "file", FloorRecord, "cpu")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 0}, "--steps"),
        ({"rounds": 0}, "--rounds"),
        ({"batch": -1}, "--batch"),
        ({"contexts": (0,)}, "--context"),
        ({"contexts": (1024,)}, "limit is 1024"),
    ],
)
def test_impossible_workloads_are_refused(changes: dict, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Workload(**changes).check(PRESETS["gpt2"])


@given(st.lists(st.integers(1, 1016), min_size=1, max_size=5), st.integers(0, 300))
def test_buckets_hold_every_context_and_ascend(contexts: list[int], gate_steps: int) -> None:
    workload = Workload(contexts=tuple(contexts), gate_steps=gate_steps)
    buckets = workload.buckets(PRESETS["gpt2"])
    assert list(buckets) == sorted(set(buckets)) and buckets[-1] <= 1024
    assert buckets[-1] >= min(1024, max(contexts) + workload.tokens_after)
