"""Question: which silent bugs of a KV cache does the gate catch, and what does the text look like meanwhile?

Claim (articles 1-3): wrong values in correct shapes do not crash, greedy text can stay right while the cache
is wrong, and a check of cached against naive catches them.

Each known bug is injected into a working variant. Right and broken text stand side by side, every check of
the gate is run on the broken decoder, and a bug that no check catches is a hole: the claim fails. Random
models get blocks at the scale 1/sqrt(width), so that their text depends on what the cache holds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.shared import cli
from experiments.shared.outcome import Outcome, conclude
from experiments.shared.published import Check
from profiling.results.record import FaultsRecord, Finding, Model, Workload
from profiling.results.record.page import Table
from variants.config import PRESETS
from variants.errors import UserError

if TYPE_CHECKING:
    pass

EXAMPLES = ("", "--quick", "--model runs/gpt2-weights --fault 'mask off'")
MIN_CONTEXT = 40  # tokens that the conversation and the gate's checks need
STEPS, QUICK_STEPS = 48, 24  # greedy tokens
WINDOW = 6  # tokens shown around the first difference
NOTHING = "no difference"


def parser() -> argparse.ArgumentParser:
    usual, quick = Workload(steps=STEPS), Workload(steps=QUICK_STEPS)
    parser = cli.common_parser("experiments.faults", __doc__ or "", EXAMPLES, usual, quick, used=("steps",))
    parser.set_defaults(model="tiny")
    parser.add_argument("--fault", action="append", metavar="NAME,NAME", help="only these (default: all)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    from experiments.shared.demo import attentive
    from experiments.shared.measured import model_on_device
    from experiments.shared.progress import ProgressLine
    from profiling.gate import Gate
    from profiling.gate.examine import capacity, examine
    from profiling.gate.faults import FAULTS
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder

    model, device = model_on_device(arguments)
    if model.config.n_ctx < MIN_CONTEXT:
        raise UserError(
            f"--model {arguments.model} holds {model.config.n_ctx} tokens, {MIN_CONTEXT} are needed"
        )
    chosen = cli.chosen("fault", cli.names(arguments.fault), {fault.name: fault for fault in FAULTS})
    if arguments.model in PRESETS:
        model = attentive(model)
    steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    gates = {
        batch: Gate(
            model,
            arguments.precision,
            batch=batch,
            capacity=capacity(model),
            steps=steps,
            seed=arguments.seed,
        )
        for batch in {fault.batch for fault in chosen}
    }
    run = RunFolder.create(arguments.out, FaultsRecord, device.type)
    run.update(
        environment=environment(device),
        model=Model(arguments.model, arguments.precision, model.config),
    )
    findings = run.record.faults
    with ProgressLine(arguments.quiet) as progress:
        for number, fault in enumerate(chosen):
            progress(f"fault: {fault.name}", number, len(chosen))
            findings.append(examine(fault, model, arguments.precision, gates[fault.batch], arguments.seed))
            run.save()
    return conclude(arguments, __doc__ or "", run, outcome(findings))


# -- what is shown ----------------------------------------------------------------------------


def difference(right: list[int] | str, broken: list[int] | str) -> tuple[str, str]:
    """The two texts around their first difference, as token ids."""
    if isinstance(right, str) or isinstance(broken, str):
        return tuple(_shortened(text) for text in (right, broken))  # type: ignore[return-value]
    first = next((i for i, pair in enumerate(zip(right, broken, strict=True)) if pair[0] != pair[1]), None)
    if first is None:
        return _ids(right[:WINDOW]), NOTHING
    start = max(0, first - 1)
    return _ids(right[start : start + WINDOW]), _ids(broken[start : start + WINDOW])


def _ids(tokens: list[int]) -> str:
    return " ".join(map(str, tokens))


def _shortened(text: list[int] | str) -> str:
    return text.partition(":")[0] if isinstance(text, str) else _ids(text[:WINDOW])


def outcome(findings: Sequence[Finding]) -> Outcome:
    """Two tables (text; checks), and the articles' sentences with the rule that decides each."""
    holes = [f.fault for f in findings if not f.caught_by]
    crashed = [f.fault for f in findings if f.crashed]
    past_greedy = [f.fault for f in findings if f.caught_by and "greedy" not in f.caught_by]
    n = len(findings)
    text = Table(
        ("fault", "right", "broken"),
        [(f.fault, *difference(f.right, f.broken)) for f in findings],
        text_columns=3,
        title="Text of the right and the broken decoder (token ids), where they part",
    )
    checks = Table(
        ("fault", "from", "checks", "first that fails"),
        [(f.fault, f.source, str(len(f.caught_by)), next(iter(f.caught_by), "HOLE")) for f in findings],
        text_columns=4,
        title="What catches it: checks of the gate that fail on the broken decoder",
    )
    statements = [
        Check("faults.silent", f"{n - len(crashed)} of {n} silent", ", ".join(crashed), not crashed),
        Check(
            "faults.caught",
            f"{n - len(holes)} of {n} caught",
            f"holes of the gate: {', '.join(holes)}" if holes else "",
            not holes,
        ),
        *_single_statements({f.fault: f for f in findings}),
    ]
    notes = [
        f"{len(past_greedy)} of {n} pass the greedy tokens of one prompt and are caught by another check: "
        + (", ".join(past_greedy) or "none"),
        "the text is a conversation's: prompt, text, three tokens at once, rewind, second prompt",
    ]
    what = f"{n - len(holes)} of {n} silent bugs are caught by the gate"
    return Outcome(what, statements, [text, checks], notes)


def _single_statements(by_name: dict[str, Finding]) -> list[Check]:
    """Sentences of the articles about one bug each, where it was injected."""
    checks = []
    order, position = by_name.get("new before old"), by_name.get("position starts at 0")
    if order:
        missed = "greedy" not in order.caught_by and bool(order.caught_by)
        checks.append(
            Check("faults.missed", "greedy passes, chunks fail" if missed else "all fail", "", missed)
        )
    if position:
        differs = position.right != position.broken
        checks.append(Check("faults.position", "the text differs" if differs else "same text", "", differs))
    if past := by_name.get("positions wrap past the context"):
        refused = isinstance(past.right, str) and isinstance(past.broken, list)
        checks.append(Check("faults.past", "refused" if refused else "accepted", "", refused))
    if other := by_name.get("another requests cache"):
        leaks = other.right != other.broken
        checks.append(Check("faults.leak", "the text differs" if leaks else "same text", "", leaks))
    return checks


if __name__ == "__main__":
    cli.run(main)
