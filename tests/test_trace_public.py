"""The reference values of real public traces are reproduced; skipped where the traces are not at hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiling.analysis.explanation import as_json, explain
from profiling.trace import load, steps
from profiling.trace.names import ANNOTATION_CATEGORIES
from profiling.trace.redaction import redact
from profiling.trace.summary import file_numbers, window_numbers

PUBLIC = Path(__file__).resolve().parents[2] / "shared" / "traces" / "public"
REFERENCES = sorted(PUBLIC.glob("*.expected.json"))
pytestmark = pytest.mark.skipif(not REFERENCES, reason="the public traces are not at hand")
TOLERANCE_US = 0.002
READINGS = {
    "cpu_launch_bound": "launch-bound",
    "gpu_bound": "device-bound",
    "gpu_graph_replay_plus_host_launch": "mixed",
    "host_or_idle_outside_steps": "host-bound outside launches",
    "no_gpu_events": "no device events",
    "too_small_to_judge": "too small to judge",
}
"""Ours for the words of the readings by hand."""


def differences(ours: Any, expected: Any, where: str = "") -> list[str]:
    """Where our numbers are missing or differ from the expected ones."""
    if isinstance(expected, dict):
        if not isinstance(ours, dict):
            return [f"{where}: {ours!r} is no table"]
        return [
            d for key, value in expected.items() for d in differences(ours.get(key), value, f"{where}/{key}")
        ]
    if isinstance(expected, float):
        close = isinstance(ours, float | int) and abs(ours - expected) <= TOLERANCE_US * (
            5 if "pct" in where else 1
        )
        return [] if close else [f"{where}: {ours!r}, expected {expected!r}"]
    return [] if ours == expected else [f"{where}: {ours!r}, expected {expected!r}"]


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda p: p.name.removesuffix(".expected.json"))
def test_reference_values(reference: Path) -> None:
    wanted = json.loads(reference.read_text())
    expected = wanted["expected"]
    trace = load(PUBLIC / wanted["trace"])
    numbers = file_numbers(trace)
    whole = {k: v for k, v in expected.items() if k not in ("file", "n_steps", "steps", "windows")}
    assert differences(numbers, whole) == []
    table = steps(trace)
    if expected["n_steps"]:
        assert table.source == "ProfilerStep marks"
        assert len(table) == expected["n_steps"]
        check_windows(window_numbers(trace, table.table), expected["steps"])
    elif expected["windows"]:
        assert len(table) == 1, "nested annotations of one engine step count once"
        assert table.table["name"].iat[0] == expected["windows"][0]["name"]
        marks = trace.in_categories(ANNOTATION_CATEGORIES)
        rows = marks.assign(start_ns=marks["ts_ns"], end_ns=marks["ts_ns"] + marks["dur_ns"])
        rows = rows[rows["name"].isin([w["name"] for w in expected["windows"]])].sort_values("start_ns")
        check_windows(window_numbers(trace, rows), expected["windows"])


def check_windows(ours: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [w["name"] for w in ours] == [w["name"] for w in expected]
    for window, wanted in zip(ours, expected, strict=True):
        skip = ("clipped", "attributed", "start_to_next_start_us")
        assert differences(window, {k: v for k, v in wanted.items() if k not in skip}) == []
        devices = window["devices"]
        assert differences({d: n["clipped"] for d, n in devices.items()}, wanted["clipped"]) == []
        assert differences(devices, wanted["attributed"]) == []
        assert {d for d, n in devices.items() if n["gpu_events"]} == set(wanted["attributed"])


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda p: p.name.removesuffix(".expected.json"))
def test_readings_by_hand_and_the_same_after_redaction(reference: Path, tmp_path: Path) -> None:
    wanted = json.loads(reference.read_text())
    path = PUBLIC / wanted["trace"]
    explanation = explain(path)
    assert explanation.reading.label == READINGS[wanted["expected_verdict"]], explanation.reading.rule
    redact(path, tmp_path / "redacted.json.gz", frozenset(explanation.steps.table["name"]))
    before, after = (
        as_json(one, "trace", 0) for one in (explanation, explain(tmp_path / "redacted.json.gz"))
    )
    assert before == after
