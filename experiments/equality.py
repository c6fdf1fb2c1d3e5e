"""Question: does our model compute what transformers' own code computes with the same weights, and does the
cached loop write the tokens of the uncached one?

Claim (article 2): logits match Hugging Face's GPT-2 to about ten float32 rounding steps of the largest;
cached and uncached greedy generation write identical tokens, 200 of them.

One text goes through both models, and each writes from one prompt. Nothing is timed. Without transformers our
own loops alone are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.shared import cli
from experiments.shared.outcome import Outcome, conclude
from experiments.shared.published import Check
from profiling.results.record import EqualityRecord, Model
from profiling.results.record.page import Table
from variants.errors import UserError
from variants.ladder import BASELINE, THEIRS, ladder, roles, transformers_ladder

if TYPE_CHECKING:
    from variants.spec import Variant

EXAMPLES = ("", "--quick", "--model FOLDER")
TEXT, PROMPT, NEW, QUICK_NEW = 256, 10, 200, 24  # tokens
MANY = 100  # rounding steps that are still rounding
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def main(argv: Sequence[str] | None = None) -> int:
    parser = cli.common_parser("experiments.equality", __doc__ or "", EXAMPLES, used=())
    arguments = parser.parse_args(argv)
    from experiments.shared.setup import device_for, models_for, silence_libraries
    from profiling.gate.oracle import random_stream
    from profiling.gate.purity import greedy
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder
    from variants.decoder import Decoder

    silence_libraries()
    device = device_for(arguments.device)
    rungs = _rungs(arguments.precision, device.type)
    models = models_for(arguments, device, rungs)
    config = models[0].config
    text = min(TEXT, config.n_ctx)
    new = min(QUICK_NEW if arguments.quick else NEW, config.n_ctx - min(PROMPT, text))
    if arguments.batch != 1 or new < 1:
        raise UserError("one row is compared, of a model with room for a prompt: --batch 1")
    tokens = random_stream(config.vocab_size, 1, text, arguments.seed).to(device)
    run = RunFolder.create(arguments.out, EqualityRecord, device.type)
    wrote, logits = {}, []
    for rung in rungs:
        model = models[-1] if roles(rung) is THEIRS else models[0]
        decoder = Decoder.of(rung, model, capacity=config.n_ctx)
        if rung.cache.keeps:
            logits.append(decoder.extend(tokens)[0].double())
            decoder.reset()
        ids, _ = greedy(decoder, tokens[:, :PROMPT], new)
        wrote[rung.name] = ids[0].tolist()
    ours, *theirs = logits
    apart = max((float((ours - other).abs().max()) for other in theirs), default=None)
    run.update(
        environment=environment(device),
        model=Model(arguments.model, arguments.precision, config),
        apart=apart,
        largest=float(ours.abs().max()),
        tokens=wrote,
    )
    return conclude(arguments, __doc__ or "", run, outcome(run.record))


def _rungs(precision: str, device: str) -> list[Variant]:
    """Ours without a cache and with one, and transformers' with its own, where that runs here."""
    ours = ladder(precision)
    theirs = transformers_ladder(precision)[THEIRS.baseline]
    return [ours["naive"], ours[BASELINE], *([theirs] if theirs.why_not(device) is None else [])]


# -- what is shown ----------------------------------------------------------------------------


def outcome(record: EqualityRecord) -> Outcome:
    assert record.model is not None and record.model.precision is not None and record.largest is not None
    wrote = record.tokens
    new, rows = len(wrote[BASELINE]), []
    for name, ids in wrote.items():
        same = next(
            (i for i, pair in enumerate(zip(ids, wrote["naive"], strict=True)) if len({*pair}) > 1), new
        )
        rows.append((name, f"{same} of {new}", " ".join(map(str, ids[:8]))))
    same = len({tuple(ids) for ids in wrote.values()}) == 1
    table = Table(
        ("rung", "as without a cache", "begins with"), rows, 3, f"{new} greedy tokens after {PROMPT}"
    )
    checks, what = [], f"{', '.join(wrote)} write {'the same' if same else 'different'} {new} tokens"
    notes = [] if THEIRS.baseline in wrote else ["transformers is not installed: its code is not compared"]
    if record.apart is not None:
        steps = record.apart / (EPSILON[record.model.precision] * record.largest)
        at = f"{record.apart:.2e} at logits up to {record.largest:.1f}"
        why = f"{at}, {record.model.precision}; at most {MANY}"
        checks.append(Check("equality.logits", f"{steps:.1f} rounding steps", why, steps <= MANY))
        what += f", logits differ by {steps:.1f} rounding steps of the largest"
    if new >= NEW:
        here = f"{'identical' if same else 'different'} over {new} tokens"
        checks.append(Check("equality.tokens", here, f"of {', '.join(wrote)}", same))
    else:
        notes.append(f"{new} tokens: the article's sentence is about {NEW}")
    return Outcome(what, checks, [table], notes, also=same)


if __name__ == "__main__":
    cli.run(main)
