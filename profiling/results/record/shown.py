"""What experiments showed in schema 1, as the pages that they keep now."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
CLAIM_COLUMNS = ("article", "claim", "published", "here", "holds", "why")
HOLDS = {True: "yes", False: "no", None: "not measured"}


def page_of(record: Json, shown: Json) -> Json:
    """The page as plain JSON. A figure's text is made of what it shows."""
    kind = record["experiment"]
    measured: list[Json] = []
    if drawn := shown["curves"]:
        measured.append(_figure(kind, drawn["caption"], _curves(drawn)))
    if drawn := shown.get("bars"):
        measured.append(_figure(kind, drawn["caption"], _bars(drawn)))
    measured += [{"kind": "table", **table} for table in shown["tables"]]
    measured += [{"kind": "bullets", "items": shown["notes"]}] if shown["notes"] else []
    answer = [_sentence(shown["question"]), _sentence(f"**{shown['verdict']}**")]
    made_by = [f"Made by `{record['command']}`, {record['started']}.", *record["warnings"]]
    claims = _claims(record["claims"]) if record.get("claims") else None
    sections = {
        "Question and answer": answer,
        "Measured": measured,
        "The articles' figures": [claims] if claims else [],
        "The run": [{"kind": "bullets", "items": made_by}],
    }
    model = record.get("model", {}).get("name", "unknown model")
    device = record.get("environment", {}).get("device_name", "any device")
    return {
        "title": f"{kind}: {model} on {device}",
        "sections": [{"title": title, "blocks": blocks} for title, blocks in sections.items() if blocks],
    }


def _sentence(text: str) -> Json:
    return {"kind": "sentence", "text": text}


def _figure(name: str, caption: str, panel: Json) -> Json:
    return {"kind": "figure", "name": name, "caption": caption, "picture": [panel]}


def _curves(drawn: Json) -> Json:
    xs = [x for points in drawn["lines"].values() for x, _ in points]
    ends = (min(xs), max(xs)) if drawn["levels"] else ()
    bounds = {name: [(x, height) for x in ends] for name, height in drawn["levels"].items()}
    kept = {key: drawn[key] for key in ("x", "y", "lines", "log_x", "log_y")}
    return {"kind": "curves", **kept, "bounds": bounds}


def _bars(drawn: Json) -> Json:
    rows = [
        {
            "name": name,
            "parts": {"ours" if name in drawn["ours"] else "others": length},
            "text": text,
            "group": group,
        }
        for group, of_group in drawn["groups"].items()
        for name, (length, text) in of_group.items()
    ]
    return {"kind": "bars", "x": drawn["x"], "rows": rows}


def _claims(claims: list[Json]) -> Json:
    rows = [
        [*(str(claim[name]) for name in CLAIM_COLUMNS[:4]), HOLDS[claim["holds"]], str(claim["why"])]
        for claim in claims
    ]
    return {"kind": "table", "columns": CLAIM_COLUMNS, "rows": rows, "text_columns": len(CLAIM_COLUMNS)}
