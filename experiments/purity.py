"""Question: why may keys and values be kept at all, and what happens to a cache without the causal mask?

Claim (articles 2 and 3): with the mask a new token changes no earlier attention row, exactly 0; without it,
or with a layer that mixes positions (a norm over the sequence), all earlier states change, cached logits
drift from recomputed ones and the argmax flips. With it, cached and naive logits agree in float64.

Random models get blocks at the scale 1/sqrt(width), so that attention matters at any width. The articles'
numbers come from random weights of their own: what does not depend on them is reproduced; the rest stands
beside ours for the article's toy (`toy`, the default), of the same head, rows and text lengths.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from experiments.shared import cli
from experiments.shared.outcome import Outcome, conclude
from experiments.shared.published import Check
from profiling.results.record import Agreement, Model, Purity, PurityRecord, Workload
from profiling.results.record.page import Figure, Table
from profiling.results.record.pictures import Curves
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError

EXAMPLES = ("", "--quick", "--model gpt2 --context 4,16,64")
PROMPT_IDS, NEW = (3, 17, 42, 8), 12  # the third article's
CONTEXTS, QUICK = (4, 8, 16, 32, 64, 128, 256, 512), 3
NEAR_ROUNDING = 1e-13  # float64, logits, keys and values of order 1
OTHERS = "random weights of their own"
WORDS = {"causal": "causal mask", "unmasked": "no mask", "norm": "norm over the sequence"}


def parser() -> argparse.ArgumentParser:
    usual, quick = Workload(contexts=CONTEXTS), Workload(contexts=CONTEXTS[:QUICK])
    parser = cli.common_parser("experiments.purity", __doc__ or "", EXAMPLES, usual, quick, used=("context",))
    parser.set_defaults(model="toy", precision="float64")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    import torch

    from experiments.shared.demo import attentive
    from experiments.shared.measured import model_on_device
    from profiling.gate.purity import agreement, measure, norms_of_queries
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder

    model, device = model_on_device(arguments)
    contexts = _contexts(arguments, model.config)
    if arguments.model in PRESETS:
        model = attentive(model)
    run = RunFolder.create(arguments.out, PurityRecord, device.type)
    by_kind = {kind: [measure(model, kind, n, arguments.seed) for n in contexts] for kind in WORDS}
    new = min(NEW, model.config.n_ctx - len(PROMPT_IDS))
    rungs = agreement(model, arguments.precision, len(PROMPT_IDS), new, arguments.seed)
    prompt = torch.tensor([PROMPT_IDS], device=device) % model.config.vocab_size
    text, norms = norms_of_queries(model, prompt, new)
    run.update(
        environment=environment(device),
        model=Model(arguments.model, arguments.precision, model.config),
        purity=by_kind,
        agreement=rungs,
        tokens=text.tolist(),
        query_norms=norms,
    )
    return conclude(arguments, __doc__ or "", run, outcome(run.record))


def _contexts(arguments: argparse.Namespace, config: GPTConfig) -> list[int]:
    """Tokens before the appended one."""
    limit = config.n_ctx - 1
    default = CONTEXTS[:QUICK] if arguments.quick else CONTEXTS
    contexts = sorted(set(arguments.context or [n for n in default if n <= limit]))
    if contexts[0] < 2 or contexts[-1] > limit:
        raise UserError(f"--context must be between 2 and {limit}: one token is appended to it")
    if arguments.batch != 1:
        raise UserError(f"--batch {arguments.batch}: this compares two passes over one text, so 1")
    return contexts


# -- what is shown ----------------------------------------------------------------------------


def outcome(record: PurityRecord) -> Outcome:
    assert record.model is not None and record.model.precision is not None  # stored with the rest
    by_kind, rungs, precision = record.purity, record.agreement, record.model.precision
    tables = [_rows_table(by_kind), _changes_table(by_kind), _agreement_table(rungs, precision)]
    causal, unmasked, norm = (by_kind[kind] for kind in WORDS)
    lines = {
        WORDS[kind]: [(float(r.context), r.drift) for r in rows if r.drift > 0]
        for kind, rows in by_kind.items()
    }
    figure = Figure(
        "purity",
        "Largest difference of cached and recomputed logits after one more token.",
        [
            Curves(
                "tokens before the appended one",
                "max |cached - recomputed|",
                {name: points for name, points in lines.items() if points},
            )
        ],
    )
    checks = [
        *_mask_statements(causal, unmasked, norm, precision),
        *_agreement_statements(rungs, precision),
        _queries(record.query_norms),
        *(_toys(record) if record.model.shape == PRESETS["toy"] else []),
    ]
    worst = max(row.drift for row in unmasked)
    what = (
        f"with the mask earlier rows change by {max(r.replaced for r in causal):.0e}, "
        f"without it cached logits drift by up to {worst:.2g}"
    )
    notes = [
        "replaced: another last token, so that all shapes are the same; appended: one row more, for which a "
        "kernel may add up in another order",
        f"weights shown are layer 0, head 0, in {precision}",
    ]
    return Outcome(what, checks, [figure, *tables], notes)


def _queries(norms: Sequence[float]) -> Check:
    """A query that came back would have the norm of before."""
    here = ", ".join(f"{norm:.3f}" for norm in norms[: len(PROMPT_IDS)])
    why = f"of the last layer, all heads together; {len(set(norms))} values in {len(norms)} steps"
    return Check("purity.queries", f"{here}, ...", why, len(set(norms)) == len(norms))


def _toys(record: PurityRecord) -> list[Check]:
    """The article's numbers beside ours: of one text, where the same head and rows were looked at."""
    checks = [Check("purity.list", str(record.tokens), f"{OTHERS}; the article's prompt")]
    unmasked = [row for row in record.purity["unmasked"] if row.context == len(PROMPT_IDS)]
    for row in unmasked:
        for key, pattern, values in (
            ("purity.unmasked", "{:.3e}", row.shown),
            ("purity.drift", "{:.4f}", row.drifts),
        ):
            least, most = pattern.format(min(values)), pattern.format(max(values))
            why = f"{OTHERS}; of one text, as there; of {row.texts} texts {least} to {most}"
            checks.append(Check(key, pattern.format(values[0]), why))
    return checks


def _mask_statements(
    causal: list[Purity], unmasked: list[Purity], norm: list[Purity], precision: str
) -> list[Check]:
    exact, appended = max(row.replaced for row in causal), max(row.appended for row in causal)
    most = max(unmasked, key=lambda row: row.flips)
    flips, texts = sum(row.flips for row in unmasked), sum(row.texts for row in unmasked)
    mixed = min(row.replaced for row in norm)
    return [
        Check("purity.masked", f"{exact:.3e}", f"same shapes; another number of rows: {appended:.0e}"),
        Check(
            "purity.argmax",
            f"recomputed={most.argmax[0]}  cached={most.argmax[1]}",
            f"flips in {flips} of {texts} texts",
            flips > 0,
        ),
        *_recomputed(causal, precision),
        Check("purity.norm", f"by {mixed:.1e} or more", "smallest over the contexts", mixed > 0),
    ]


def _recomputed(causal: list[Purity], precision: str) -> list[Check]:
    """Keys and values made anew in a longer pass; rounding is told from a fault in float64 only."""
    changes = [row.kv for row in causal if row.kv is not None]
    if precision != "float64" or not changes:
        return []
    why = f"largest change in a pass of one token more; rounding is below {NEAR_ROUNDING}"
    return [Check("purity.exact", f"up to {max(changes):.1e}", why, max(changes) < NEAR_ROUNDING)]


def _agreement_statements(rungs: dict[str, Agreement], precision: str) -> list[Check]:
    same = all(rung.same_tokens for rung in rungs.values())
    worst = max(rung.max for rung in rungs.values())
    near = precision == "float64" and worst < NEAR_ROUNDING
    why = "" if precision == "float64" else f"in {precision}"
    return [
        Check("purity.tokens", f"same token sequence? {same}"),
        Check(
            "purity.float64",
            f"{worst:.3e}",
            why or f"{OTHERS}; {NEAR_ROUNDING} at most",
            near,
        ),
    ]


def _rows_table(by_kind: dict[str, list[Purity]]) -> Table:
    """The article's picture: attention weights before and after a fifth token."""
    rows = []
    for kind in ("causal", "unmasked"):
        first = by_kind[kind][0]
        for i, (before, after) in enumerate(zip(first.before, first.after, strict=False)):
            rows.append((WORDS[kind] if i == 0 else "", _weights(before), _weights(after)))
    n = min(by_kind["causal"][0].context, 4)
    title = f"Attention rows before and after one more token (first {n} rows, {n} and {n + 1} columns)"
    return Table(("", "before", "after"), rows, 3, title)


def _weights(row: Sequence[float]) -> str:
    return " ".join(f"{weight:.3f}" for weight in row)


def _changes_table(by_kind: dict[str, list[Purity]]) -> Table:
    rows = [
        (
            WORDS[kind],
            str(row.context),
            f"{row.appended:.1e}",
            f"{row.replaced:.1e}",
            f"{row.drift:.1e}",
            f"{row.flips}/{row.texts}",
        )
        for kind, of_kind in by_kind.items()
        for row in of_kind
    ]
    columns = ("model", "context", "appended", "replaced", "logits", "argmax flips")
    title = "Max change of earlier states; cached against recomputed logits, and texts whose argmax flips"
    return Table(columns, rows, title=title)


def _agreement_table(rungs: dict[str, Agreement], precision: str) -> Table:
    rows = [(name, f"{r.max:.3e}", "yes" if r.same_tokens else "no") for name, r in rungs.items()]
    title = f"Cached against naive, {precision}, the same greedy tokens fed to both"
    return Table(("rung", "max |difference|", "same tokens"), rows, title=title)


if __name__ == "__main__":
    cli.run(main)
