"""Inputs of the kinds that people report, and their right answers; skipped where they are not at hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from experiments.explain import main
from variants.errors import UserError

CASES = Path(__file__).resolve().parents[2] / "shared" / "traces" / "cases"
WANTED: dict[str, Any] = (
    json.loads((CASES / "readings.json").read_text()) if (CASES / "readings.json").exists() else {}
)
pytestmark = pytest.mark.skipif(not WANTED, reason="the cases are not at hand")


@pytest.mark.parametrize("name", sorted(WANTED))
def test_the_right_answer(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = WANTED[name]
    said, code = "", 0
    try:
        main([str(CASES / name), "--json"])
    except UserError as error:
        said, code = str(error), 2
    printed = capsys.readouterr()
    said = re.sub(re.escape(name.split(".")[0]) + r"[\w.]*", "", said + printed.out + printed.err)
    assert code in wanted.get("rc", [0])
    assert re.search(wanted.get("says", ""), said, re.IGNORECASE)
    if code:
        return
    first = json.loads(printed.out.strip().splitlines()[-1])["files"][0]
    assert any(re.fullmatch(label, first["reading"]) for label in wanted.get("readings", [".*"])), first[
        "rule"
    ]
    assert len(first["steps"]) in wanted.get("steps", [len(first["steps"])])
