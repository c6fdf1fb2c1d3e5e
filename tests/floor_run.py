"""The committed run of a tiny model, copies of it with other contents, and how to read a Markdown report."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiling.results.folder import RunFolder
from profiling.results.record import Measurement
from reports.build import page, study
from reports.printers.markdown import markdown

ROOT = Path(__file__).parent.parent
GOLDEN = Path(__file__).parent / "data" / "floor_run"
BASELINE, AGAIN = "cat", "cat again"
Record = dict[str, Any]


def copied(target: Path, change: Callable[[Record], object] = lambda record: None) -> Path:
    """The committed run, its record changed."""
    shutil.copytree(GOLDEN, target, ignore=shutil.ignore_patterns("report.*", "figures"))
    record = json.loads((target / "run.json").read_text())
    change(record)
    (target / "run.json").write_text(json.dumps(record))
    return target


def text_of(path: Path) -> str:
    """report.md as `build` would write it, without the pictures."""
    run = RunFolder.load(path, Measurement)
    return markdown(page(study(run)))


def section(report: str, title: str) -> str:
    return re.split(r"^## ", report.split(f"## {title}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def tables(text: str) -> list[list[dict[str, str]]]:
    """Every Markdown table of a text as rows by column."""
    per_block = []
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        head, _, *rows = ([c.strip() for c in line.strip("|\n").split("|")] for line in block.splitlines())
        per_block.append([dict(zip(head, row, strict=True)) for row in rows])
    return per_block
