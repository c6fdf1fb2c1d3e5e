"""Question: does the gate catch faults of every kind, in every rung that runs here?

Most faults are wrong in one region only: at one context or at a bucket's end, in numerics that random weights
never exercise, in a loop's last slots, in a stored scale, in a recording, in a page table, or after many
steps. Every one is planted alone in every rung that runs here and has what it breaks: eager, recorded, paged,
with narrow caches or weights, and the one-launch kernels, of which a copy with all faults is compiled. Rungs
that compile each step take part where they are named. Each rung is judged without a fault, too, with other
random texts every time. A fault that no check catches is a hole of the gate, a clean rung that fails a false
alarm; with either, the exit code is 1. A run that is stopped reports what it has; --resume goes on with it.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.shared import cli
from experiments.shared.outcome import page_of, publish
from profiling.results.record import CleanRung, Model, PlantedFault, PlantedRecord
from profiling.results.record.page import Table
from variants.errors import UserError
from variants.ladder import ladder
from variants.spec import Variant

if TYPE_CHECKING:
    from profiling.gate.planted.hunt import Planted
    from profiling.results.folder import RunFolder
    from variants.model import GPT

EXAMPLES = (
    *("", "--variant sdpa,onelaunch-int8", "--kind numerics", "--clean 20"),
    "--resume runs/FOLDER --variant compile --kind numerics",
)
STEPS = 16  # greedy tokens and forced ones
MIN_CONTEXT = 64
CLEAN = 1  # judgements of each rung without a fault


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser("experiments.planted", __doc__ or "", EXAMPLES)
    parser.set_defaults(model="tiny")
    add = parser.add_argument
    add(
        "--variant",
        action="append",
        metavar="NAME,NAME",
        help="plant in these rungs only (default: all but those that compile)",
    )
    add("--clean", type=int, default=CLEAN, metavar="N", help="judge each rung N times without a fault")
    add("--kind", action="append", metavar="NAME,NAME", help="faults of these kinds only (default: all)")
    add(
        "--resume",
        type=Path,
        metavar="RUN",
        help="add to a run what it lacks of what the other flags ask for",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.clean < 0:
        raise UserError(f"--clean counts from 0, got {arguments.clean}")
    resumed = _resume(arguments) if arguments.resume else None
    wanted = cli.names(arguments.variant)
    rungs = cli.chosen("variant", wanted, ladder(arguments.precision))
    from experiments.shared.measured import model_on_device
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder

    model, device = model_on_device(arguments)
    if model.config.n_ctx < MIN_CONTEXT:
        raise UserError(
            f"--model {arguments.model} holds {model.config.n_ctx} tokens, {MIN_CONTEXT} are needed"
        )
    here = [
        rung for rung in rungs if not rung.why_not(device.type) and (wanted or not rung.executor.compiles)
    ]
    pairs = _pairs(here, cli.names(arguments.kind))
    run = resumed or RunFolder.create(arguments.out, PlantedRecord, device.type)
    run.update(
        environment=environment(device),
        model=Model(arguments.model, arguments.precision, model.config),
        seed=arguments.seed,
    )
    whole = False
    try:
        _hunt(arguments, model, run, pairs, here)
        whole = True
    finally:
        verdict = answer(run.record)
        page = page_of(__doc__ or "", run, verdict, tables(run.record))
        publish(arguments, run, page, whole, verdict=verdict)
    return int(bool(holes(run.record) or alarms(run.record)))


def _resume(arguments: argparse.Namespace) -> RunFolder[PlantedRecord]:
    """The run to add to, whose model, precision and seed replace the flags."""
    from profiling.results.folder import RunFolder

    run = RunFolder.resume(arguments.resume, PlantedRecord)
    record = run.record
    if record.model is None or record.environment is None:
        raise UserError(f"{run.path} was interrupted before it planted anything: start anew")
    arguments.model, arguments.precision = record.model.name, record.model.precision
    arguments.seed, arguments.device = record.seed, record.environment.device
    run.warn(f"went on with: {shlex.join(sys.argv[1:])}")
    return run


def _pairs(rungs: Sequence[Variant], kinds: list[str]) -> list[tuple[Planted, Variant]]:
    """Every fault of these kinds with every rung that has what it breaks."""
    from profiling.gate.planted import faults_of_every_kind

    faults = faults_of_every_kind()
    chosen = cli.chosen("kind", kinds, {fault.kind: fault.kind for fault in faults})
    pairs = [(f, rung) for rung in rungs for f in faults if f.kind in chosen and f.fits(rung)]
    if not pairs:
        raise UserError("no fault of these kinds fits any of these rungs here")
    return pairs


def _hunt(
    arguments: argparse.Namespace,
    model: GPT,
    run: RunFolder[PlantedRecord],
    pairs: Sequence[tuple[Planted, Variant]],
    rungs: Sequence[Variant],
) -> None:
    from experiments.shared.progress import ProgressLine
    from profiling.gate.planted.hunt import first_to_catch, gate_for
    from profiling.gate.planted.kernels import build_with_faults

    record = run.record
    planted = {(one.kind, one.fault, one.rung) for one in record.planted}
    judged = {(one.rung, one.seed) for one in record.clean}
    with build_with_faults(), ProgressLine(arguments.quiet) as progress:
        gate = gate_for(model, arguments.precision, STEPS, arguments.seed)
        for number, (fault, rung) in enumerate(pairs):
            if (fault.kind, fault.name, rung.name) in planted:
                continue
            progress(f"{rung.name}: {fault.name}", number, len(pairs))
            check, reason = first_to_catch(rung, gate, fault)
            record.planted.append(PlantedFault(fault.kind, fault.name, rung.name, check, reason))
            run.save()
        for seed in range(arguments.seed, arguments.seed + arguments.clean):
            gate = gate_for(model, arguments.precision, STEPS, seed)
            for rung in rungs:
                if (rung.name, seed) in judged:
                    continue
                progress(f"{rung.name}, as it is", seed - arguments.seed, arguments.clean)
                check, reason = first_to_catch(rung, gate, None)
                record.clean.append(CleanRung(rung.name, seed, check, reason))
                run.save()


# -- what is shown ----------------------------------------------------------------------------


def holes(record: PlantedRecord) -> list[str]:
    """What no check caught."""
    return [f"{one.fault} in {one.rung}" for one in record.planted if not one.caught_by]


def alarms(record: PlantedRecord) -> list[str]:
    """What was refused without a fault."""
    return [f"{one.rung} by {one.refused_by}" for one in record.clean if one.refused_by]


def answer(record: PlantedRecord) -> str:
    """How many faults are caught and clean rungs pass, and every one that is not or does not."""
    planted, clean, missed, refused = record.planted, record.clean, holes(record), alarms(record)
    said = [
        f"{len(planted) - len(missed)} of {len(planted)} planted faults are caught",
        f"{len(clean) - len(refused)} of {len(clean)} judgements without a fault pass",
        *([f"holes of the gate: {', '.join(missed)}"] if missed else []),
        *([f"false alarms: {', '.join(refused)}"] if refused else []),
    ]
    return "; ".join(said)


def tables(record: PlantedRecord) -> list[Table]:
    """Caught by kind and rung; then every fault, with the checks that catch it."""
    faults = record.planted
    rungs = list(dict.fromkeys(one.rung for one in faults))
    kinds = list(dict.fromkeys(one.kind for one in faults))
    counts = [[kind, *(_count(faults, kind, rung) for rung in rungs)] for kind in kinds]
    each = []
    for kind, fault in dict.fromkeys((one.kind, one.fault) for one in faults):
        same = [one for one in faults if (one.kind, one.fault) == (kind, fault)]
        checks = sorted({one.caught_by or "NONE" for one in same})
        each.append([kind, fault, str(len(same)), ", ".join(checks)])
    return [
        Table(["kind", *rungs], counts, len(rungs) + 1, "Caught, of those planted"),
        Table(["kind", "fault", "rungs", "check that fails"], each, 4, "Every fault"),
    ]


def _count(faults: Sequence[PlantedFault], kind: str, rung: str) -> str:
    here = [one for one in faults if (one.kind, one.rung) == (kind, rung)]
    return f"{sum(bool(one.caught_by) for one in here)} of {len(here)}" if here else ""


if __name__ == "__main__":
    cli.run(main)
