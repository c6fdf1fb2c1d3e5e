"""Floor runs of a tiny model that are killed at random moments, looked at, and gone on with."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from profiling.results.folder import RunFolder
from profiling.results.record import FloorRecord
from reports.build import build
from variants.errors import UserError, one_line

ROOT = Path(__file__).parent.parent.parent
TINY = ("--model", "tiny", "--variant", "sdpa", "--context", "6,20", "--rounds", "3")
SHORT = ("--quick", "--max-time", "1s", "--quiet")
ENDS_S = 60.0  # a run that was interrupted ends within this


@dataclass
class Killed:
    """`moments`: how many runs were killed while the record held so much; `faults`: what must not be."""

    moments: Counter[str] = field(default_factory=Counter)
    whole: int = 0  # ended before they were killed
    faults: list[str] = field(default_factory=list)


def moment(record: FloorRecord | None) -> str:
    """The furthest phase of which a killed run has something in its record."""
    if record is None:
        return "before there was a folder"
    entries = record.variants.values()
    reached = {
        "traces": any(entry.trace for entry in entries),
        "the duel": record.duel is not None,
        "the rounds": bool(record.samples),
        "proofs": any(entry.gate for entry in entries),
        "the measured peaks": record.peaks is not None,
        "the description": record.environment is not None,
    }
    return next((f"behind {name}" for name, there in reached.items() if there), "behind nothing")


def kill_runs(count: int, seed: int, folder: Path, progress: Callable[[int], None]) -> Killed:
    """Kill `count` times, by Ctrl-C and by SIGKILL in turn. A killed run goes on until it is whole."""
    random, tally = Random(f"{seed} kills"), Killed()
    start = time.monotonic()
    _run([*TINY, *SHORT, "--out", str(folder / "first")]).wait()
    whole_s = time.monotonic() - start
    path: Path | None = None
    kills = 0
    while kills < count:
        progress(kills)
        before = _read(path, tally)
        out = folder / f"{kills}-{tally.whole}"
        process = _run(["--resume", str(path), *SHORT] if path else [*TINY, *SHORT, "--out", str(out)])
        try:
            process.wait(random.uniform(0.0, whole_s))
            killed = False
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT if kills % 2 else signal.SIGKILL)
            killed = True
        err = process.communicate(timeout=ENDS_S)[1]
        path = path or next(out.glob("*"), None)
        after = _read(path, tally)
        if killed:
            kills += 1
            tally.moments[moment(after)] += 1
        if "Traceback" in err and path is not None:
            tally.faults.append(err)
        if before and after and after.samples[: len(before.samples)] != before.samples:
            tally.faults.append(f"{path}: samples were lost")
        if after is None or after.environment is None or after.status == "complete":
            tally.whole += after is not None and after.status == "complete"
            path = None
    return tally


def _run(flags: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "experiments.floor", *flags]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def _read(path: Path | None, tally: Killed) -> FloorRecord | None:
    """The record, whose report is made too; what keeps either from being made is a fault."""
    if path is None:
        return None
    try:
        build(path)
        return RunFolder.load(path, FloorRecord).record
    except UserError as error:
        if (path / "run.json").exists():
            tally.faults.append(str(error))
    except Exception as error:
        tally.faults.append(f"{path}: {one_line(error)}")
    return None
