"""The report's text: exact from a committed record, its numbers those of run.json, its verdict checkable.

REFRESH_GOLDEN=1 rewrites the expected text after a wanted change; say why in the commit.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from floor_run import AGAIN, BASELINE, GOLDEN, Record, copied, section, tables, text_of
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.peaks import impossible
from profiling.results.record import FloorRecord
from profiling.results.stats import Interval
from reports.build import build
from reports.numbers import interval, number


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = copied(tmp_path_factory.mktemp("run") / "floor")
    build(path)
    return path


@pytest.fixture(scope="module")
def report(run: Path) -> str:
    return (run / "report.md").read_text()


@pytest.fixture(scope="module")
def record(run: Path) -> Record:
    loaded: Record = json.loads((run / "run.json").read_text())
    return loaded


@pytest.mark.parametrize("times,said", [(100.0, True), (1.0, False)])
def test_a_step_below_its_floor_is_a_fault_of_the_instrument(
    times: float, said: bool, tmp_path: Path
) -> None:
    def slower_reads(record: Record) -> None:
        for read in record["floors"]:
            read["ms"] = [times * ms for ms in read["ms"]]

    reasons = impossible(Measured(RunFolder.load(copied(tmp_path / "run", slower_reads), FloorRecord).record))
    assert bool(reasons) is said and all(
        "times its memory floor, which cannot be" in text for text in reasons
    )
    assert ("which cannot be" in text_of(tmp_path / "run")) is said


def test_golden(run: Path, report: str) -> None:
    """The same record gives the same text, to the letter."""
    text = report.replace(str(run), "RUN")
    expected = GOLDEN / "report.md"
    if os.environ.get("REFRESH_GOLDEN"):
        expected.write_text(text)
    assert text == expected.read_text(), "a wanted change? REFRESH_GOLDEN=1 pytest tests/test_report.py"


def recomputed(rows: dict[str, tuple[float, float, float]]) -> str:
    """The verdict from the printed numbers by the printed rules, written a second time on purpose."""
    low, high = ({name: row[end] for name, row in rows.items()} for end in (0, 2))
    if low["A/A, ms"] > 0 or high["A/A, ms"] < 0 or low["excess, ms"] <= 0:
        return "INCONCLUSIVE"
    if low["C1"] > 0 and low["C2"] > 0:
        return "CONFIRMED"
    if high["C3"] < 0 or high["C4"] < 0:
        return "REFUTED"
    share = low["C3"] > 0 and low["C4"] > 0
    return "PARTLY" if share and (high["C1"] < 0 or high["C2"] < 0) else "INCONCLUSIVE"


def slower(record: Record, name: str, ms: float) -> None:
    for sample in record["samples"]:
        if sample["variant"] == name:
            sample["steps_ms"] = [step + ms for step in sample["steps_ms"]]


def steady(record: Record) -> None:
    """The baseline's second visit equals its first, and the floors are still: noise comes from nowhere."""
    first = {
        (s["round"], s["context"]): s["steps_ms"]
        for s in record["samples"]
        if s["variant"] == BASELINE and s["width"] == record["model"]["shape"]["n_embd"]
    }
    for sample in record["samples"]:
        if sample["variant"] == AGAIN:
            sample["steps_ms"] = first[sample["round"], sample["context"]]
        if sample["variant"] in ("sdpa", "tape"):
            sample["steps_ms"] = [{"sdpa": 10.0, "tape": 4.0}[sample["variant"]] + 0.001 * sample["round"]]


def traced_busy(busy_ms: float) -> Callable[[Record], None]:
    def change(record: Record) -> None:
        steady(record)
        trace = record["variants"]["sdpa"]["trace"]
        for parts in trace["steps_parts_us"]:
            parts["compute"] = busy_ms * 1e3
        trace.update(profiled_ms=[10.0], problems=[])

    return change


CASES: dict[str, Callable[[Record], object]] = {
    "as it is": lambda record: None,
    "the drop is the gap": traced_busy(3.0),
    "the gap is small": traced_busy(9.9),
    "the drop is a part": traced_busy(7.0),
    "the replay is slower": lambda record: (traced_busy(3.0)(record), slower(record, "tape", 8.0)),
    "the machine was not steady": lambda record: (traced_busy(3.0)(record), slower(record, AGAIN, 50.0)),
}


@pytest.mark.parametrize("case", CASES)
def test_reader_can_recompute_the_verdict(case: str, tmp_path: Path) -> None:
    """From the report's own table, by the rules that it prints."""
    path = copied(tmp_path / "floor", CASES[case])
    text = section(text_of(path), "Does launch overhead set the floor?")
    (table,) = tables(section(text_of(path), "How the answer was reached"))
    rows = {row["number"]: tuple(float(row[key]) for key in ("low", "mid", "high")) for row in table}
    (word,) = re.findall(r"^\*\*([A-Z]+)[^*]*\*\*\.", text, flags=re.M)
    assert recomputed(rows) == word


def test_ladder_equals_the_raw_samples(report: str, record: Record) -> None:
    """Medians, p95 and p99 against numpy on run.json, to the digits that are printed."""
    rows = tables(section(report, "The ladder"))[0]
    checked = 0
    for row in rows:
        for context in record["workload"]["contexts"]:
            steps = [
                ms
                for s in record["samples"]
                if s["variant"] == row["variant"].strip("`")
                and s["context"] == context
                and s["width"] == record["model"]["shape"]["n_embd"]
                for ms in s["steps_ms"]
            ]
            cell = row[f"context {context}"].removesuffix(" †")
            printed = [float(x) for x in cell.split(" / ")] if cell else []
            assert printed == pytest.approx(np.quantile(steps, [0.5, 0.95, 0.99]) if steps else [], rel=0.006)
            checked += len(printed)
    assert checked >= 3 * len(record["workload"]["contexts"]) * 5


def test_ratios_equal_the_raw_samples(report: str, record: Record) -> None:
    """Memory floor, TTFT and ratio to the parent, worked out a second time from run.json."""
    context, width = record["workload"]["contexts"][0], record["model"]["shape"]["n_embd"]
    rows = {row["variant"].strip("`"): row for row in tables(section(report, "The ladder"))[1]}
    assert len(rows) == len(record["variants"])

    def by_round(name: str) -> dict[int, float]:
        visits = (s for s in record["samples"] if (s["variant"], s["context"]) == (name, context))
        return {s["round"]: float(np.median(s["steps_ms"])) for s in visits if s["width"] == width}

    for name, row in rows.items():
        entry = record["variants"][name]
        size = entry["prediction"][str(context)]["bytes"]
        reads = [f for f in record["floors"] if (f["bytes"], f["pages"]) == (size, entry["pages"])]
        floor = np.median([np.median(read["ms"]) for read in reads])
        assert float(row["memory floor, ms"]) == pytest.approx(floor, rel=0.006)
        first = np.median([t["ms"] for t in record["ttft"] if t["variant"] == name])
        assert float(row["TTFT, ms"]) == pytest.approx(first, rel=0.006)
        steps, parents = by_round(name), by_round(entry["parent"] or "")
        logs = [np.log(steps[n] / parents[n]) for n in sorted(steps.keys() & parents.keys())]
        if len(logs) > 1:
            printed = float(row["step / parent"].split(" [")[0])
            assert printed == pytest.approx(np.exp(np.mean(logs)), rel=0.06)


def test_parts_sum_to_the_step(report: str) -> None:
    traced, divided = tables(section(report, "Where the time goes"))
    for row in traced:
        parts = [float(row[f"{part}, ms"]) for part in ("compute", "overhead", "python", "unknown")]
        assert sum(parts) == pytest.approx(float(row["step, ms"]), rel=0.01)
    for row in divided:
        values = {key: float(cell) for key, cell in row.items() if key != "variant"}
        assert sum(values.values()) - 2 * values["step"] == pytest.approx(0, abs=0.02 * values["step"])


def test_the_phases_of_one_launch_are_shown_where_they_are_known(tmp_path: Path, report: str) -> None:
    assert "Inside the one launch" not in report  # this run has no such rung

    def inside(record: Record) -> None:
        qkv, head = {"slowest_us": 1500.0, "waiting_us": 20.0}, {"slowest_us": 2500.0, "waiting_us": 0.0}
        record["variants"]["tape"]["trace"]["phases"] = {"qkv": qkv, "head": head}

    text = text_of(copied(tmp_path / "run", inside))
    (table,) = tables(section(text, "Inside the one launch"))
    assert [list(row.values()) for row in table] == [
        ["`qkv`", "1.50 (0.0200)"],
        ["`head`", "2.50 (0)"],
        ["all", "4.00"],
    ]


def test_no_share_where_the_excess_may_be_nothing(tmp_path: Path) -> None:
    """The floor is as slow as the step: the excess's interval contains 0."""

    def change(record: Record) -> None:
        for floor in record["floors"]:
            floor["ms"] = [10.0 + (-1) ** floor["round"]]
        for sample in record["samples"]:
            sample["steps_ms"] = [10.0 + 0.3 * (-1) ** (sample["round"] // 2)]

    path = copied(tmp_path / "floor", change)
    rows = tables(section(text_of(path), "What each rung removed"))[0]
    assert {row["share of excess"] for row in rows} == {""}


@settings(max_examples=200)
@given(st.floats(min_value=1e-4, max_value=1e7), st.integers(3, 5))
def test_numbers_keep_their_digits(value: float, digits: int) -> None:
    text = number(value, digits)
    assert "e" not in text and float(text) == pytest.approx(value, rel=0.5 * 10.0 ** (1 - digits))
    assert float(number(-value, digits)) == -float(text)


def test_interval_shares_its_decimals() -> None:
    assert interval(Interval(0.88562, 0.99224, 1.1117)) == "0.99 [0.89, 1.11]"
    assert number(None) == interval(None) == "unknown" and number(0.0) == "0"
    assert (
        number(float("inf")) == "inf" and interval(Interval(0.0, 2.345, float("inf"))) == "2.35 [0.00, inf]"
    )
