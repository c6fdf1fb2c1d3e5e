"""Question: how fast and how large is `explain` beside Holistic Trace Analysis (HTA) on the same trace?

Both load the file and answer three things: temporal breakdown, idle breakdown, launch statistics; `explain`
is timed with everything that its --json holds, too, and beside them a plain `json.load` with one pandas table
of the events, which answers nothing. Each run is a fresh process and the tools alternate;
the time is that of the work without interpreter and imports, the memory is the process's peak (Linux). HTA
is optional: `pip install HolisticTraceAnalysis==0.5.0`, here or in an environment of its own (--hta-python).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from msgspec.structs import asdict

from experiments.shared import cli
from profiling.results.record import ExplainBenchmarkRecord, TraceReader, TraceReaders
from profiling.results.record.page import Table
from variants.errors import UserError

EXAMPLES = ("run.pt.trace.json.gz", "run.pt.trace.json.gz --copies 20 --hta-python hta/bin/python")
PEAK = """
def peak_bytes():
    # Of this program alone: the maximum that getrusage gives begins with the parent's.
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""
SAME_FOUR = """
import json, sys, time
from profiling.trace import load
from profiling.trace.summary import file_numbers
start = time.perf_counter()
file_numbers(load(sys.argv[1]))
print(json.dumps([time.perf_counter() - start, peak_bytes()]))
"""
EVERYTHING = """
import json, sys, time
from profiling.analysis.explanation import as_json, explain
start = time.perf_counter()
as_json(explain(sys.argv[1]), sys.argv[1])
print(json.dumps([time.perf_counter() - start, peak_bytes()]))
"""
PLAIN = """
import json, sys, time
import pandas
start = time.perf_counter()
with open(sys.argv[1], "rb") as file:
    read = json.load(file)
pandas.DataFrame(read["traceEvents"] if isinstance(read, dict) else read)
print(json.dumps([time.perf_counter() - start, peak_bytes()]))
"""
HTA = """
import json, logging, sys, time
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
start = time.perf_counter()
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_idle_time_breakdown(visualize=False)
analysis.get_cuda_kernel_launch_stats(visualize=False)
print(json.dumps([time.perf_counter() - start, peak_bytes()]))
"""
Event = dict[str, Any]  # of anybody's trace
RUNS = {
    "explain: the same four": SAME_FOUR,
    "explain: everything": EVERYTHING,
    "json.load and pandas": PLAIN,
    "HTA": HTA,
}


def parser() -> argparse.ArgumentParser:
    parser = cli.plain_parser("experiments.explain_benchmark", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="the trace to read")
    add("--copies", type=int, default=1, metavar="N", help="read N copies of it, one after the other in time")
    add("--repeats", type=int, default=3, metavar="N", help="runs of each; medians are shown")
    add("--hta-python", default=sys.executable, metavar="PYTHON", help="an interpreter that has HTA")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if sys.platform != "linux":
        raise UserError(f"the peak memory of a process is read as Linux tells it, not on {sys.platform}")
    if arguments.copies < 1 or arguments.repeats < 1:
        raise UserError("--copies and --repeats count from 1")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        size = write_copies(arguments.file, path, arguments.copies)
        answer = compare(path, size, arguments)
    from experiments.shared.outcome import page_of, publish
    from profiling.results.folder import RunFolder

    run = RunFolder.create(arguments.out, ExplainBenchmarkRecord, "any")
    run.update(explain_benchmark=answer)
    page = page_of(__doc__ or "", run, answer_of(answer), [table_of(answer)])
    return publish(arguments, run, page, **asdict(answer))


def write_copies(source: Path, path: Path, copies: int) -> int:
    """Write `copies` of a trace, shifted in time and with correlation ids of their own; returns the bytes."""
    from profiling.trace.read import metadata, pieces
    from profiling.trace.source import open_source

    opened = open_source(source)
    events = [e for piece in pieces(opened) for e in piece if isinstance(e, dict)]
    ids = [_correlation(e) for e in events]
    spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e.get("ph") == "X" and _is_timed(e)]
    period_us = max(end for _, end in spans) - min(start for start, _ in spans) + 10 if spans else 0
    with path.open("wb") as out:
        out.write(orjson.dumps(metadata(opened))[:-1])
        out.write(b',"traceEvents":[' if metadata(opened) else b'"traceEvents":[')
        for copy in range(copies):
            shift = copy * (max(ids, default=0) + 1)
            lines = [_shifted(event, copy * period_us, shift) for event in events]
            out.write((b",\n" if copy else b"\n") + b",\n".join(lines))
        out.write(b"]}")
    return path.stat().st_size


def _is_timed(event: Event) -> bool:
    return all(isinstance(event.get(key), int | float) for key in ("ts", "dur"))


def _correlation(event: Event) -> int:
    args = event.get("args")
    value = args.get("correlation") if isinstance(args, dict) else None
    return value if isinstance(value, int) else 0


def _shifted(event: Event, later_us: float, ids: int) -> bytes:
    if isinstance(event.get("ts"), int | float):
        event = event | {"ts": round(event["ts"] + later_us, 3)}
    if _correlation(event):
        event = event | {"args": event["args"] | {"correlation": event["args"]["correlation"] + ids}}
    return orjson.dumps(event, option=orjson.OPT_INDENT_2)


def compare(path: Path, size_bytes: int, arguments: argparse.Namespace) -> TraceReaders:
    """Median seconds and peak bytes of each; None where HTA is missing or fails."""
    results: dict[str, list[list[float]]] = {name: [] for name in RUNS}
    failure = None
    for _ in range(arguments.repeats):
        for name, code in RUNS.items():
            python = arguments.hta_python if name == "HTA" else sys.executable
            try:
                results[name].append(_measure(python, code, path))
            except RuntimeError as error:
                if name != "HTA":
                    raise UserError(f"{arguments.file}: {error}") from error
                failure = str(error)
    medians = {
        name: TraceReader(statistics.median(r[0] for r in runs), statistics.median(r[1] for r in runs))
        for name, runs in results.items()
        if runs
    }
    return TraceReaders(size_bytes, arguments.repeats, medians, failure)


def _measure(python: str, code: str, path: Path) -> list[float]:
    command = [python, "-c", PEAK + code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")
    return [float(value) for value in json.loads(done.stdout.splitlines()[-1])]


def answer_of(answer: TraceReaders) -> str:
    """What one wants to know first."""
    ours, size = answer.tools["explain: everything"], f"{answer.json_bytes / 2**20:.1f} MB of JSON"
    took = f"explain reads {size} in {ours.seconds:.2f} s with {ours.peak_bytes / 2**20:.0f} MB"
    plain = answer.tools["json.load and pandas"].seconds / ours.seconds
    took += f"; json.load and pandas take {plain:.1f} times as long"
    if answer.hta_failure:
        return f"{took}; HTA did not finish: {answer.hta_failure}."
    return f"{took}, HTA {answer.tools['HTA'].seconds / ours.seconds:.1f} times."


def table_of(answer: TraceReaders) -> Table:
    rows = []
    for name, row in answer.tools.items():
        hta = answer.tools.get("HTA")
        ratio = "" if hta is None else f"{hta.seconds / row.seconds:.1f} x"
        peak = f"{row.peak_bytes / 2**20:.0f}"
        rows.append((name, f"{row.seconds:.2f}", ratio, peak, f"{row.peak_bytes / answer.json_bytes:.1f}"))
    title = f"Median of {answer.repeats} runs"
    return Table(("tool", "seconds", "HTA takes", "peak MB", "peak / JSON"), rows, title=title)


if __name__ == "__main__":
    cli.run(main)
