"""macOS and Windows, as far as Linux can play them: rungs made of modules run, every other says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import FloorRecord

ROOT = Path(__file__).parent.parent
MODULES = {"naive", "cat", "boolmask", "lasthead", "static", "sdpa", "tape"}
REASONS = {
    "hugepages": "no transparent huge pages",
    "triton": "a CUDA device",
    "onelaunch": "on Linux, not on",
}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are played on Linux")
@pytest.mark.parametrize(("system", "encoding"), [("darwin", "utf-8"), ("win32", "cp1252")])
def test_rungs_of_modules_run_and_every_other_says_why_not(
    system: str, encoding: str, tmp_path: Path
) -> None:
    command = [sys.executable, "tests/elsewhere.py", system, "floor", "--model", "tiny", "--context", "6,20"]
    command += ["--quick", "--rounds", "2", "--threads", "1", "--device", "cpu", "--out", str(tmp_path)]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    (run,) = tmp_path.iterdir()
    record = RunFolder.load(run, FloorRecord).record
    assert {rung.variant for rung in Measured(record).ladder() if rung.measured} == MODULES
    reasons = {name: entry.reason for name, entry in record.variants.items() if name not in MODULES}
    assert all(reasons.values()) and not any("\n" in reason for reason in reasons.values())
    assert all(REASONS[name] in reasons[name] for name in REASONS.keys() & reasons.keys())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are played on Linux")
@pytest.mark.parametrize("name", REASONS)
def test_a_rung_that_was_asked_for_is_refused_in_one_line(name: str) -> None:
    command = [sys.executable, "tests/elsewhere.py", "win32", "floor", "--device", "cpu", "--variant", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and REASONS[name] in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1
