"""How an experiment ends: each claim beside the value found here, and one line that says whether it holds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from experiments.shared.published import PUBLISHED, Check
from profiling.results.record import Claim


def measured(key: str, value: float, pattern: str = "{:.3g}", why: str = "") -> Check:
    """A figure that a run found here beside the number that the authors' run printed, in the same unit."""
    printed = re.search(r"[\d.,]+", PUBLISHED[key].value)
    assert printed is not None
    ratio = value / float(printed.group().replace(",", ""))
    apart = f"{ratio:,.0f} times the published" if ratio >= 10 else f"{ratio:.2g} times the published"
    return Check(key, pattern.format(value), f"{apart}: {why}" if why else apart)


def rows(checks: Sequence[Check]) -> list[Claim]:
    """What the run folder keeps; the report of all articles is made from these."""
    return [
        Claim(
            key=check.key,
            article=PUBLISHED[check.key].article,
            section=PUBLISHED[check.key].section,
            claim=PUBLISHED[check.key].claim,
            published=PUBLISHED[check.key].value,
            here=check.here,
            holds=check.holds,
            why=check.why,
            kind=PUBLISHED[check.key].kind,
        )
        for check in checks
    ]


def verdict(
    what: str, checks: Sequence[Check], also: bool = True, counted: str = "figures as published"
) -> str:
    """The last line: "claim holds" only if every figure does, and whatever else was asked (`also`).

    What was measured elsewhere is not counted.
    """
    judged = [check for check in checks if check.holds is not None]
    broken = [check.key for check in judged if not check.holds]
    count = f"{len(judged) - len(broken)} of {len(judged)} {counted}"
    count += f"; not {', '.join(broken)}" if broken else ""
    return f"Claim {'holds' if also and not broken else 'does not hold'} here: {what} ({count})."
