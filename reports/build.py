"""Makes the report of a run folder, from the folder alone: report.md, report.html and figures/.

    python -m reports.build runs/FOLDER

Never imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from profiling.analysis import timeline as op_by_op
from profiling.results.folder import RunFolder, write_atomically
from profiling.results.metrics import Measured
from profiling.results.record import FloorRecord, Record
from profiling.results.record.page import Page
from profiling.results.record.pictures import Steps
from profiling.results.verdict import verdicts
from reports import export
from reports.sections import sections
from reports.study import Study
from reports.write import write
from variants.command import Parser, run
from variants.errors import UserError, one_line


def build(path: Path, drawn: Mapping[str, Steps | None] | None = None) -> None:
    """Report, page and figures of the run folder at `path`; each file replaces an older one whole.

    `drawn`: by rung the median steps that are at hand; the others are read from their traces.
    Raises UserError where the folder holds no run, or nothing to show yet, or cannot be written.
    """
    write(path, page_of(path, drawn))


def page_of(path: Path, drawn: Mapping[str, Steps | None] | None = None) -> Page:
    """The page of the run folder at `path`. Raises UserError as `build` does."""
    record = RunFolder.load(path, Record).record
    if isinstance(record, FloorRecord):
        floor = RunFolder(path, record)
        return page(study(floor, _timeline(floor, drawn)))
    if record.page is None:
        raise UserError(
            f"{path} keeps no page: its experiment is still running, or was interrupted, or is of a version "
            "that kept none"
        )
    return record.page


def study(run: RunFolder[FloorRecord], timeline: Steps | None = None) -> Study:
    """The study of a run, from which the sections are made: numbers, verdict, traces and picture."""
    measured = Measured(run.record)
    traces = sorted(file.name for file in run.traces.glob("*.pt.trace.json*"))
    return Study(measured, verdicts(measured), str(run.path), traces, timeline)


def page(study: Study) -> Page:
    """The report of a floor study."""
    record = study.record
    model = record.model.name if record.model else "unknown model"
    device = record.environment.device_name if record.environment else "unknown device"
    return Page(f"The decode floor of {model} on {device}", sections(study))


def _timeline(run: RunFolder[FloorRecord], drawn: Mapping[str, Steps | None] | None) -> Steps | None:
    """The picture of one step op by op, from the traces, or from its file where these are gone.

    The file lies beside the figures and is written whenever there are traces.
    """
    file = run.path / "figures" / "timeline.json"
    steps = op_by_op.timeline_of(run, drawn)
    if steps is not None:
        try:
            file.parent.mkdir(exist_ok=True)
            write_atomically(file, msgspec.json.encode(steps))
        except OSError as error:
            raise UserError(f"{run.path}: cannot be written ({error.strerror or error})") from error
        return steps
    try:
        return msgspec.json.decode(file.read_bytes(), type=Steps) if file.exists() else None
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{file}: {one_line(error)}; remove it, or make it from the traces") from None


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(prog="python -m reports.build", description="Make the report of a run folder.")
    parser.add_argument("run", type=Path, help="a run folder, e.g. runs/20260101T120000-cpu-floor")
    export.add_flags(parser)
    arguments = parser.parse_args(argv)
    path = arguments.run
    if arguments.csv or arguments.jsonl:
        export.check(arguments)
        export.write_samples(arguments, RunFolder.load(path, Record).record)
    build(path)
    sys.stdout.write(f"{path / 'report.md'}\n{path / 'report.html'}\n")


if __name__ == "__main__":
    run(main)
