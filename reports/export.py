"""Rows for other tools: a table as CSV or as JSON lines, and the samples of a run as such rows."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from profiling.results.folder import write_atomically
from profiling.results.record import Measurement, Record
from variants.errors import UserError

Row = Mapping[str, object]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags by which the samples of a run are asked for."""
    what = "write every timed step there, a row each,"
    parser.add_argument("--csv", type=Path, metavar="FILE", help=f"{what} as CSV")
    parser.add_argument("--jsonl", type=Path, metavar="FILE", help=f"{what} as JSON lines")


def check(arguments: argparse.Namespace) -> None:
    """Raises UserError for a folder that is not there, before anything is measured."""
    for path in (arguments.csv, arguments.jsonl):
        if path is not None and not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}")


def write_samples(arguments: argparse.Namespace, record: Record) -> None:
    """The samples, where they were asked for. Raises UserError for a run that has none."""
    if not arguments.csv and not arguments.jsonl:
        return
    if not isinstance(record, Measurement) or not record.samples:
        raise UserError(f"a run of {record.kind()} has no timed steps to write")
    rows = list(samples(record))
    if arguments.csv:
        write_csv(arguments.csv, rows)
    if arguments.jsonl:
        lines = (msgspec.json.encode(row) + b"\n" for row in rows)
        write_atomically(arguments.jsonl, b"".join(lines))


def samples(record: Measurement) -> Iterator[Row]:
    """Every timed step in the order in which it ran. `energy_j` is that of all steps of its visit."""
    for sample in record.samples:
        visit = {
            "round": sample.round,
            "variant": sample.variant,
            "width": sample.width,
            "context": sample.context,
            "batch": sample.batch,
        }
        for number, ms in enumerate(sample.steps_ms):
            yield {**visit, "step": number, "ms": ms, "energy_j": sample.energy_j}


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The keys of the first row are the head; what is unknown is an empty field."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())
