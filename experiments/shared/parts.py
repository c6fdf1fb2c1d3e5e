"""Parts of a long command, each a process of its own: one that dies, hangs or babbles costs that part alone.

A part that runs out of time is interrupted as by Ctrl-C, so that what it has measured is stored; what a part
left in its run folder counts, however it ended.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from profiling.results.folder import write_atomically
from variants.errors import UserError

GRACE_S = 15  # to store and to report, after the interrupt
MAX_REASON = 200  # characters; the whole output is in the part's log
MAX_ARCHIVE_BYTES = 16_000_000
WHY_NOT_STARTED = "not started: the budget was spent"


@dataclass(frozen=True)
class Part:
    """One process. Its last line of stdout is JSON where `parsed`; `runs`: where its run folder goes;
    `environment`: what differs in it from that of the others."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    parsed: bool = True
    runs: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """`status`: passed, failed, timed out, not started. `reason`: the last line of a failed part.

    `output` is the JSON that a part printed or stored.
    """

    name: str
    status: str
    seconds: float
    reason: str = ""
    output: dict[str, Any] = field(default_factory=dict)


def run_all(
    chosen: Sequence[Part],
    folder: Path,
    root: Path,
    budget_s: float,
    environment: dict[str, str],
    after: Callable[[Sequence[Result]], None],
) -> list[Result]:
    """Every part in `root`, within the budget; `after` each, the results so far are on disk."""
    deadline = time.monotonic() + budget_s
    results: list[Result] = []
    for part in chosen:
        left = deadline - time.monotonic() - GRACE_S
        if left <= 1:
            results.append(Result(part.name, "not started", 0.0, WHY_NOT_STARTED))
        else:
            log = folder / f"{part.name.replace(' ', '-')}.log"
            results.append(run_part(part, root, min(part.limit_s, left), log, environment))
        content = json.dumps({"schema": 1, "parts": [asdict(result) for result in results]}, indent=1)
        write_atomically(folder / "gpu-check.json", content.encode())
        after(results)
    return results


def run_part(
    part: Part, root: Path, limit_s: float | None, log: Path, environment: Mapping[str, str]
) -> Result:
    """Run one part, without a limit where that is None; never raises for what the part does."""
    start = time.monotonic()
    pipe, own = subprocess.PIPE, {**environment, **part.environment}
    try:
        process = subprocess.Popen(part.command, cwd=root, env=own, stdout=pipe, stderr=pipe, text=True)
    except OSError as error:
        return Result(part.name, "failed", time.monotonic() - start, str(error))
    late = False
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        late = True
        out, err = _interrupt(process)
    log.write_text(out + err, encoding="utf-8")
    status, reason, answer = _outcome(part, process.returncode, out, err)
    if late:
        status, reason = "timed out", f"after {limit_s:.0f} s"
    if status != "passed" and part.runs is not None:
        answer = _stored_summary(part.runs)
    return Result(part.name, status, time.monotonic() - start, reason, answer)


def _interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Ctrl-C, and after a while the end."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def _outcome(part: Part, code: int, out: str, err: str) -> tuple[str, str, dict[str, Any]]:
    """(status, reason, what its last line holds) of a part that ended by itself."""
    if code:
        last = (err.strip() or out.strip() or "nothing").splitlines()[-1][:MAX_REASON]
        return "failed", f"exit code {code}: {last}", {}
    if not part.parsed:
        return "passed", "", {}
    try:
        return "passed", "", json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        return "failed", "no JSON on the last line", {}


def _stored_summary(runs: Path) -> dict[str, Any]:
    """The summary of what a study that did not end has stored; empty where there is none."""
    from profiling.results.folder import RunFolder
    from profiling.results.record import FloorRecord
    from profiling.results.summary import summary

    records = sorted(runs.glob("*/run.json"))
    try:
        return summary(RunFolder.load(records[-1].parent, FloorRecord)) if records else {}
    except UserError:
        return {}


def archive(folder: Path) -> tuple[Path, list[str]]:
    """`folder` as one file beside it, and the files that would have made it too large: the largest ones."""
    files = sorted(
        (file for file in folder.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size
    )
    packed, left_out, size = folder.with_name(f"{folder.name}.tar.gz"), [], 0
    with tarfile.open(packed, "w:gz") as tar:
        for file in files:
            size += file.stat().st_size  # traces are packed already: what they add is what they are
            if size > MAX_ARCHIVE_BYTES:
                left_out.append(str(file.relative_to(folder)))
            else:
                tar.add(file, f"{folder.name}/{file.relative_to(folder)}")
    return packed, left_out
