"""500 hostile inputs in every run of the tests, and that the watch over them sees what must not be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from floor_run import ROOT

from experiments import fuzz
from experiments.shared import fuzzing, hostile, kills
from experiments.shared.fuzzing import Job, Outcome, ending
from experiments.shared.kills import Killed, kill_runs, started
from profiling.results.folder import RunFolder
from profiling.results.record import FuzzRecord
from variants.errors import UserError

CI = 500


def test_hostile_inputs_are_read_or_refused(tmp_path: Path) -> None:
    code = fuzz.main(["--inputs", str(CI), "--workers", "2", "--quiet", "--out", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    record = RunFolder.load(path, FuzzRecord).record
    assert (code, record.faults) == (0, [])
    assert (
        sum(kind.inputs for kind in record.kinds.values()) == CI
        and record.kinds.keys() == hostile.KINDS.keys()
    )
    assert all(kind.refused for kind in record.kinds.values())
    assert sum(kind.read for kind in record.kinds.values()) > CI / 20, "some are still right"


@pytest.mark.slow
def test_runs_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    *_, killed = islice(kill_runs(0, tmp_path), 6)
    assert killed.faults == [] and killed.moments.total() == 6


SITE = """Traceback (most recent call last):
  File "<frozen site>", line 626, in <module>
  File "/usr/lib/python3.11/os.py", line 30, in <module>
    import stat as st
KeyboardInterrupt
"""
MODULE = f"""Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "{ROOT}/experiments/floor.py", line 17, in <module>
    from experiments.shared import cli
KeyboardInterrupt
"""


@pytest.mark.parametrize(
    ("code", "err", "ours"),
    [
        (-signal.SIGINT, "", False),
        (-signal.SIGINT, SITE, False),
        (1, f"Fatal Python error: init_import_site: Failed to import the site module\n{SITE}", False),
        (-signal.SIGINT, MODULE, True),
        (130, "interrupted\n", True),
        (-signal.SIGKILL, "", True),
        (0, f"Exception ignored in: <module 'threading'>\n{SITE}", True),
        (1, SITE.replace("KeyboardInterrupt", "ImportError"), True),
    ],
)
def test_only_ctrl_c_before_our_first_line_is_pythons_own(code: int, err: str, ours: bool) -> None:
    assert started(code, err) is ours


@pytest.mark.parametrize("kind", hostile.KINDS)
def test_an_input_is_made_anew_from_its_seed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hostile, "checkpoint", hostile.checkpoint.__wrapped__)
    inputs = []
    for place in ("a", "b"):
        here = tmp_path / place
        (here / "out").mkdir(parents=True)
        monkeypatch.chdir(here)
        hostile.KINDS[kind](Random("7"), here, here / "out")
        files = (p for p in here.rglob("*") if p.is_file() and "tiny" not in p.parts)
        inputs.append({p.relative_to(here): p.read_bytes() for p in sorted(files)})
    assert inputs[0] == inputs[1] and (inputs[0] or kind == "command line")


def crash() -> None:
    raise ZeroDivisionError("a bug")


def refuse(text: str) -> Callable[[], None]:
    def call() -> None:
        raise UserError(text)

    return call


@pytest.mark.parametrize(
    ("call", "status", "said"),
    [
        (lambda: None, "read", ""),
        (refuse("x.json: no"), "refused", "error: x.json: no\n"),
        (refuse("two\nlines"), "refused", "error: two lines\n"),
        (refuse("x" * 3000), "refused", "xx ... xx"),
        (lambda: sys.stderr.write("Traceback") and sys.exit(2), "failed", "exit code 2: Traceback"),
        (crash, "failed", "ZeroDivisionError: a bug"),
        (lambda: sys.exit(1), "failed", "exit code 1"),
        (lambda: sys.exit(0), "read", ""),
    ],
)
def test_what_counts_as_a_failure(call: Callable[[], object], status: str, said: str) -> None:
    outcome = ending(call)
    assert outcome[0] == status and said in outcome[1]


@pytest.mark.parametrize(
    ("act", "seen"),
    [
        ("open('out/x', 'w').close(); os.mkdir('out/y'); os.rename('out/x', 'out/z')", ""),
        ("open('input', 'rb')", ""),
        ("open('x', 'w')", "open ('x'"),
        ("open('out/../x', 'a')", "open ('out/../x'"),
        ("os.symlink('..', 'out/up'); open('out/up/x', 'w')", "open ('out/up/x'"),
        ("os.remove('input')", "os.remove ('input'"),
        ("os.mkdir('x')", "os.mkdir ('x'"),
        ("os.rename('out', 'x')", "os.rename ('out', 'x'"),
        ("subprocess.run(['true'])", "subprocess.Popen"),
        ("os.system('true')", "os.system"),
        ("pickle.loads(pickle.dumps(Path))", "pickle.find_class"),
        ("socket.create_connection(('127.0.0.1', 9))", "socket.connect"),
    ],
)
def test_the_watch_sees_what_must_not_be(act: str, seen: str, tmp_path: Path) -> None:
    code = (
        "import os, pickle, socket, subprocess, sys; from pathlib import Path\n"
        "from experiments.shared.fuzzing import _Watch\n"
        f"os.chdir({str(tmp_path)!r}); os.mkdir('out'); open('input', 'w').close()\n"
        "watch = _Watch(); sys.addaudithook(watch); watch.out = Path('out').resolve()\n"
        f"try: {act}\nexcept PermissionError: pass\n"
        "watch.out = None; print(watch.seen)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith(seen) and bool(done.stdout.strip()) == bool(seen)


def test_an_input_that_hangs_or_kills_is_a_failure_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = fuzzing._Worker(tmp_path / "worker")
    try:
        monkeypatch.setattr(fuzzing, "LIMIT_S", 0.0)
        assert worker.ask(Job("trace", 0, 0)).message == "took longer than 0 s"
        monkeypatch.setattr(fuzzing, "LIMIT_S", 60.0)
        os.kill(worker.process.pid or 0, 9)
        assert worker.ask(Job("trace", 0, 0)).message == "the process was killed"
        assert worker.ask(Job("index", 0, 0)).status in ("read", "refused")
    finally:
        worker.end()


def test_a_failure_is_kept_with_its_seed_and_ends_in_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def run_all(jobs: Sequence[Job], workers: int, scratch: Path, failed: Any) -> Iterator[Outcome]:
        for name in ("input", "out"):
            (scratch / name).mkdir()
        (scratch / "input" / "trace.json").write_text("[")
        for job in jobs:
            outcome = Outcome(job, "failed", 0.5, "Traceback\nKeyError: 'ts'")
            failed(outcome, scratch)
            yield outcome

    monkeypatch.setattr(fuzzing, "run_all", run_all)
    flags = ["--inputs", "1", "--kind", "trace", "--first", "41", "--seed", "3", "--out", str(tmp_path)]
    assert fuzz.main(flags) == 1
    (path,) = tmp_path.iterdir()
    assert (path / "failures" / "trace-41" / "input" / "trace.json").read_text() == "["
    said = "--kind 'trace' --seed 3 --first 41 --inputs 1: KeyError: 'ts'"
    assert RunFolder.load(path, FuzzRecord).record.faults == [said]
    assert said in (path / "report.md").read_text() and said in " ".join(capsys.readouterr().out.split())


def stopped_after(n: int, parts: Iterator[Any]) -> Iterator[Any]:
    yield from islice(parts, n)
    raise KeyboardInterrupt


def outcomes(jobs: Sequence[Job], *_: Any) -> Iterator[Outcome]:
    return (Outcome(job, "failed" if job.number == 0 else "read", 0.5, "no") for job in jobs)


def tallies(seed: int, folder: Path) -> Iterator[Killed]:
    return (Killed(Counter({"behind proofs": n}), n // 2, ["a fault"]) for n in range(1, 100))


@pytest.mark.parametrize("how", ["Ctrl-C", "--max-time"])
def test_a_run_that_is_stopped_leaves_its_counts(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    flags = ["--kind", "trace", "--inputs", "3", "--kills", "9", "--out", str(tmp_path)]
    monkeypatch.setattr(fuzzing, "run_all", outcomes)
    if how == "Ctrl-C":
        monkeypatch.setattr(kills, "kill_runs", lambda *args: stopped_after(4, tallies(*args)))
        with pytest.raises(KeyboardInterrupt):
            fuzz.main(flags)
    else:
        times = iter(range(100))  # seconds: the end is asked for, then each of the inputs and kills looks
        monkeypatch.setattr(kills, "kill_runs", tallies)
        monkeypatch.setattr(fuzz, "time", SimpleNamespace(monotonic=lambda: next(times)))
        assert fuzz.main([*flags, "--max-time", "8"]) == 1
    (path,) = tmp_path.iterdir()
    record = RunFolder.load(path, FuzzRecord).record
    assert (record.status, record.inputs, record.killed, record.whole) == ("incomplete", 3, 4, 2)
    assert len(record.faults) == 2
    said = "3 inputs, 4 of 9 kills, seed 0 (partial: it was stopped): 2 faults"
    assert said in (path / "report.md").read_text() and said in " ".join(capsys.readouterr().out.split())


def test_inputs_that_are_stopped_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "run_all", lambda jobs, *_: stopped_after(7, outcomes(jobs)))
    with pytest.raises(KeyboardInterrupt):
        fuzz.main(["--inputs", "20", "--out", str(tmp_path)])
    (path,) = tmp_path.iterdir()
    record = RunFolder.load(path, FuzzRecord).record
    assert record.inputs == 7 and record.partial and "7 of 20 inputs" in (path / "report.md").read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--kind", "novel"], "unknown kind novel"),
        (["--inputs", "-1"], "from 0"),
        (["--workers", "0"], "from 1"),
    ],
)
def test_bad_flags_write_nothing(flags: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        fuzz.main([*flags, "--out", str(tmp_path / "runs")])
    assert not (tmp_path / "runs").exists()
