"""Floor runs of a tiny model that are killed at random moments, looked at, and gone on with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from profiling.results.folder import RunFolder
from profiling.results.record import FloorRecord
from reports.build import build
from variants import interrupted
from variants.errors import UserError, one_line

ROOT = Path(__file__).parent.parent.parent
TINY = ("--model", "tiny", "--variant", "sdpa", "--context", "6,20", "--rounds", "3")
SHORT = ("--quick", "--max-time", "1s", "--quiet")
ENDS_S = 60.0  # a run that was interrupted ends within this
OURS = re.compile(rf'File "{re.escape(str(ROOT))}/(?:experiments|profiling|reports|variants)/')
PYTHON_STARTS = "while Python itself was starting"


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


def started(code: int, err: str) -> bool:
    """Whether our code had begun, by the exit code of an interrupted process and what it wrote to stderr.

    Until our first line runs Ctrl-C is Python's own: silent while it has no handler, then a traceback that
    names no file of ours and is all there is.
    """
    lines = err.strip().splitlines() or [""]
    python = lines[0].startswith(("Traceback", "Fatal Python error")) and lines[-1] == "KeyboardInterrupt"
    silent = code == -signal.SIGINT and not err
    return not (silent or python) or OURS.search(err) is not None


def kill_runs(seed: int, folder: Path) -> Iterator[Killed]:
    """Kill runs without end, by Ctrl-C and by SIGKILL in turn: the tally after each.

    A killed run goes on until it is whole.
    """
    random, tally = Random(f"{seed} kills"), Killed()
    start = time.monotonic()
    _ended(_begun([*TINY, *SHORT, "--out", str(folder / "first")]), ENDS_S, signal.SIGKILL)
    whole_s = time.monotonic() - start
    path: Path | None = None
    for number in count():
        before = _read(path, tally)
        out = folder / str(number)
        process = _begun(["--resume", str(path), *SHORT] if path else [*TINY, *SHORT, "--out", str(out)])
        how = signal.SIGINT if tally.moments.total() % 2 else signal.SIGKILL
        killed, err = _ended(process, random.uniform(0.0, whole_s), how)
        path = path or next(out.glob("*"), None)
        after = _read(path, tally)
        ours = started(process.returncode, err)
        if ours and (fault := _fault(process.returncode, err)):
            tally.faults.append(fault)
        if before and after and after.samples[: len(before.samples)] != before.samples:
            tally.faults.append(f"{path}: samples were lost")
        if after is None or after.environment is None or after.status == "complete":
            tally.whole += after is not None and after.status == "complete"
            path = None
        if killed:
            tally.moments[moment(after) if ours else PYTHON_STARTS] += 1
            yield tally


def _begun(flags: list[str]) -> subprocess.Popen[str]:
    """A floor run with a process group of its own, which Ctrl-C reaches as a whole."""
    command = [sys.executable, "-m", "experiments.floor", *flags]
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stderr=pipe, stdout=null, text=True, start_new_session=True)


def _ended(process: subprocess.Popen[str], after_s: float, how: signal.Signals) -> tuple[bool, str]:
    """Whether it was killed, since it had not ended by itself until then, and what it wrote to stderr."""
    try:
        try:
            return False, process.communicate(timeout=after_s)[1]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, how)
            return True, process.communicate(timeout=ENDS_S)[1]
    except subprocess.TimeoutExpired:
        return True, f"did not end within {ENDS_S:g} s"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _fault(code: int, err: str) -> str:
    """What is wrong with how a run ended, or nothing: whole, by SIGKILL, or in one line on Ctrl-C.

    Python itself ends by SIGINT, for which a shell says 130 as well, where Ctrl-C came while a library ran a
    text as code, although it was answered (`unhandled_keyboard_interrupt` in its pythonrun.c).
    """
    answered = (interrupted.SAID, (interrupted.CODE, -signal.SIGINT))
    right = [("", (0, -signal.SIGKILL)), answered]
    return "" if any(err == said and code in codes for said, codes in right) else f"exit code {code}: {err}"


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
