"""The page of `experiments.explain`: what sets the step of each trace, what a replay would buy, what differs.

Made from the object that `--json` prints and a picture of one step per file; no torch, no trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import orjson

from profiling.results.folder import write_atomically
from profiling.results.record.page import Block, Bullets, Figure, Page, Section, Sentence, Table
from profiling.results.record.pictures import Steps
from reports.numbers import code
from reports.top import brief, name_of, tables
from reports.write import write
from variants.errors import UserError

Entry = Mapping[str, Any]
PARTS = {
    "busy": "device busy",
    "starting": "device begins what was issued",
    "not_issued": "host had not issued the next work",
    "in_call": "host inside the launch call",
    "sync": "host comes back from waiting for the device",
    "host": "host outside launches",
    "late": "issued work did not start",
    "compute": "host in compute ops",
    "overhead": "host in views, allocation, dispatch",
    "python": "host in Python outside ops",
    "waiting": "host waits",
    "unknown": "no event says",
}
MAX_STEPS, MAX_CHANGED = 20, 30  # rows of a table; all of them are in explain.json
OPTIONS = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def keep(folder: Path, answer: Entry, explained: Page) -> None:
    """explain.json and the report in `folder`; UserError where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "explain.json", orjson.dumps(answer, option=OPTIONS))
    except OSError as error:
        raise UserError(f"--out {folder}: cannot be written ({error.strerror or error})") from error
    write(folder, explained)


def page(answer: Entry, drawn: Sequence[Steps | None] = ()) -> Page:
    """The title is the answer. `drawn`: a step of each file; None for a file without steps."""
    files = answer["files"]
    sections = [_answer(answer)]
    for number, (entry, step) in enumerate(zip_longest(files, drawn)):
        sections += [
            Section(entry["file"], _file(entry, _figure(entry, number, step))),
            *_every_step(entry),
        ]
    if "comparison" in answer:
        sections.append(_comparison(answer["comparison"]))
    return Page(_title(answer), sections)


def _title(answer: Entry) -> str:
    """What sets the step and the microseconds at stake; of two traces what differs, of several the labels."""
    files = answer["files"]
    if "comparison" in answer:
        return str(answer["comparison"]["finding"])
    if len(files) == 1:
        return f"{files[0]['reading']}: {files[0]['headline'] or files[0]['rule']}"
    return ", ".join(f"{n} {label}" for label, n in Counter(entry["reading"] for entry in files).items())


def _answer(answer: Entry) -> Section:
    files = answer["files"]
    alone = len(files) == 1  # the title says what is at stake
    blocks: list[Block] = [] if alone else [_overview(files)]
    for entry in files:
        at_stake = f": {entry['headline']}" if entry["headline"] and not alone else ""
        rule = f" Rule: {entry['rule']}." if entry["headline"] or not alone else ""
        blocks.append(Sentence(f"{code(entry['file'])}: **{entry['reading']}**{at_stake}.{rule}"))
    return Section("What sets the step?", blocks)


def _read(entry: Entry) -> list[Entry]:
    """The steps that are read together."""
    return [entry["steps"][number] for number in entry["steps_read"]]


def _overview(entries: Sequence[Entry]) -> Table:
    rows = []
    for entry in entries:
        parts, total = entry["step_parts_us"], entry["step_us"]
        launches = [s["kernel_launch_calls"] + s["graph_launch_calls"] for s in _read(entry)]
        replay = (entry["prediction"] or {}).get("replay_us")
        rows.append(
            (
                code(entry["file"]),
                entry["reading"],
                f"{total:.0f}" if total else "unknown",
                f"{parts['busy'] / total:.0%}" if total and "busy" in parts else "none",
                f"{fmean(launches):g}" if launches else "none",
                f"{replay['mid']:.0f}" if replay else "-",
            )
        )
    return Table(("file", "reading", "step us", "busy", "launches", "replay us"), rows, text_columns=2)


def _file(entry: Entry, figure: Sequence[Figure]) -> list[Block]:
    read, steps = len(entry["steps_read"]), len(entry["steps"])
    of = f"{read} of " if 0 < read < steps else ""
    count = f"{of}{steps} step{'s' * (steps != 1)}"
    blocks: list[Block] = [Sentence(f"{count} from {entry['step_source']}")]
    blocks += [*_parts(entry), *_devices(entry), *_prediction(entry["prediction"]), *figure]
    if entry["warnings"]:
        blocks.append(Bullets([f"note: {warning}" for warning in entry["warnings"]]))
    blocks += _names(entry)
    return [*blocks, *tables(entry["top"], read)]


def _names(entry: Entry) -> list[Block]:
    """How many of the replayed kernels could be named, or what could name them."""
    if entry["named_share"] is not None:
        return [Sentence(f"{entry['named_share']:.0%} of the replayed kernels are named by the eager trace.")]
    if entry["gpu_events_from_graph"]:
        return [Sentence("Replayed kernels have no op; an eager trace names them: `--names-from EAGER`.")]
    return []


def _parts(entry: Entry) -> list[Block]:
    steps, parts, total = _read(entry), entry["step_parts_us"], entry["step_us"]
    if not total:
        return []
    rows = [(PARTS[part], f"{us:.1f}", f"{us / total:.1%}") for part, us in parts.items() if us]
    counts = {what: fmean(s["counts"][what] for s in steps) for what in steps[0]["counts"]}
    listed = ", ".join(f"{n:g} {what.replace('_', ' ')}" for what, n in counts.items() if n)
    return [
        Table((f"where the {total:.0f} us of a step go", "us", "share"), rows),
        Sentence(f"Mean per step: {listed or 'nothing counted'}."),
    ]


def _prediction(prediction: Entry | None) -> list[Block]:
    if prediction is None:
        return []
    if prediction["replay_us"] is None:
        left = {
            key.replace("_", " "): value for key, value in prediction["left"].items() if value is not None
        }
        listed = ", ".join(f"{key} {brief(value)}" for key, value in left.items())
        return [Sentence(f"{prediction['kind'].capitalize()}; per step: {listed}.")]
    low, mid, high = (prediction["replay_us"][key] for key in ("low", "mid", "high"))
    said = f"Predicted {prediction['kind']}: **{mid:.0f} us** ({low:.0f} to {high:.0f})"
    return [
        Sentence(f"{said} instead of {prediction['step_us']:.0f} us, assuming"),
        Bullets(prediction["assumptions"]),
    ]


def _devices(entry: Entry) -> list[Block]:
    """The whole trace, device by device; nothing for one that only computes."""
    splits = {of: numbers["busy_split_us"] for of, numbers in entry["devices"].items()}
    if len(splits) < 2 and not any(s["communication"] + s["copies"] for s in splits.values()):
        return []
    heads = (
        "device, whole trace",
        "busy",
        *(f"{what} us" for what in next(iter(splits.values()))),
        "span us",
    )
    rows = [
        (
            of,
            f"{numbers['busy_pct']}%",
            *(f"{us:.1f}" for us in splits[of].values()),
            f"{numbers['span_us']:.1f}",
        )
        for of, numbers in entry["devices"].items()
    ]
    return [Table(heads, rows)]


def _figure(entry: Entry, number: int, drawn: Steps | None) -> list[Figure]:
    if drawn is None:
        return []
    (step,) = drawn.steps
    lasted = f"{step.length_us:.1f} us"
    alt = f"One step of {lasted}: its host ops, calls, device work and waits. {entry['reading']}."
    caption = f"{code(step.variant)}, {lasted} from the earlier to the later end of host and device."
    return [Figure(f"step_{number + 1}", caption, drawn, alt)]


def _every_step(entry: Entry) -> list[Section]:
    if not entry["steps"]:
        return []
    parts = list(entry["steps"][0]["parts_us"])
    counted = ("wall_us", "interval_us", "kernel_launch_calls", "graph_launch_calls")
    rows = [
        [
            code(s["name"]),
            *(brief(s[key]) for key in counted),
            *(brief(s["parts_us"].get(p)) for p in parts),
        ]
        for s in entry["steps"][:MAX_STEPS]
    ]
    heads = ["step", "host window", "interval", "kernel launches", "graph launches", *parts]
    blocks: list[Block] = [
        Sentence("Times in us; a step's parts sum to its interval."),
        Table([head.replace("_", " ") for head in heads], rows),
    ]
    if len(entry["steps"]) > MAX_STEPS:
        blocks.append(Sentence(f"{len(entry['steps']) - MAX_STEPS} more steps are in explain.json."))
    return [Section(f"Every step of {entry['file']}", blocks, detail=True)]


def _comparison(comparison: Entry) -> Section:
    rows = [
        (key.replace("_", " "), *(brief(row[side]) for side in ("this", "against")))
        for key, row in comparison["per_step"].items()
        if row["this"] or row["against"]
    ]
    blocks: list[Block] = [Table(("per step", "this", "against"), rows)]
    changed = []
    for row in comparison["kernels"][:MAX_CHANGED]:
        sides = [row["against"] or {}, row["this"] or {}]
        cells = (brief(side.get(key)) for key in ("per_step", "mean_us") for side in sides)
        changed.append((name_of(row["name"]), row["change"], *cells))
    if changed:
        heads = ("per step before", "per step now", "mean us before", "mean us now")
        blocks.append(Table(("kernels that changed", "how", *heads), changed, text_columns=2))
    return Section("Comparison", blocks)
