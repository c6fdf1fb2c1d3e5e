"""Does everything that only a GPU can tell hold on this one, and is the 5 ms floor launch overhead here?

Ten minutes, one command: tests marked `gpu`, the floor study (gate, times, traces, prediction against the
measured replay) in float32 and bfloat16, and the bandwidth that each Triton kernel reaches. Every part runs
in a process of its own under a time limit; one that fails is named and the others go on. Writes one folder
with the parts' output, their run folders and gpu-check.json. Exit code 1 if a part failed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.shared import cli
from profiling.results.folder import write_atomically
from profiling.results.record.page import Page, Section, Sentence, Table
from variants.errors import UserError

ROOT = Path(__file__).parent.parent
BUDGET_S = 600
REHEARSAL_SLOWER = 4  # a CPU that others use may take this many times a part's limit
EXAMPLES = ("", "--budget 300", "--rehearse")
LONGEST_REASON = 200  # characters; the whole output is in the part's log
REPLAY_WITHIN = 0.15  # the goal of the prediction
WHY_NOT_STARTED = "not started: the budget was spent"


@dataclass(frozen=True)
class Part:
    """One process. Its last line of stdout is JSON where `parsed`."""

    name: str
    command: tuple[str, ...]
    limit_s: float
    parsed: bool = True


@dataclass
class Result:
    """`status`: passed, failed, timed out, not started. `reason`: the last thing that a failed part said."""

    name: str
    status: str
    seconds: float
    reason: str = ""
    found: dict[str, Any] = field(default_factory=dict)


def parts(rehearse: bool, out: Path) -> list[Part]:
    """What is run, most important first. A rehearsal runs the same parts small and on the CPU."""
    device, model = ("cpu", "tiny") if rehearse else ("cuda", "gpt2")
    contexts = "5,40" if rehearse else "10,100,500,1000"
    scale = ("--quick", "--rounds", "2", "--steps", "4") if rehearse else ("--rounds", "20", "--steps", "10")
    rungs = "tape" if rehearse else "cudagraph,compile-cudagraph,triton,onelaunch,compile"
    module = (sys.executable, "-m")
    common = ("--device", device, "--model", model)

    def floor(precision: str, limit_s: float) -> Part:
        options = ("--precision", precision, "--variant", rungs, "--context", contexts, *scale)
        where = ("--out", str(out), "--json", "--quiet")
        return Part(f"floor {precision}", (*module, "experiments.floor", *common, *options, *where), limit_s)

    def kernels(precision: str) -> Part:
        options = ("--precision", precision, "--context", "40" if rehearse else "500")
        steps = ("--steps", "1" if rehearse else "10")
        return Part(
            f"kernels {precision}", (*module, "profiling.measure.kernels", *common, *options, *steps), 90
        )

    tests = (*module, "pytest", "-m", "gpu", "-q", "tests/test_gpu.py")
    chosen = [
        Part("tests", tests, 150, parsed=False),
        floor("float32", 240),
        floor("bfloat16", 180),
        kernels("float32"),
        kernels("bfloat16"),
    ]
    return [replace(p, limit_s=p.limit_s * REHEARSAL_SLOWER) for p in chosen] if rehearse else chosen


def run_part(part: Part, limit_s: float, log: Path, environment: dict[str, str]) -> Result:
    """Run one part; never raises for what the part does."""
    start = time.monotonic()
    try:
        done = subprocess.run(
            part.command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired as late:
        log.write_bytes((late.stdout or b"") + (late.stderr or b""))
        return Result(part.name, "timed out", time.monotonic() - start, f"after {limit_s:.0f} s")
    except OSError as error:
        return Result(part.name, "failed", time.monotonic() - start, str(error))
    seconds = time.monotonic() - start
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1][:LONGEST_REASON]
    if done.returncode:
        return Result(part.name, "failed", seconds, f"exit code {done.returncode}: {said}")
    if not part.parsed:
        return Result(part.name, "passed", seconds)
    try:
        found = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return Result(part.name, "failed", seconds, "no JSON on the last line")
    return Result(part.name, "passed", seconds, found=found)


def run_all(
    chosen: Sequence[Part],
    out: Path,
    budget_s: float,
    environment: dict[str, str],
    say: Callable[[str], None],
) -> list[Result]:
    """Every part, within the budget; results are on disk after each."""
    deadline, results = time.monotonic() + budget_s, []
    for part in chosen:
        left = deadline - time.monotonic()
        say(f"{part.name} ...")
        if left <= 1:
            results.append(Result(part.name, "not started", 0.0, WHY_NOT_STARTED))
        else:
            log = out / f"{part.name.replace(' ', '-')}.log"
            results.append(run_part(part, min(part.limit_s, left), log, environment))
        say(f"{part.name}: {results[-1].status} {results[-1].reason}")
        store(out, results)
    return results


def store(out: Path, results: Sequence[Result]) -> None:
    content = json.dumps({"schema": 1, "parts": [asdict(result) for result in results]}, indent=1)
    write_atomically(out / "gpu-check.json", content.encode())


def verdict(results: Sequence[Result], rehearse: bool) -> str:
    """One line on the 5 ms floor, from the float32 study; and nothing without one."""
    floor = next((r for r in results if r.name == "floor float32" and r.status == "passed"), None)
    said = "INCONCLUSIVE: the float32 floor study did not finish"
    if floor is not None:
        said = f"{floor.found['verdict']}: {floor.found['verdict_rule']} ({floor.found['device']})"
    return f"REHEARSAL, which says nothing about a GPU: {said}" if rehearse else said


def goals(found: dict[str, Any]) -> dict[str, float | None]:
    """The issue's goals, from one floor study: cudagraph / eager, and rungs / memory floor."""
    rungs = found.get("variants", {})

    def value(rung: str, key: str) -> float | None:
        number = rungs.get(rung, {}).get(key)
        return None if number is None else float(number)

    eager, graph = value("cat", "floor_ms"), value("cudagraph", "floor_ms")
    return {
        "cudagraph / eager": graph / eager if graph and eager else None,
        "triton / memory floor": value("triton", "ratio_to_memory_floor"),
        "onelaunch / memory floor": value("onelaunch", "ratio_to_memory_floor"),
    }


def replay_line(name: str, outcome: dict[str, Any]) -> tuple[str, str, str, str]:
    """What the eager trace predicted of the replay before it was timed, beside what was then measured."""
    low, mid, high = outcome["predicted_ms"]
    within = abs(outcome["ratio"] - 1) <= REPLAY_WITHIN
    return (
        f"replay of {name}",
        "near" if within else "far off",
        "",
        f"{outcome['variant']}: predicted {mid:.3g} ms ({low:.3g} to {high:.3g}) from the eager trace, "
        f"measured {outcome['measured_ms'][1]:.3g} ms, {outcome['ratio']:.2f} of it",
    )


def lines(results: Sequence[Result]) -> list[tuple[str, str, str, str]]:
    """(part, status, seconds, what was found) of the table."""
    rows = []
    for result in results:
        detail = result.reason
        if result.name.startswith("floor") and result.found:
            known = {name: f"{number:.2f}" for name, number in goals(result.found).items() if number}
            detail = (
                ", ".join(f"{name} {number}" for name, number in known.items()) or result.found["verdict"]
            )
        if result.name.startswith("kernels") and result.found:
            rates = [(row["kernel"], row["gb_per_s"]) for row in result.found["kernels"]]
            detail = ", ".join(f"{name} {rate:.3g} GB/s" for name, rate in rates if rate is not None)
        rows.append((result.name, result.status, f"{result.seconds:.0f}", detail))
        if result.found.get("replay_outcome"):
            rows.append(replay_line(result.name, result.found["replay_outcome"]))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = cli.plain_parser("experiments.gpu_check", __doc__ or "", EXAMPLES)
    parser.add_argument("--rehearse", action="store_true", help="the same parts, small and on the CPU")
    parser.add_argument("--budget", type=float, help="seconds for everything (default 600; rehearsing 2400)")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where the folder goes (default runs)")
    arguments = parser.parse_args(argv)
    if not arguments.rehearse:
        _require_a_device()
    from reports.printers.console import show
    from reports.write import write

    out = arguments.out / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-gpu-check"
    out.mkdir(parents=True)
    # interpreted kernels are for the rehearsal only; on a device they must compile
    environment = {**os.environ, "TRITON_INTERPRET": "1" if arguments.rehearse else "0"}
    note = (lambda text: None) if arguments.quiet else (lambda text: print(text, file=sys.stderr))
    budget_s = arguments.budget or BUDGET_S * (REHEARSAL_SLOWER if arguments.rehearse else 1)
    results = run_all(parts(arguments.rehearse, out.absolute()), out, budget_s, environment, note)
    made = page(results, arguments.rehearse)
    write(out, made)
    show(cli.console(arguments), made, f"Report: {out / 'report.md'}, report.html")
    if arguments.json:
        entries = [asdict(result) for result in results]
        cli.print_json({"run": str(out), "parts": entries, "verdict": verdict(results, arguments.rehearse)})
    return int(any(result.status != "passed" for result in results))


def page(results: Sequence[Result], rehearse: bool) -> Page:
    failed = [result.name for result in results if result.status != "passed"]
    passed = f"Failed: {', '.join(failed)}" if failed else "Every part passed"
    answer = [Sentence(passed), Sentence(f"**{verdict(results, rehearse)}**")]
    table = Table(("part", "status", "s", "found"), lines(results), text_columns=4)
    return Page("GPU check", [Section("Answer", answer), Section("Parts", [table])])


def _require_a_device() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UserError("no CUDA device here; --rehearse runs the same parts on the CPU")


if __name__ == "__main__":
    cli.run(main)
