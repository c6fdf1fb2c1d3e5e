"""TensorBoard with torch-tb-profiler on some traces, on 127.0.0.1 only."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from variants.errors import UserError

HOST = "127.0.0.1"
OUTSIDE_SCRIPT = "https://www.gstatic.com/charts/loader.js"
"""What the page of torch-tb-profiler 0.4.3 loads before it draws anything (its index.html)."""
REACH_S = 3


class Board:
    """Runs until interrupted. UserError where TensorBoard is not installed or ends by itself."""

    def __init__(self, traces: Sequence[Path], port: int = 0) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="decode-floor-")
        link_traces(traces, Path(self._folder.name))
        self.port = port or _free_port()
        self.address = f"http://{HOST}:{self.port}/#pytorch_profiler"
        self.notes = () if reachable(OUTSIDE_SCRIPT) else (unreachable_note(),)

    def serve(self) -> None:
        flags = ["--logdir", self._folder.name, "--host", HOST, "--port", str(self.port), "--load_fast=false"]
        command = [sys.executable, "-m", "tensorboard.main", *flags]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            _, said = process.communicate()
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise UserError(f"TensorBoard ended with code {process.returncode}: {last[0]}")
        finally:
            process.terminate()
            process.wait()

    def __enter__(self) -> Board:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._folder.cleanup()


def link_traces(traces: Sequence[Path], folder: Path) -> None:
    """One folder per trace, a run in TensorBoard's words; the plugin wants the name's end as it is here."""
    for number, trace in enumerate(traces):
        end = ".pt.trace.json.gz" if trace.name.endswith(".gz") else ".pt.trace.json"
        name = trace.name.split(".")[0]
        run = folder / (f"{name}-{number}" if (folder / name).exists() else name)
        run.mkdir()
        try:
            (run / f"{name}{end}").symlink_to(trace.resolve())
        except OSError:  # Windows permits links to administrators only
            shutil.copyfile(trace, run / f"{name}{end}")


def reachable(address: str) -> bool:
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=REACH_S).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def unreachable_note() -> str:
    return (
        f"torch-tb-profiler's page loads {OUTSIDE_SCRIPT}, which cannot be reached from here: "
        "it will stay on a spinner. Without --tensorboard the viewer needs nothing from outside."
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])
