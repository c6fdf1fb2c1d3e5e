"""The console: 80 columns, plain where it is no terminal, quiet on request, silent while a step is timed."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from floor_run import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from experiments import floor
from experiments.shared import progress
from experiments.shared.progress import ProgressLine
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import FloorRecord, decoded
from reports.build import study
from reports.printers.console import print_blocks, rich_tables, show, show_section
from reports.sections.brief import brief, ladder_table, predicted_steps
from variants.ladder import ladder

ESCAPE = "\x1b"
LONG = "compile-cudagraph"


def printed(draw: Callable[[Console], Any], width: int = 80) -> str:
    out = io.StringIO()
    draw(Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.fixture
def run() -> RunFolder:
    """The committed run as a big model on a slow machine would fill it: long names, long numbers."""
    data = json.loads((GOLDEN / "run.json").read_text())
    data["workload"]["contexts"] = [10, 40, 500, 1000, 2000]
    for sample in [s for s in data["samples"] if s["context"] == 40]:
        for context in (500, 1000, 2000):
            longer = [1234.5 + ms * context for ms in sample["steps_ms"]]
            data["samples"].append({**sample, "context": context, "steps_ms": longer})
    for entry in data["variants"].values():
        for context in ("500", "1000", "2000"):
            entry["slots"][context] = 2048
            entry["prediction"][context] = entry["prediction"]["40"]
    data["variants"][LONG] = data["variants"].pop("onelaunch")
    for sample in (*data["samples"], *data["ttft"]):
        sample["variant"] = LONG if sample["variant"] == "onelaunch" else sample["variant"]
    data["variants"]["bf16"].update(status="failed", reason="a reason of many words " * 8)
    return RunFolder(GOLDEN, decoded(json.dumps(data).encode(), GOLDEN))


def summary(console: Console, run: RunFolder) -> None:
    show(console, brief(study(run)), f"Report: {run.path}")


def live(run: RunFolder) -> Any:
    table = ladder_table(Measured(run.record))
    return rich_tables(table, 80)[0] if table else None


TABLES: dict[str, Callable[[Console, RunFolder], None]] = {
    "list": lambda console, run: print_blocks(console, [floor._list(ladder(), "cpu")]),
    "prediction": lambda console, run: show_section(console, predicted_steps(study(run))),
    "summary": summary,
    "live": lambda console, run: console.print(live(run)),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_fit_80_columns_and_are_plain(name: str, run: RunFolder) -> None:
    text = printed(lambda console: TABLES[name](console, run))
    before_the_answer = text.partition("Report: ")[0]  # a path and the answer are one line each
    assert max(map(len, before_the_answer.splitlines())) <= 80
    assert ESCAPE not in text and "…" not in text


def test_no_number_and_no_name_is_cut(run: RunFolder) -> None:
    text = printed(lambda console: summary(console, run))
    assert text.count(f" {LONG} ") == text.count(" naive ") > 1  # what does not fit goes on below
    for context in run.record.workload.contexts:
        assert f"ctx {context}" in text


def test_live_ladder_before_anything_is_measured(run: RunFolder) -> None:
    run.update(samples=[])
    assert live(run) is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that the progress line reads; a test sets it."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_plain_progress_is_sparse_and_says_the_time_left(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with ProgressLine(quiet=False) as progress:
        for done in range(21):
            clock[0] = 2.0 * done
            progress("rounds", done, 20)
    lines = sys.stderr.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[0] == "rounds: 0/20" and lines[-1] == "rounds: 20/20"
    assert lines[1:-1] == ["rounds: 5/20, 30 s left", "rounds: 10/20, 20 s left", "rounds: 15/20, 10 s left"]


def test_time_left_counts_from_where_a_resumed_run_began(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with ProgressLine(quiet=False) as progress:
        for done in (80, 81, 90):
            clock[0] = 2.0 * (done - 80)
            progress("rounds", done, 100)
    assert sys.stderr.getvalue().splitlines()[-1] == "rounds: 90/100, 20 s left"  # type: ignore[attr-defined]


def test_time_left_goes_on_when_only_the_name_changes(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`prepare` names each variant that it builds; that is one phase, and the next one starts anew."""
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with ProgressLine(quiet=False) as progress:
        for done, name in enumerate(("naive", "cat", "static")):
            clock[0] = 60.0 * done
            progress(f"build {name}", done, 4)
        clock[0] = 200.0
        progress("rounds", 0, 4)
        clock[0] = 201.0
        progress("rounds again", 1, 4)
    lines = sys.stderr.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[2:] == ["build static: 2/4, 2 min left", "rounds: 0/4", "rounds again: 1/4, 3 s left"]


def test_quiet_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO(), Terminal()):
        monkeypatch.setattr(sys, "stderr", stream)
        with ProgressLine(quiet=True) as progress:
            progress("rounds", 1, 2)
        assert stream.getvalue() == ""


def test_nothing_is_drawn_between_calls(monkeypatch: pytest.MonkeyPatch, run: RunFolder) -> None:
    """A thread that redraws would disturb what is timed: none is started, and nothing more is written."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    before = threading.active_count()
    with ProgressLine(quiet=False, table=lambda: live(run)) as progress:
        progress("rounds", 1, 4)
        screen = sys.stderr.getvalue()  # type: ignore[attr-defined]
        assert threading.active_count() == before
        assert "rounds: 1/4" in screen and "Step, ms" in screen
        progress.pause()
        paused = sys.stderr.getvalue()  # type: ignore[attr-defined]
        progress.pause()
        assert sys.stderr.getvalue() == paused  # type: ignore[attr-defined]
        progress("rounds", 2, 4)
        assert "rounds: 2/4" in sys.stderr.getvalue()[len(paused) :]  # type: ignore[attr-defined]


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR leaves bold and dim at most, never a colour."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = Terminal()
    run = RunFolder.load(GOLDEN, FloorRecord)
    summary(Console(file=out, width=80, highlight=False), run)
    codes = {part.split("m")[0] for part in out.getvalue().split(f"{ESCAPE}[")[1:]}
    assert codes <= {"0", "1", "2", "3", "1;2"}, codes


@settings(max_examples=60)
@given(done=st.integers(0, 50), total=st.integers(0, 50), seconds=st.floats(0, 1e5))
def test_progress_takes_any_count(done: int, total: int, seconds: float) -> None:
    progress = ProgressLine(quiet=True)
    progress.started -= seconds
    progress("anything", done, total)
    assert progress._time_left() == "" or progress._time_left().endswith(" left")
