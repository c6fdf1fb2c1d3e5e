"""How an experiment ends: each claim beside the value found here, and one line that says whether it holds."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from experiments._published import PUBLISHED, Check
from experiments._ruled import ruled


def rows(checks: Sequence[Check]) -> list[dict[str, object]]:
    """What the run folder keeps; the report of all articles is made from these."""
    return [
        {
            "key": check.key,
            "article": PUBLISHED[check.key].article,
            "section": PUBLISHED[check.key].section,
            "claim": PUBLISHED[check.key].claim,
            "published": PUBLISHED[check.key].value,
            "here": check.here,
            "holds": check.holds,
            "why": check.why,
        }
        for check in checks
    ]


def summary(checks: Sequence[Check]) -> dict[str, object]:
    """What `--json` says of the claims."""
    broken = [check.key for check in checks if not check.holds]
    return {"figures": len(checks), "hold": len(checks) - len(broken), "broken": broken}


def table(checks: Sequence[Check]) -> Table:
    """Article, claim, published value, value here (where it differs), holds."""
    shown = ruled("Published figures", ("article", "claim"), ("published", "here", "holds"))
    for check in checks:
        figure = PUBLISHED[check.key]
        found = ("the same", "yes") if check.holds else (check.here, "no")
        shown.add_row(str(figure.article), figure.claim, figure.value, *found)
    return shown


def verdict(what: str, checks: Sequence[Check], also: bool = True) -> str:
    """The last line: "claim holds" only if every figure does, and whatever else was asked (`also`)."""
    broken = [check.key for check in checks if not check.holds]
    count = f"{len(checks) - len(broken)} of {len(checks)} figures as published"
    count += f"; not {', '.join(broken)}" if broken else ""
    return f"Claim {'holds' if also and not broken else 'does not hold'} here: {what} ({count})."
