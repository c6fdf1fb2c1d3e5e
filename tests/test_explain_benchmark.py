"""The benchmark reads what it says it reads, with HTA or without."""

from __future__ import annotations

import json

import pytest

from experiments.explain_benchmark import main, write_copies
from profiling.analysis.explanation import explain
from tests.synthetic_trace import eager
from variants.errors import UserError


def test_copies_follow_each_other_and_stay_linked(tmp_path) -> None:
    source = eager(steps=3).write(tmp_path / "one.json")
    size = write_copies(source, tmp_path / "four.json", 4)
    assert size == (tmp_path / "four.json").stat().st_size
    one, four = explain(source), explain(tmp_path / "four.json")
    assert len(four.trace.device_events) == 4 * len(one.trace.device_events)
    assert (four.trace.device_events["call"] >= 0).all()
    assert len(four.steps) == 4 * len(one.steps)
    assert four.reading.label == one.reading.label


def test_it_runs_without_hta(tmp_path, capsys) -> None:
    path = eager().write(tmp_path / "t.json.gz")
    assert main([str(path), "--repeats", "1", "--json", "--hta-python", "/usr/bin/false"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(answer["tools"]) == {"explain: the same four", "explain: everything", "json.load and pandas"}
    assert all(row["seconds"] > 0 and row["peak_bytes"] > 0 for row in answer["tools"].values())
    assert answer["hta_failure"]


def test_bad_counts_are_refused(tmp_path) -> None:
    with pytest.raises(UserError, match="count from 1"):
        main([str(tmp_path / "t.json"), "--copies", "0"])
