"""The calibration: waits that are what they say, and counts that follow from their definition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from floor_run import GOLDEN
from scipy.stats import binomtest, wilcoxon

from experiments import calibrate
from profiling.measure import calibration
from profiling.measure.calibration import WAITS, bench
from profiling.results.calibration import (
    ESTIMATORS,
    IN_A_KERNEL,
    IN_PYTHON,
    PER_OP,
    Noise,
    false_alarm,
    false_alarms,
    placed,
    precise,
    recovered,
    share_interval,
    signed_ranks,
    table_alarms,
    words,
)
from profiling.results.folder import RunFolder
from profiling.results.record import (
    CalibrateRecord,
    InjectedWait,
    Peaks,
    RunAnswer,
    StepDifference,
    Truth,
    Workload,
    replaced,
)
from profiling.results.record.page import Table
from profiling.results.rules import RULES, UNDECIDED
from variants.config import PRESETS
from variants.ladder import ladder
from variants.model import random_model

PEAKS = Peaks(
    read_gb_per_s=10,
    matmul_flop_per_s=1e10,
    launch_us=5,
    graph_node_us=None,
    tape_op_us=None,
    profiler_event_us=None,
)


@pytest.mark.parametrize("hits,of", [(0, 20), (1, 20), (10, 20), (20, 20), (3, 700)])
def test_the_interval_of_a_share_is_wilsons(hits: int, of: int) -> None:
    low, mid, high = share_interval(hits, of)
    theirs = binomtest(hits, of).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=1e-9) and mid == hits / of


def wait(kind: str, ms: float, removed: float, gap: float = 2.0) -> InjectedWait:
    """Found of a step of 10 ms, whose gap without the wait is 1 ms."""
    gaps = [gap - 0.01, gap + 0.01] * 4
    return InjectedWait(kind, ms, StepDifference(10.0, [removed / 10] * 8), [1.0] * 8, gaps)


@pytest.mark.parametrize("found,within", [(1.049, True), (1.051, False), (0.949, False), (0.951, True)])
def test_a_wait_is_recovered_within_a_twentieth(found: float, within: bool) -> None:
    assert recovered(wait(IN_PYTHON, 1.0, found)) is within


@pytest.mark.parametrize("found,within", [(0.219, True), (0.221, False)])
def test_a_short_wait_is_recovered_within_20_us(found: float, within: bool) -> None:
    assert recovered(wait(PER_OP, 0.2, found)) is within


@pytest.mark.parametrize("kind", WAITS)
@pytest.mark.parametrize("gap,in_the_gap", [(1.4, False), (1.6, True)])
def test_only_what_a_kernel_spends_is_no_gap(kind: str, gap: float, in_the_gap: bool) -> None:
    assert placed(wait(kind, 1.0, 1.0, gap)) is (in_the_gap == (kind != IN_A_KERNEL))
    assert placed(replaced(wait(kind, 1.0, 1.0), gaps_waiting_ms=[0.5, 3.5])) is None


def test_a_duel_goes_on_until_it_can_tell() -> None:
    few, many = StepDifference(10.0, [0.09, 0.11] * 4), StepDifference(10.0, [0.09, 0.11] * 200)
    assert not precise(few, 1.0) and precise(many, 1.0) and not precise(many, 0.2)


def test_a_tables_alarm_is_a_ratio_without_one() -> None:
    def run(ratio: tuple[float, float, float] | None) -> RunAnswer:
        return RunAnswer("2026-11-30", 8, "PARTLY", "PARTLY", (0.1, 0.3), ratio)

    assert table_alarms([run((0.9, 1.0, 1.1)), run((1.01, 1.1, 1.2)), run((0.8, 0.9, 0.99)), run(None)]) == (
        2,
        3,
    )


def test_an_alarm_is_an_interval_without_zero() -> None:
    assert false_alarm(StepDifference(10.0, [0.1, 0.11, 0.09, 0.1]))
    assert not false_alarm(StepDifference(10.0, [0.1, -0.1, 0.09, -0.09]))


STEP, EXCESS = 30.0, 15.0
TRUTHS = [
    Truth("no drop", STEP, 0.0, 0.05 * EXCESS, EXCESS, "REFUTED"),
    Truth("part", STEP, 0.25 * EXCESS, 0.33 * EXCESS, EXCESS, "PARTLY"),
    Truth("all", STEP, 0.85 * EXCESS, 0.9 * EXCESS, EXCESS, "CONFIRMED"),
]


@pytest.mark.parametrize("truth", TRUTHS, ids=lambda truth: truth.name)
@pytest.mark.parametrize("loaded", [False, True])
def test_with_little_noise_the_word_is_right(truth: Truth, loaded: bool) -> None:
    little = [0.01 * (n % 7 - 3) for n in range(70)]
    noise = Noise(little, little)
    assert words(truth, noise, 20, loaded, seed=1) == {truth.word: 20}


def test_with_much_noise_nothing_is_decided_and_the_same_seed_counts_the_same() -> None:
    much = [0.9 * (n % 7 - 3) for n in range(70)]
    noise = Noise(much, much)
    counts = words(TRUTHS[1], noise, 20, False, seed=2)
    assert counts == words(TRUTHS[1], noise, 20, False, seed=2) and counts.get("INCONCLUSIVE", 0) > 10


def test_of_the_estimators_that_were_tried_the_used_one_alone_keeps_its_promise_everywhere() -> None:
    rng = np.random.default_rng(5)
    alarms = false_alarms(rng.normal(size=200).tolist(), (8, 40), 300, seed=1)
    worst = {e: max(a.alarms / a.of for a in alarms if a.estimator == e) for e in ESTIMATORS}
    used = worst.pop(next(name for name in worst if "used" in name))
    assert used < 0.09 and worst["mean, Student's t"] > 0.12 and worst["Hodges-Lehmann, signed ranks"] > 0.12
    assert len(alarms) == 2 * 5 * len(ESTIMATORS)


def test_the_signed_rank_interval_is_scipys() -> None:
    """Where the interval ends, the test of that shift has p = 5 %: one side in, the other out."""
    values = np.random.default_rng(2).normal(0.3, 1.0, 30)
    low, mid, high = signed_ranks(values)
    assert low < mid < high
    for end, inwards in ((low, 1e-6), (high, -1e-6)):
        p = [wilcoxon(values - end - way * inwards, method="approx").pvalue for way in (1, -1)]
        assert min(p) < 0.056 and max(p) > 0.044


@pytest.mark.parametrize("kind", WAITS)
def test_a_wait_is_spun_for_its_length_and_leaves_the_numbers_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spun: list[float] = []
    monkeypatch.setattr(calibration, "spin", spun.append)
    model = random_model(replace(PRESETS["tiny"], n_layer=2))
    calibrated = bench(ladder("float32")["sdpa"], model, Workload(contexts=(4,)), PEAKS)
    plain, waiting = (
        calibrated._case(name, WAITS[kind], ms) for name, ms in (("plain", 0.0), ("waiting", 3.0))
    )
    logits = []
    for case in (plain, waiting):
        case.load(4)
        case.decoder.advance()
        case.load(4)
        spun.clear()
        logits.append(case.decoder.advance().clone())
    assert sum(spun) == pytest.approx(3.0)
    assert len(spun) > 20 if kind == PER_OP else len(spun) == 1
    assert logits[0].equal(logits[1])


def test_a_longer_spin_is_longer_by_just_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that takes a microsecond to read, a spin of nothing is none that ends at once."""
    reads = [0]

    def read_ns() -> int:
        reads[0] += 1
        return 1000 * reads[0]

    monkeypatch.setattr(calibration.time, "perf_counter_ns", read_ns)
    took = []
    for ms in (0.0, 0.003, 0.05):
        before = reads[0]
        calibration.spin(ms)
        took.append(reads[0] - before)
    assert [count - took[0] for count in took] == [0, 3, 50] and took[0] > 2


@pytest.mark.parametrize("kind", WAITS)
def test_the_plain_step_waits_as_long_untimed_where_the_wait_is_followed_by_operations(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    waited: list[float] = []
    stepping = calibration.Bench._stepping

    def noted(self: calibration.Bench, case: calibration.Case, waits_before_ms: float = 0.0) -> object:
        waited.append(waits_before_ms)
        return stepping(self, case, waits_before_ms)

    monkeypatch.setattr(calibration.Bench, "_stepping", noted)
    monkeypatch.setattr(calibration, "TRACES", 0)
    model = random_model(replace(PRESETS["tiny"], n_layer=2))
    calibrated = bench(ladder("float32")["sdpa"], model, Workload(contexts=(4,)), PEAKS)
    calibrated.injected(kind, 0.5, 0.0, 5, tmp_path / "trace.json.gz")
    assert waited == ([0.0, 0.0] if kind == IN_A_KERNEL else [0.5, 0.0])


def test_a_duel_with_itself_and_a_duel_with_a_wait_are_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "TRACES", 3)
    model = random_model(replace(PRESETS["tiny"], n_layer=2))
    calibrated = bench(ladder("float32")["sdpa"], model, Workload(contexts=(4,)), PEAKS)
    assert len(calibrated.beside_itself(3, entropy=5).shares) == 3
    waiting = calibrated.injected(IN_PYTHON, 0.1, 0.0, 5, tmp_path / "trace.json.gz")
    assert len(waiting.difference.shares) == calibration.LOOK
    assert len(waiting.gaps_plain_ms) == len(waiting.gaps_waiting_ms) == calibration.TRACES


def test_the_command_shows_runs_alarms_waits_truths_and_estimators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "TRACES", 4)
    flags = ["--model", "tiny", "--quick", "--quiet", "--out", str(tmp_path), "--run", str(GOLDEN)]
    assert calibrate.main(flags) == 0
    (path,) = tmp_path.iterdir()
    record = RunFolder.load(path, CalibrateRecord).record
    tables = {b.title: b for b in record.page.sections[1].blocks if isinstance(b, Table)}
    assert len(record.beside_itself) == 4 and len(record.injected) == 3 and len(record.simulated) == 8
    (row,), (answer,) = tables["Runs of the study, side by side"].rows, record.runs
    assert (
        row[0] == answer.headline and answer.aa_ratio is not None and answer.aa_ratio[0] < answer.aa_ratio[2]
    )
    assert row[0].split(",")[0] in {*(rule.word for rule in RULES), UNDECIDED}
    assert {"False alarms", "Injected waits", "The verdict on made truths"} < tables.keys()
    assert len(record.estimators) == 2 * 5 * len(ESTIMATORS)
