"""The verdict's rules are data: each threshold from both sides, and what is said whatever the word."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import entry, setting

from profiling.results.duel import READ
from profiling.results.metrics import Measured
from profiling.results.record import (
    Counts,
    DuelBlock,
    DuelSteps,
    DuelTrace,
    FloorRead,
    FloorRecord,
    Sample,
    StepPrediction,
    Trace,
    replaced,
)
from profiling.results.rules import CONTRASTS, RULES, UNDECIDED, Numbers, judge
from profiling.results.stats import Estimate
from profiling.results.verdict import Verdict, verdict

SAME = Estimate(0.0, 0.01, 99)  # the A/A pair of a steady machine
METHOD = (Path(__file__).parent.parent / "docs" / "method.md").read_text("utf-8")


def numbers(drop: float, gap: float, excess: float, error: float = 0.001) -> Numbers:
    """In ms, all with the same standard error, of many blocks."""
    return Numbers(*(Estimate(mid, error, 1000) for mid in (drop, gap, excess)), SAME, step=40.0)


@pytest.mark.parametrize(
    ("drop", "gap", "excess", "word"),
    [
        (5.1, 10.0, 19.8, "CONFIRMED"),
        (4.9, 10.0, 19.8, "PARTLY"),  # C1: less than half of the gap
        (5.1, 10.0, 20.2, "PARTLY"),  # C2: the gap is less than half of the excess
        (1.02, 10.0, 19.8, "PARTLY"),
        (0.98, 10.0, 19.8, "REFUTED"),  # C3: less than a tenth of the gap
        (1.9, 2.02, 20.0, "PARTLY"),
        (1.9, 1.98, 20.0, "REFUTED"),  # C4: the gap is less than a tenth of the excess
        (5.0, 10.0, 19.8, UNDECIDED),  # on the threshold
        (2.0, 2.0, 20.0, UNDECIDED),
        (5.0, 7.0, 0.0, UNDECIDED),  # no excess to explain
    ],
)
def test_each_side_of_each_threshold(drop: float, gap: float, excess: float, word: str) -> None:
    assert judge(numbers(drop, gap, excess))[0] == word


def test_errors_of_all_three_are_carried() -> None:
    """A drop known to 0.001 ms decides nothing where the gap is not known."""
    sure = Numbers(Estimate(5.5, 0.001, 99), Estimate(10, 0.001, 99), Estimate(15, 0.001, 99), SAME, 40)
    for name in ("drop", "gap", "excess"):
        parts = {"drop": sure.drop, "gap": sure.gap, "excess": sure.excess}
        parts[name] = Estimate(parts[name].mid, 4.0, 3)
        assert judge(sure)[0] == "CONFIRMED" and judge(Numbers(**parts, aa=SAME, step=40))[0] == UNDECIDED


@given(*(st.floats(-5, 30) for _ in range(3)), st.floats(0.001, 5))
@settings(max_examples=200)
def test_at_most_one_rule_holds_and_no_excluded_one(
    drop: float, gap: float, excess: float, error: float
) -> None:
    n = numbers(drop, gap, excess, error)
    holding = [rule for rule in RULES if rule.holds(n.bounds)]
    excluded = [rule for rule in RULES if rule.excluded(n.bounds)]
    assert len(holding) <= 1 and not set(holding) & set(excluded)
    if holding and n.interval(n.excess).low > 0:
        assert {rule.word for rule in RULES} == {holding[0].word} | {rule.word for rule in excluded}


def test_a_step_that_differs_from_itself_decides_nothing() -> None:
    n = numbers(5.1, 10.0, 19.8)
    for low, word in ((-0.3, "CONFIRMED"), (0.3, UNDECIDED)):
        assert judge(replace(n, aa=Estimate(low + 0.2, 0.1, 99)))[0] == word


def test_wrong_words_stay_below_five_percent() -> None:
    """On the edge between two words, where every word but UNDECIDED is wrong half of the time."""
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(1500):
        mids = (1.0, 10.0, 60.0) + 0.1 * rng.normal(size=3)  # C3 is 0: neither REFUTED nor PARTLY
        wrong += judge(Numbers(*(Estimate(m, 0.1, 1e6) for m in mids), SAME, step=80))[0] != UNDECIDED
    assert wrong / 1500 < 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5


def test_launching_is_bounded_whatever_the_word() -> None:
    n = numbers(3.0, 4.5, 30.0)
    word, rule, excluded = judge(n)
    given = Verdict(word, rule, "tape", "sdpa", n, 40, excluded)
    low, high = given.bounds["launching"]
    assert low == pytest.approx(0.1, abs=0.001) and high == pytest.approx(0.15, abs=0.001)
    assert given.bounds["slow ops"] == pytest.approx((1 - high, 1 - low))
    assert "10% to 15%" in given.sentence and "30 ms" in given.sentence
    assert Verdict(UNDECIDED, "x", "tape", "sdpa", numbers(1, 2, 0)).bounds is None


def test_a_vague_drop_does_not_loosen_the_gap_s_bound() -> None:
    n = replace(numbers(2.6, 4.8, 26.0), drop=Estimate(2.6, 3.3, 12))
    low, high = n.launching
    assert low == 0.0 and high == pytest.approx(4.8 / 26, abs=0.001)
    low, high = numbers(6.0, 4.8, 26.0).launching
    assert low <= high == pytest.approx(6.0 / 26, abs=0.001)


def test_an_undecided_run_says_what_is_excluded_and_how_much_more_would_decide() -> None:
    n = numbers(1.0, 4.0, 30.0, error=0.5)  # C3 is 0.6 +- 1, C4 is 1 +- 1
    word, rule, excluded = judge(n)
    given = Verdict(word, rule, "tape", "sdpa", n, 40, excluded)
    assert word == UNDECIDED and excluded == ("CONFIRMED",) and "REFUTED or PARTLY" in rule
    assert "not the cause: at most 17%" in given.headline
    needed = given.blocks_needed
    better = numbers(1.0, 4.0, 30.0, error=0.5 * (40 / needed) ** 0.5 * 0.98)
    assert needed > 40 and judge(better)[0] == "PARTLY"
    worse = numbers(1.0, 4.0, 30.0, error=0.5 * (40 / needed) ** 0.5 * 1.05)
    assert judge(worse)[0] == UNDECIDED


def test_the_docs_print_the_rules_of_the_code() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", METHOD, flags=re.M))
    assert {c.name: c.text for c in CONTRASTS}.items() <= rows.items()
    assert {rule.word: rule.text for rule in RULES}.items() <= rows.items()
    for c in CONTRASTS:  # the text says what the weights do
        value = eval(c.text, {"drop": 7.0, "g": 11.0, "excess": 13.0})
        assert value == pytest.approx(c.drop * 7 + c.gap * 11 + c.excess * 13)


def test_the_excess_is_what_the_step_takes_beyond_the_read_beside_it() -> None:
    """Rounds on a machine that was as fast as the floor then: only blocks know both at one time."""
    entries = {
        name: entry(parent=parent, status="proven", prediction={10: StepPrediction(80, 1, 1.0, 1.0)})
        for name, parent in (("sdpa", None), ("tape", "sdpa"))
    }
    parts = {"compute": 9500.0, "python": 500.0}
    trace = Trace(
        file="t",
        context=10,
        profiled_ms=[10.0],
        steps_parts_us=[parts] * 3,
        counts=Counts(0, 0, 0, 100.0, 0),
        busy_share_of_events=0.9,
    )
    entries["sdpa"] = replaced(entries["sdpa"], trace=trace, slots={10: 10})
    rng = np.random.default_rng(3)

    def blocks(second: str, share: float) -> list[DuelBlock]:
        ms = [tuple((10 * rng.normal([1, share, share, 1], 0.01)).tolist()) for _ in range(40)]
        return [DuelBlock("sdpa", second, False, four) for four in ms]

    fought = [*blocks("tape", 0.95), *blocks("sdpa", 1.0), *blocks(READ, 0.4)]
    record = FloorRecord(
        **setting(contexts=(10,)),
        variants=entries,
        samples=[
            Sample(
                round=n,
                variant=name,
                width=8,
                context=10,
                batch=1,
                steps_ms=[10.0 + n / 10],
                pipelined_ms=None,
            )
            for n in range(6)
            for name in entries
        ],
        floors=[FloorRead(round=n, bytes=80, pages="default", ms=[10.0 - n]) for n in range(6)],
        duel=DuelSteps(40, [40], fought, [DuelTrace(10.0, 1.0, trace)] * 5),
    )
    judged = verdict(Measured(record))
    assert judged.numbers is not None
    low, _, high = judged.numbers.interval(judged.numbers.excess)
    assert 0.57 < low / judged.numbers.step < 0.6 < high / judged.numbers.step < 0.63
