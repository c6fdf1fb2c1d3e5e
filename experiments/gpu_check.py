"""Does everything that only a GPU can tell hold on this one, and is the 5 ms floor launch overhead here?

Eight minutes, one command: the Triton kernels compiled ahead on all cores, the floor study (gate, times,
traces, prediction against the measured replay) in float32 and bfloat16, what each Triton kernel reaches and
how long each phase of the one launch takes, tests marked `gpu`. Every part runs in a process of its own under
a time limit, PyTorch's own kernels first: a kernel that breaks the device's context costs its part. Results,
report and verdict are written after each part; folder and archive (below 16 MB) hold what the parts said and
their run folders. Exit code 1 if a part failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from experiments.shared import cli
from experiments.shared.parts import Part, Result, archive, run_all
from profiling.results.record.page import Page, Section, Sentence, Table
from variants.errors import UserError

ROOT = Path(__file__).parent.parent
BUDGET_S = 480
REHEARSAL_SLOWER = 4  # a CPU that others use may take this many times a part's limit
EXAMPLES = ("", "--budget 300", "--part 'triton float32,kernels float32'", "--rehearse")
REPLAY_WITHIN = 0.15  # the goal of the prediction
RUNGS = ("cudagraph,compile-cudagraph,compile", "triton", "onelaunch,onelaunch-graph")
MODULE = (sys.executable, "-m")
SAFE = "not (triton or launch)"  # tests whose kernels are PyTorch's own


def tests(name: str, which: str, limit_s: float) -> Part:
    """Those of `test_gpu.py` that pytest's -k chooses."""
    command = (*MODULE, "pytest", "-m", "gpu", "-q", "tests/test_gpu.py", "-k", which)
    return Part(name, command, limit_s, parsed=False)


def ahead(rehearse: bool, model: str, contexts: str) -> Part:
    """The kernels of a study of this model compiled, on all cores."""
    options = ["--model", model, "--context", contexts, "--precision", "float32"]
    options += ["--arch", "90", "--kernel", "attend_kernel"] if rehearse else ["bfloat16"]
    command = (*MODULE, "profiling.measure.ahead", *options)
    return Part("kernels ahead", command, 90, environment={"TRITON_INTERPRET": "0"})


def parts(rehearse: bool, out: Path) -> list[Part]:
    """What is run: first what launches PyTorch's kernels alone, then each kernel that never ran on a device,
    in a process of its own. Tests of kernels come last: they compile some two hundred small ones, and what a
    study times it has proven itself. A rehearsal runs the same parts small and on the CPU."""
    device, model = ("cpu", "tiny") if rehearse else ("cuda", "gpt2")
    llama = "tiny-llama" if rehearse else "smollm2-135m"
    contexts = "5,40" if rehearse else "10,100,1000"
    scale = ("--quick", "--rounds", "2", "--steps", "4") if rehearse else ("--rounds", "10", "--steps", "10")
    safe, fused, one = ("tape", "boolmask", "onelaunch") if rehearse else RUNGS
    common = ("--device", device, "--model", model)
    of_llama = ("--device", device, "--shape", llama)

    def floor(
        name: str, precision: str, rungs: str, duel: str, limit_s: float, of: Sequence[str] = common
    ) -> Part:
        runs = out / f"{name} {precision}".replace(" ", "-")
        options = ("--precision", precision, "--variant", rungs, "--context", contexts, "--max-time", duel)
        where = ("--out", str(runs), "--json", "--quiet")
        command = (*MODULE, "experiments.floor", *of, *options, *scale, *where)
        return Part(f"{name} {precision}", command, limit_s, runs=runs)

    def measured(what: str, precision: str, steps: str) -> Part:
        size = ("--context", "40" if rehearse else "500", "--steps", "1" if rehearse else steps)
        command = (*MODULE, f"profiling.measure.{what}", *common, "--precision", precision, *size)
        return Part(f"{what} {precision}", command, 45)

    chosen = [
        ahead(rehearse, model, contexts),
        floor("floor", "float32", safe, "20s", 150),
        floor("floor", "bfloat16", safe, "10s", 100),
        tests("tests", SAFE, 60),
        floor("triton", "float32", fused, "5s", 60),
        floor("onelaunch", "float32", one, "5s", 60),
        measured("kernels", "float32", "10"),
        floor("triton", "bfloat16", fused, "5s", 60),
        floor("onelaunch", "bfloat16", one, "5s", 60),
        measured("kernels", "bfloat16", "10"),
        measured("phases", "float32", "50"),
        measured("phases", "bfloat16", "50"),
        floor("llama triton", "bfloat16", fused, "5s", 90, of_llama),
        floor("llama onelaunch", "bfloat16", one, "5s", 90, of_llama),
        tests("tests of kernels", f"not ({SAFE})", 120),
    ]
    return [replace(p, limit_s=p.limit_s * REHEARSAL_SLOWER) for p in chosen] if rehearse else chosen


def verdict(results: Sequence[Result], rehearse: bool) -> str:
    """One line on the 5 ms floor, from the float32 study; and nothing without one."""
    floor = next((r for r in results if r.name == "floor float32" and r.output), None)
    answer = "INCONCLUSIVE: the float32 floor study left nothing"
    if floor is not None:
        answer = f"{floor.output['verdict']}: {floor.output['verdict_rule']} ({floor.output['device']})"
    return f"REHEARSAL, which says nothing about a GPU: {answer}" if rehearse else answer


def goals(study: dict[str, Any]) -> dict[str, float | None]:
    """The issue's goals, from one floor study: cudagraph / eager, and rungs / memory floor."""
    rungs = study.get("variants", {})

    def value(rung: str, key: str) -> float | None:
        number = rungs.get(rung, {}).get(key)
        return None if number is None else float(number)

    eager, graph = value("cat", "floor_ms"), value("cudagraph", "floor_ms")
    return {
        "cudagraph / eager": graph / eager if graph and eager else None,
        "triton / memory floor": value("triton", "ratio_to_memory_floor"),
        "onelaunch / memory floor": value("onelaunch-graph", "ratio_to_memory_floor"),
    }


def replay_line(name: str, outcome: dict[str, Any]) -> tuple[str, str, str, str]:
    """A row of the table: the replay as the eager trace predicted it, beside what was then measured."""
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
    """The rows of the table: part, status, seconds, and the numbers that it brought."""
    rows = []
    for result in results:
        detail = result.reason
        if "verdict" in result.output:
            known = [f"{name} {number:.2f}" for name, number in goals(result.output).items() if number]
            detail = "; ".join(filter(None, (detail, ", ".join(known) or result.output["verdict"])))
        if "compiled" in result.output:
            slowest = result.output["slowest"]
            detail = f"{result.output['compiled']} kernels for {result.output['arch']}, the slowest "
            detail += f"{slowest['kernel']} in {slowest['seconds']:.0f} s"
        if "kernels" in result.output:
            rates = [(row["kernel"], row["gb_per_s"]) for row in result.output["kernels"]]
            detail = ", ".join(f"{name} {rate:.3g} GB/s" for name, rate in rates if rate is not None)
        if "phases" in result.output:
            detail = ", ".join(f"{row['phase']} {row['us']:.3g} us" for row in result.output["phases"])
        rows.append((result.name, result.status, f"{result.seconds:.0f}", detail))
        if result.output.get("replay_outcome"):
            rows.append(replay_line(result.name, result.output["replay_outcome"]))
    return rows


def parser() -> argparse.ArgumentParser:
    parser = cli.plain_parser("experiments.gpu_check", __doc__ or "", EXAMPLES)
    parser.add_argument("--rehearse", action="store_true", help="the same parts, small and on the CPU")
    parser.add_argument(
        "--budget",
        type=float,
        help=f"seconds for everything (default {BUDGET_S}; rehearsing {BUDGET_S * REHEARSAL_SLOWER})",
    )
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where the folder goes")
    parser.add_argument(
        "--part", action="append", metavar="NAME,NAME", help="only these parts (default: all, in their order)"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if not arguments.rehearse:
        _require_a_device()
    out = arguments.out / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-gpu-check"
    known = {part.name: part for part in parts(arguments.rehearse, out.absolute())}
    chosen = cli.chosen("part", cli.names(arguments.part), known)
    from reports.printers.console import show
    from reports.write import write

    out.mkdir(parents=True)
    # interpreted kernels are for the rehearsal only; on a device they must compile
    environment = {**os.environ, "TRITON_INTERPRET": "1" if arguments.rehearse else "0"}
    budget_s = arguments.budget or BUDGET_S * (REHEARSAL_SLOWER if arguments.rehearse else 1)

    def after(results: Sequence[Result]) -> None:
        write(out, page(results, arguments.rehearse))
        if not arguments.quiet:
            print(f"{results[-1].name}: {results[-1].status} {results[-1].reason}", file=sys.stderr)

    results = run_all(chosen, out, ROOT, budget_s, environment, after)
    packed, left_out = archive(out)
    beside = f"; too large for it: {', '.join(left_out)}" if left_out else ""
    where = f"Report: {out / 'report.md'}, report.html; all of it: {packed}{beside}"
    show(cli.console(arguments), page(results, arguments.rehearse), where)
    if arguments.json:
        entries = [asdict(result) for result in results]
        cli.print_json(
            {
                "run": str(out),
                "archive": str(packed),
                "parts": entries,
                "verdict": verdict(results, arguments.rehearse),
            }
        )
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
