"""The page of any experiment but the floor: made when it ends, and kept in its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from profiling.results.guard import disturbances
from profiling.results.record import ARTICLES, Claim, ClaimKind, Measurement, Record
from profiling.results.record.page import Block, Bullets, Page, Section, Sentence, Table
from reports.numbers import at_commit

CLAIM_COLUMNS = ("article", "claim", "published", "here", "holds", "why")
HOLDS = {True: "yes", False: "no"}


def page(
    record: Record,
    question: str,
    answer: str,
    measured: Sequence[Block],
    further: Sequence[Section] = (),
) -> Page:
    """The answer, what was measured, the published figures (the record's `claims`), how the run was made."""
    made_by = [f"Made by `{record.command}`{at_commit(record.commit)}, {record.started}.", *record.warnings]
    if isinstance(record, Measurement):
        made_by += disturbances(record)
    claims = record.claims
    return Page(
        f"{record.kind()}: {where(record)}",
        [
            Section("Question and answer", [Sentence(question), Sentence(f"**{answer}**")]),
            Section("Measured", measured),
            *further,
            *([Section("The articles' figures", [titles(claims), claims_table(claims)])] if claims else []),
            Section("The run", [Bullets(made_by)]),
        ],
    )


def where(record: Record) -> str:
    """What ran, and on what."""
    model = record.model.name if record.model else "unknown model"
    return f"{model} on {record.place}"


def titles(claims: Sequence[Claim]) -> Sentence:
    """Which articles the claims are of, by number."""
    numbers = sorted({claim.article for claim in claims})
    return Sentence("Articles: " + "; ".join(f"{n} is {ARTICLES[n]}" for n in numbers) + ".")


def claims_table(claims: Sequence[Claim]) -> Table:
    """Published values beside those found here, and why they differ."""
    cells = [(str(c.article), c.claim, c.published, c.here, claim_word(c), c.why) for c in claims]
    return Table(CLAIM_COLUMNS, cells, text_columns=len(CLAIM_COLUMNS))


def claim_word(claim: Claim) -> str:
    """Whether it holds here; what was measured elsewhere stands beside ours, and neither is wrong."""
    if claim.holds is not None:
        return HOLDS[claim.holds]
    return "beside it" if claim.here else "not measured"


def claim_counts(claims: Sequence[Claim]) -> dict[ClaimKind, Counter[str]]:
    """Of each kind of claim: how many there are, by what became of them."""
    return {kind: Counter(claim_word(c) for c in claims if c.kind is kind) for kind in ClaimKind}


def claims_sentence(claims: Sequence[Claim]) -> str:
    """The three kinds of claims, counted apart."""
    counted, stated, elsewhere = claim_counts(claims).values()
    return (
        f"{counted['yes']} of {counted.total()} figures of arithmetic read the same; of {stated.total()} "
        f"statements {stated['yes']} hold here, {stated['no']} do not, {stated['not measured']} were not "
        f"measured; ours stands beside {elsewhere['beside it']} of {elsewhere.total()} figures that the "
        "authors' machines measured."
    )
