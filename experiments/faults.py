"""Question: which silent bugs of a KV cache does the gate catch, and what does the text look like meanwhile?

Claim (articles 1-3): wrong values in correct shapes do not crash, greedy text can stay right while the cache
is wrong, and a check of cached against naive catches them.

Each known bug is injected into a working variant. Right and broken text stand side by side, every check of
the gate is run on the broken decoder, and a bug that no check catches is a hole: the claim fails. Random
models get blocks at the scale 1/sqrt(width), so that their text depends on what the cache holds. A model with
a tokenizer.json writes words: `--model shakespeare`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from experiments.shared import cli
from experiments.shared.outcome import Outcome, conclude
from experiments.shared.published import Check
from experiments.shared.text import encoded, load_tokenizer
from profiling.results.record import FaultsRecord, Finding, Model, Workload
from profiling.results.record.page import Table
from variants.config import PRESETS
from variants.errors import UserError
from variants.hub import folder_of

EXAMPLES = ("", "--quick", "--model shakespeare --fault 'mask off'")
CAPACITY, TEXT_CAPACITY = 64, 128  # enough for every check, and for words; more would only cost time
MIN_CONTEXT = 40  # tokens that the conversation and the gate's checks need
STEPS, QUICK_STEPS = 48, 24  # greedy tokens
WINDOW, LETTERS = 6, 28  # tokens and letters shown around the first difference
PRODUCED, FIRST, LAST = 28, 8, 12  # tokens of a session: all, behind its first and its last prompt
TEXT = """To be, or not to be,--that is the question:--
Whether 'tis nobler in the mind to suffer
The slings and arrows of outrageous fortune
"""  # what the sessions of a model with a tokenizer are about
NOTHING = "no difference"


def parser() -> argparse.ArgumentParser:
    usual, quick = Workload(steps=STEPS), Workload(steps=QUICK_STEPS)
    parser = cli.common_parser("experiments.faults", __doc__ or "", EXAMPLES, usual, quick, used=("steps",))
    parser.set_defaults(model="tiny")
    parser.add_argument("--fault", action="append", metavar="NAME,NAME", help="only these (default: all)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    import torch

    from experiments.shared.demo import attentive
    from experiments.shared.measured import model_on_device
    from experiments.shared.progress import ProgressLine
    from profiling.gate import Gate
    from profiling.gate.examine import examine
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
    tokenizer = load_tokenizer(folder_of(arguments.model))
    text = torch.tensor(encoded(tokenizer, TEXT)) if tokenizer else None
    steps = arguments.steps or (QUICK_STEPS if arguments.quick else STEPS)
    capacity = min(model.config.n_ctx, CAPACITY if text is None else TEXT_CAPACITY)
    common = {"capacity": capacity, "steps": steps, "seed": arguments.seed}
    gates = {
        batch: Gate(model, arguments.precision, batch=batch, **common)
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
            gate = gates[fault.batch]
            findings.append(examine(fault, model, arguments.precision, gate, arguments.seed, text))
            run.save()
    return conclude(arguments, __doc__ or "", run, outcome(findings, tokenizer))


# -- what is shown ----------------------------------------------------------------------------


def difference(right: list[int] | str, broken: list[int] | str, tokenizer: Any = None) -> tuple[str, str]:
    """The two texts around their first difference: as token ids, or as letters where there is a tokenizer."""
    if isinstance(right, str) or isinstance(broken, str):
        return tuple(_shortened(text, tokenizer) for text in (right, broken))  # type: ignore[return-value]
    first = next((i for i, pair in enumerate(zip(right, broken, strict=True)) if pair[0] != pair[1]), None)
    start = max(0, (first or 0) - 1)
    shown, other = (written(text[start:], tokenizer) for text in (right, broken))
    return shown, NOTHING if first is None else other


def written(tokens: Sequence[int], tokenizer: Any) -> str:
    """The first of these tokens, on one line: as ids, or as letters where there is a tokenizer."""
    if tokenizer is None:
        return " ".join(map(str, tokens[:WINDOW]))
    text: str = tokenizer.decode(list(tokens[:LETTERS]), skip_special_tokens=False)
    return "".join(sign if sign.isprintable() else "·" for sign in text[:LETTERS])


def _shortened(text: list[int] | str, tokenizer: Any) -> str:
    return text.partition(":")[0] if isinstance(text, str) else written(text, tokenizer)


def outcome(findings: Sequence[Finding], tokenizer: Any = None) -> Outcome:
    """Two tables (text; checks), and the articles' sentences with the rule that decides each."""
    holes = [f.fault for f in findings if not f.caught_by]
    crashed = [f.fault for f in findings if f.crashed]
    past_greedy = [f.fault for f in findings if f.caught_by and "greedy" not in f.caught_by]
    n = len(findings)
    text = Table(
        ("fault", "right", "broken"),
        [(f.fault, *difference(f.right, f.broken, tokenizer)) for f in findings],
        text_columns=3,
        title="Text of the right and the broken decoder "
        + ("(· is a new line), where they part" if tokenizer else "(token ids), where they part"),
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
        *_texts({f.fault: f for f in findings}, tokenizer),
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


def _texts(by_name: dict[str, Finding], tokenizer: Any) -> list[Check]:
    """What the articles' models wrote under a bug, beside ours."""
    checks = []
    if (frozen := by_name.get("new tokens not appended")) and not frozen.crashed:
        right, broken = (_part(text, first=True) for text in (frozen.right, frozen.broken))
        here = f"{len({*broken})} distinct of {len(broken)} instead of {len({*right})}"
        checks.append(
            Check("faults.frozen", here, "frozen is fewer than before", len({*broken}) < len({*right}))
        )
    if (other := by_name.get("another requests cache")) and not other.crashed:
        right, broken = (_part(text, first=False) for text in (other.right, other.broken))
        here = f"{broken[:8]} instead of {right[:8]}"
        checks.append(Check("faults.leak.text", here, "another model's tokens after its second prompt"))
    if tokenizer and (position := by_name.get("position starts at 0")):
        right, broken = (_part(text, first=False) for text in (position.right, position.broken))
        why = f"position starts at 0; right: {written(right, tokenizer)}"
        checks.append(Check("faults.text", written(broken, tokenizer), why))
    return checks


def _part(produced: list[int] | str, first: bool) -> list[int]:
    """Tokens behind the first prompt of a conversation, or behind its last."""
    assert isinstance(produced, list)
    times = len(produced) // PRODUCED
    return produced[: FIRST * times] if first else produced[-LAST * times :]


if __name__ == "__main__":
    cli.run(main)
