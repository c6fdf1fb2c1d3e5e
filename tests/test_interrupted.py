"""Whatever ends a run, whenever: its folder renders, goes on or says why not, and nothing is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from floor_run import ROOT, copied

from experiments import floor
from experiments.shared import cli
from profiling.measure import runner
from profiling.measure.proving import Proving
from profiling.measure.runner import Runner
from profiling.measure.visits import Steps
from profiling.results import folder
from profiling.results.folder import PART, RunFolder, part_of
from profiling.results.record import FloorRecord
from reports.build import build
from variants.errors import UserError

FAST = ["--model", "tiny", "--context", "6,20", "--rounds", "3", "--quick", "--max-time", "1s", "--quiet"]
FAST += ["--variant", "sdpa"]


def read(path: Path) -> FloorRecord:
    return RunFolder.load(path, FloorRecord).record


def ended(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """Exit code and stderr of a floor run."""
    with pytest.raises(SystemExit) as stopped:
        cli.run(floor.main, arguments)
    return stopped.value.code, capsys.readouterr().err


# -- killed ---------------------------------------------------------------------------------------


def phase(record: dict[str, Any]) -> str:
    entries = record.get("variants", {}).values()
    states = {
        "traced": any(entry.get("trace") for entry in entries),
        "in the duel": bool(record.get("duel")),
        "timed": bool(record.get("samples")),
        "proven": any(entry.get("gate") for entry in entries),
        "peaks known": bool(record.get("peaks")),
        "described": bool(record.get("environment")),
    }
    return next((name for name, there in states.items() if there), "begun")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By phase, the folder as `kill -9` would have left it while the first record after it was written."""
    out, folders = tmp_path_factory.mktemp("run"), dict[str, Path]()
    replace = Path.replace

    def copied_before(part: Path, target: Path) -> Path:
        if target.name == "run.json" and target.exists():
            name = phase(json.loads(target.read_bytes()))
            if name not in folders:
                folders[name] = tmp_path_factory.mktemp("killed") / "run"
                shutil.copytree(target.parent, folders[name])
        return replace(part, target)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "replace", copied_before)
        floor.main([*FAST, "--out", str(out)])
    return folders


PHASES = ("begun", "described", "peaks known", "proven", "timed", "in the duel", "traced")


@pytest.mark.parametrize("moment", PHASES)
def test_a_killed_run_renders(killed: dict[str, Path], moment: str) -> None:
    assert list(killed[moment].glob(f"*{PART}")), "it was killed while it wrote"
    build(killed[moment])
    assert "**This run is unfinished**" in (killed[moment] / "report.md").read_text("utf-8")


@pytest.mark.parametrize("moment", ["described", "timed"])
def test_a_killed_run_goes_on_with_all_that_it_had(
    killed: dict[str, Path], moment: str, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    shutil.copytree(killed[moment], path)
    before = read(path)
    floor.main(["--resume", str(path), "--quick", "--max-time", "1s", "--quiet"])
    after = read(path)
    assert after.status == "complete" and len(after.samples) >= len(before.samples)
    assert after.samples[: len(before.samples)] == before.samples and after.entropy == before.entropy
    assert not list(path.rglob(f"*{PART}"))


def test_a_run_that_was_only_begun_says_why_it_cannot_go_on(killed: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="before it measured anything: start anew"):
        floor.main(["--resume", str(killed["begun"])])


def test_a_resumed_run_that_is_killed_while_it_proves_keeps_what_was_found(
    killed: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    shutil.copytree(killed["traced"], path)
    before = read(path)
    monkeypatch.setattr(Runner, "prepare", interrupt)
    with pytest.raises(KeyboardInterrupt):
        floor.main(["--resume", str(path), "--quiet"])
    assert read(path).variants == before.variants and read(path).duel == before.duel


# -- Ctrl-C ---------------------------------------------------------------------------------------


def interrupt(*arguments: object, **named: object) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (runner, "environment"),
        (runner, "peaks"),
        (Proving, "decoder"),
        (Steps, "__call__"),
        (runner, "fight"),
        (Runner, "trace"),
        (RunFolder, "finish"),
    ],
    ids=lambda place: getattr(place, "__name__", place),
)
def test_ctrl_c_ends_in_one_line_and_a_report(
    place: object, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr(place, name, interrupt)
    assert ended([*FAST, "--out", str(tmp_path)], capsys) == (130, "interrupted\n")
    (path,) = tmp_path.iterdir()
    report = (path / "report.md").read_bytes()
    assert b"**This run is unfinished**" in report
    build(path)
    assert (path / "report.md").read_bytes() == report


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("-m experiments.floor --quick", "msgspec"),  # imported at the top of the module
        ("-m experiments.floor --quick", "torch"),  # imported once the flags are read
        ("-m experiments", "rich"),
        ("-m reports.build runs", "msgspec"),
        ("-m profiling.measure.kernels", "torch"),
        ("-m variants.backends.triton_step.aot", "torch"),
        ("decode-floor --help", "rich"),
    ],
)
def test_ctrl_c_during_the_imports_ends_in_one_line(command: str, module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    words = command.split()
    if words[0] != "-m":
        words = ["-c", f"import sys; sys.argv = {words}; from experiments.__main__ import main; main()"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_to_import_us_changes_nothing_for_others() -> None:
    code = "import sys, experiments, reports; assert sys.excepthook is sys.__excepthook__"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


# -- a disk that is full, a folder that cannot be written, a clock that goes back ------------------


@pytest.mark.skipif(sys.platform == "win32", reason="the limit is POSIX's")
def test_a_full_disk_is_one_line_and_keeps_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))  # a record that is described fits
    try:
        code, said = ended([*FAST, "--out", str(tmp_path)], capsys)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2 and said.startswith("error: ") and said.count("\n") == 1
    assert "cannot be written (File too large)" in said
    (path,) = tmp_path.iterdir()
    assert read(path).environment is not None and not list(path.rglob(f"*{PART}"))
    build(path)
    floor.main(["--resume", str(path), "--quick", "--max-time", "1s", "--quiet"])
    assert read(path).status == "complete"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = copied(tmp_path / "run", lambda record: record.update(status="incomplete"))
    (path / folder.LOCK).mkdir()
    with pytest.raises(UserError, match=r"run: cannot be written \(Is a directory\)"):
        RunFolder.resume(path, FloorRecord)


def test_a_clock_that_was_set_back_disturbs_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    class Earlier(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(1999, 12, 31, tzinfo=UTC)

    run = RunFolder.create(tmp_path, FloorRecord, "cpu")
    monkeypatch.setattr(folder, "datetime", Earlier)
    run.finish()
    build(run.path)
    other, one_more = (RunFolder.create(tmp_path, FloorRecord, "cpu").path for _ in range(2))
    assert read(run.path).finished == "1999-12-31T00:00:00+00:00" and other != one_more


# -- two writers ----------------------------------------------------------------------------------


def test_a_second_writer_is_refused_in_one_line(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, FloorRecord, "cpu")
    with pytest.raises(UserError, match="another process writes on this run"):
        RunFolder.resume(run.path, FloorRecord)
    assert RunFolder.load(run.path, FloorRecord).record == run.record, "anyone may read it"
    build(run.path)
    run.finish()
    RunFolder.resume(run.path, FloorRecord).release()


def test_the_lock_of_a_dead_process_is_taken_over_and_its_parts_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from profiling.results.folder import RunFolder, part_of\n"
        "from profiling.results.record import FloorRecord\n"
        "run = RunFolder.create(Path(sys.argv[1]), FloorRecord, 'cpu')\n"
        "for place in (run.path, run.traces): part_of(place / 'x').write_text('half')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, timeout=120)
    assert done.returncode == -signal.SIGKILL
    (path,) = tmp_path.iterdir()
    assert len(list(path.rglob(f"*{PART}"))) == 2
    run = RunFolder.resume(path, FloorRecord)
    assert not list(path.rglob(f"*{PART}")) and run.lock is not None


def test_two_writers_of_one_file_do_not_share_a_part(tmp_path: Path) -> None:
    assert len({part_of(tmp_path / "run.json") for _ in range(50)}) == 50


@pytest.mark.skipif(sys.platform == "win32", reason="the call is POSIX's")
def test_a_file_system_without_locks_keeps_nobody_away(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    assert RunFolder.create(tmp_path, FloorRecord, "cpu").path.exists()
