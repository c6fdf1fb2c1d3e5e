"""A published figure beside what was found here."""

from __future__ import annotations

from enum import StrEnum

from profiling.results.record.part import Part


class ClaimKind(StrEnum):
    """What a published figure can be held to."""

    ARITHMETIC = "arithmetic"  # it follows from formulas, and must read the same
    STATEMENT = "statement"  # measured here, by a rule that could refute it
    ELSEWHERE = "measured elsewhere"  # on the authors' machine: shown beside ours, neither right nor wrong


# as their authors titled them; no address of theirs is known here, and the second is known by its subject
ARTICLES = {
    1: "“How LLMs Generate Text, and What the KV Cache Actually Fixes”",
    2: "its second part, a study of GPT-2 on an A40 that ends with a floor of 5 ms a token",
    3: "“KV caching and the generation loop”",
    4: "“The KV Cache from Scratch — The Heart of Fast Inference”",
}


class Claim(Part, frozen=True, kw_only=True):
    """`holds`: None where it was not measured, or elsewhere. `here` is empty where it was not measured.

    `experiment`: the one that found it, where several ran.
    """

    key: str
    article: int
    section: str
    claim: str
    published: str
    here: str
    holds: bool | None
    why: str
    experiment: str | None = None
    kind: ClaimKind = ClaimKind.STATEMENT  # records of before do not say
