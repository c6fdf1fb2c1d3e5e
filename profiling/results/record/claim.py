"""A published figure beside what was found here."""

from __future__ import annotations

from profiling.results.record.part import Part


class Claim(Part, frozen=True, kw_only=True):
    """`holds`: None where it was not measured. `experiment`: the one that found it, where several ran."""

    key: str
    article: int
    section: str
    claim: str
    published: str
    here: str
    holds: bool | None
    why: str
    experiment: str | None = None
