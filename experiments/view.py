"""Question: where in the step is the time that the verdict speaks of?

Serves a real Perfetto UI on this machine, without internet, with the traces of run folders or any other trace
(*.json, *.json.gz). Each is shown with two rows of what the analysis found: the steps, and the gaps of the
device by cause (without a device: the parts of the host). Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.shared.cli import plain_parser, print_json, run
from variants.errors import UserError

if TYPE_CHECKING:
    from experiments.shared.viewer import Board, Viewer

EXAMPLES = (
    "runs/20260101T120000-cpu-floor",
    "run.pt.trace.json.gz --open",
    "runs/20260101T120000-cpu-floor --tensorboard",
)


def parser() -> argparse.ArgumentParser:
    parser = plain_parser("experiments.view", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="RUN|TRACE", help="a run folder, or a *.json or *.json.gz")
    add("--port", type=int, default=0, help="on 127.0.0.1 (default: one that is free)")
    add("--open", action="store_true", help="open the address in the browser of this machine")
    add("--tensorboard", action="store_true", help="TensorBoard with torch-tb-profiler instead of Perfetto")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    traces = [trace for path in arguments.paths for trace in traces_of(path)]
    try:
        with _server(arguments, traces) as server:
            for note in server.notes:
                sys.stderr.write(f"note: {note}\n")
            _say(arguments, traces, server.address)
            server.serve()
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
    return 0


def _say(arguments: argparse.Namespace, traces: Sequence[Path], address: str) -> None:
    if arguments.json:
        print_json({"address": address, "traces": [str(trace) for trace in traces]})
    else:
        print(f"{len(traces)} trace{'s' * (len(traces) > 1)} at {address} (Ctrl-C ends it)")
    sys.stdout.flush()
    if arguments.open:
        import webbrowser

        webbrowser.open(address)


def _server(arguments: argparse.Namespace, traces: Sequence[Path]) -> Viewer | Board:
    if arguments.tensorboard:
        from experiments.shared.viewer import Board

        return Board(traces, arguments.port)
    from experiments.shared.viewer import Viewer

    return Viewer(traces, arguments.port)


def traces_of(path: Path) -> list[Path]:
    """The traces of a run folder, or the one trace. UserError where there are none, or they lie elsewhere."""
    if not path.is_dir():
        if not path.name.endswith((".json", ".json.gz")):
            raise UserError(f"{path}: expected a run folder, or a trace named *.json or *.json.gz")
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        try:
            with path.open("rb") as file:
                head = file.read(64)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
        if not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[", b"\x1f\x8b")):
            raise UserError(f"{path}: not a trace: neither JSON nor gzip")
        return [path]
    from profiling.results.folder import RunFolder
    from profiling.results.record import Record

    folder = RunFolder.load(path, Record).traces
    traces = sorted([*folder.glob("*.json"), *folder.glob("*.json.gz")])
    if not traces:
        raise UserError(f"{folder}: no traces; this run was not traced, or they were removed")
    outside = [trace for trace in traces if not trace.resolve().is_relative_to(path.resolve())]
    if outside:
        raise UserError(f"{outside[0]} points outside the run folder; name the trace itself to see it")
    return traces


if __name__ == "__main__":
    run(main)
