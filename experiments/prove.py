"""Question: does your own transformers model, with its caches, compute what it computes without them?

The model is a folder in the Hugging Face layout, of any causal type that transformers knows, and runs in its
own code: `hf` with the growing cache, `hf-static` with a preallocated one, the others that step compiled,
recorded or captured. The truth is the model's own forward pass over the whole text, in float64 and without a
cache. Each rung goes through every check of the gate: greedy and forced tokens, chunks, rewinding, a second
prompt, noise in free slots, the cache's contents, capacity, and rows of a batch. Nothing is timed:
experiments.floor does that, with the same names.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.shared import cli
from experiments.shared.outcome import page_of, publish
from profiling.results.record import GateCheck, GateResult, Model, ProveRecord
from profiling.results.record.page import Bullets, Table
from variants.errors import UserError, one_line
from variants.hub import fetched, folder_of
from variants.ladder import transformers_ladder
from variants.spec import Variant

if TYPE_CHECKING:
    from profiling.gate.gate import Gate

EXAMPLES = ("--model path/to/folder", "--model path/to/folder --capacity 512 --variant hf,hf-static")
MIN_CAPACITY = 40  # tokens that the checks need
STEPS, QUICK_STEPS = 48, 16  # greedy tokens, and at most as many random ones


def parser() -> argparse.ArgumentParser:
    parser = cli.plain_parser("experiments.prove", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("--model", metavar="FOLDER", help="with config.json and safetensors; or hub:ORG/NAME[@REVISION]")
    add("--variant", action="append", metavar="NAME,NAME", help="only these (default: all that run here)")
    add("--device", choices=cli.DEVICES, default="auto", help="where to run (auto: cuda, else mps, else cpu)")
    add("--precision", choices=("float32", "bfloat16"), default="float32", help="of the weights")
    add("--capacity", type=int, default=128, metavar="N", help="slots of the caches")
    add("--quick", action="store_true", help=f"{QUICK_STEPS} greedy tokens instead of {STEPS}")
    add("--seed", type=int, default=0, help="of the prompts")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.model is None:
        raise UserError("--model is missing: give a folder in the Hugging Face layout")
    if arguments.capacity < MIN_CAPACITY:
        raise UserError(f"--capacity {arguments.capacity}: the checks need at least {MIN_CAPACITY} slots")
    rungs = cli.chosen("variant", cli.names(arguments.variant), transformers_ladder(arguments.precision))
    import torch

    from experiments.shared.progress import ProgressLine
    from experiments.shared.setup import device_for, silence_libraries
    from profiling.gate.transformers_gate import TransformersGate
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder
    from variants.backends.transformers_model import load_transformers_model

    silence_libraries()
    device = device_for(arguments.device)
    if arguments.variant:
        _refuse_impossible(rungs, device.type)
    rungs = [rung for rung in rungs if rung.why_not(device.type) is None]
    dtype = getattr(torch, arguments.precision)
    name = fetched(arguments.model)
    model = load_transformers_model(folder_of(name), dtype, device, arguments.capacity)
    capacity, steps = model.config.n_ctx, QUICK_STEPS if arguments.quick else STEPS
    gate = TransformersGate(
        model, arguments.precision, capacity=capacity, steps=steps, forced=steps, seed=arguments.seed
    )
    run = RunFolder.create(arguments.out, ProveRecord, device.type)
    run.update(environment=environment(device), model=Model(name, arguments.precision, model.config))
    proofs = run.record.proofs
    with ProgressLine(arguments.quiet) as progress:
        for number, variant in enumerate(rungs):
            progress(f"prove {variant.name}", number, len(rungs))
            proofs[variant.name] = _proof(variant, gate, capacity)
            run.save()
    verdict = answer(proofs)
    notes = [model.implementations, f"{capacity} slots", *model.notes(capacity)]
    page = page_of(__doc__ or "", run, verdict, [*tables(proofs), Bullets(notes)])
    return publish(arguments, run, page, proofs=proofs, verdict=verdict)


def _refuse_impossible(rungs: Sequence[Variant], device: str) -> None:
    for variant in rungs:
        if reason := variant.why_not(device):
            raise UserError(f"{variant.name}: {reason}")


def _proof(variant: Variant, gate: Gate, capacity: int) -> GateResult:
    """What the gate says; a rung that cannot be built has failed."""
    from variants.decoder import Decoder

    try:
        decoder = Decoder.of(variant, gate.model, capacity=capacity)
    except Exception as error:  # whatever transformers does not do with this model, the others are proven
        return GateResult(0, [GateCheck("build", "fail", one_line(error))])
    return gate.check(decoder)


# -- what is shown ----------------------------------------------------------------------------


def answer(proofs: Mapping[str, GateResult]) -> str:
    """The verdict: which rungs compute the reference, and the first check that each other one fails."""
    failed = {name: proof.reason for name, proof in proofs.items() if proof.status == "fail"}
    if not failed:
        return f"PROVEN. {', '.join(proofs)}: every check against the model's own uncached forward pass"
    return "FAILED. " + "; ".join(f"{name}: {reason}" for name, reason in failed.items())


def tables(proofs: Mapping[str, GateResult]) -> list[Table]:
    """Per rung the outcome and the check that came nearest to its allowance; then every check."""
    heads = ("variant", "outcome", "greedy tokens", "checks", "nearest", "of what is allowed")
    rows = []
    for name, proof in proofs.items():
        shares = {c.check: c.errors.nearness for c in proof.checks if c.errors and c.errors.nearness}
        nearest = max(shares, key=lambda check: shares[check], default="")
        cells = (str(proof.greedy_steps), str(len(proof.checks)), nearest)
        rows.append((name, proof.status, *cells, f"{shares[nearest]:.0%}" if shares else ""))
    names = list(dict.fromkeys(check.check for proof in proofs.values() for check in proof.checks))
    outcome = {n: {c.check: c.status for c in proof.checks} for n, proof in proofs.items()}
    each = [(name, *(outcome[n].get(name, "not reached") for n in proofs)) for name in names]
    return [Table(heads, rows, 5, "Proofs"), Table(("check", *proofs), each, len(proofs) + 1, "Every check")]


if __name__ == "__main__":
    cli.run(main)
