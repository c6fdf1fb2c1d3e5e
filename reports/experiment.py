"""The page of any experiment but the floor: made when it ends, and kept in its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.numbers import number
from reports.page import Block, Bullets, Figure, Page, Section, Sentence, Table
from reports.pictures import Bar, Bars, Curves, Points, level

CLAIM_COLUMNS = ("article", "claim", "published", "here", "holds", "why")


def page(
    record: Mapping[str, Any],
    question: str,
    answer: str,
    measured: Sequence[Block],
    further: Sequence[Section] = (),
) -> Page:
    """The answer, what was measured, the published figures (the record's `claims`), how the run was made."""
    claims = record.get("claims")
    made_by = [f"Made by `{record['command']}`, {record['started']}.", *record["warnings"]]
    return Page(
        title(record),
        [
            Section("Question and answer", [Sentence(question), Sentence(f"**{answer}**")]),
            Section("Measured", measured),
            *further,
            *([Section("The articles' figures", [claims_table(claims)])] if claims else []),
            Section("The run", [Bullets(made_by)]),
        ],
    )


def title(record: Mapping[str, Any]) -> str:
    model = record.get("model", {}).get("name", "unknown model")
    device = record.get("environment", {}).get("device_name", "any device")
    return f"{record['experiment']}: {model} on {device}"


def claims_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Published values beside those found here, and why they differ."""
    words = {True: "yes", False: "no", None: "not measured"}
    cells = [
        (*(str(row[c]) for c in CLAIM_COLUMNS[:4]), words[row["holds"]], str(row["why"])) for row in rows
    ]
    return Table(CLAIM_COLUMNS, cells, text_columns=len(CLAIM_COLUMNS))


def curves(name: str, caption: str, *panels: Curves) -> Figure:
    """A figure whose text is made of what it shows."""
    texts = [
        f"{panel.title + ': ' if panel.title else ''}{panel.y} over {panel.x}: "
        + ", ".join(f"{line} {_ends(points)}" for line, points in {**panel.lines, **panel.bounds}.items())
        for panel in panels
    ]
    return Figure(name, "; ".join(texts), caption, panels)


def _ends(points: Points) -> str:
    first, last = (number(point[1]) for point in (points[0], points[-1]))
    return first if first == last else f"from {first} to {last}"


def bars(name: str, caption: str, panel: Bars) -> Figure:
    """A figure whose text is made of what it shows."""
    return Figure(
        name, f"{panel.x}: {', '.join(f'{bar.name} {bar.text}' for bar in panel.rows)}", caption, [panel]
    )


def kept(record: Mapping[str, Any]) -> Page | None:
    """The page that a record keeps, or None. Raises KeyError, TypeError or ValueError where it is no page."""
    if "page" in record:
        return Page.restored(record["page"])
    return _of_schema_1(record, record["shown"]) if "shown" in record else None


def _of_schema_1(record: Mapping[str, Any], shown: Mapping[str, Any]) -> Page:
    measured: list[Block] = []
    if drawn := shown["curves"]:
        xs = [x for points in drawn["lines"].values() for x, _ in points]
        bounds = {name: level(xs, height) for name, height in drawn["levels"].items()}
        panel = Curves(drawn["x"], drawn["y"], drawn["lines"], bounds, drawn["log_x"], drawn["log_y"])
        measured.append(curves(record["experiment"], drawn["caption"], panel))
    if drawn := shown.get("bars"):
        rows = [
            Bar(name, {"ours" if name in drawn["ours"] else "others": length}, text, group=group)
            for group, of_group in drawn["groups"].items()
            for name, (length, text) in of_group.items()
        ]
        measured.append(bars(record["experiment"], drawn["caption"], Bars(drawn["x"], rows)))
    measured += [Table(**table) for table in shown["tables"]]
    measured += [Bullets(shown["notes"])] if shown["notes"] else []
    return page(record, shown["question"], shown["verdict"], measured)
