"""What all command lines share: how they refuse numbers that no run can use, and how they end."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from floor_run import ROOT, copied

from experiments.shared import cli
from profiling.results.folder import RunFolder
from profiling.results.record import Record
from variants.known_configs import KNOWN_CONFIGS

CORES = os.cpu_count() or 1


def with_flag(flag: str) -> list[str]:
    """The experiments that know `flag`."""
    texts = {file.stem: file.read_text("utf-8") for file in (ROOT / "experiments").glob("[a-z]*.py")}
    return sorted(name for name, text in texts.items() if "common_parser(" in text or f'"{flag}"' in text)


def refusal(name: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.run(import_module(f"experiments.{name}").main, flags)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1
    return error


@pytest.mark.parametrize("name", with_flag("--seed"))
@pytest.mark.parametrize("seed", ["-1", str(2**63)])
def test_a_seed_is_what_every_generator_takes(
    name: str, seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`random` takes -1 for 1, torch fails from 2^64 on."""
    flags = ["--seed", seed, "--out", str(tmp_path / "runs")]
    assert f"--seed must be from 0 to 2^63 - 1, got {seed}" in refusal(name, flags, capsys)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", with_flag("--threads"))
@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "at least 1, got 0 "),
        (-3, "at least 1, got -3 "),
        (4 * CORES + 1, f"got {4 * CORES + 1}: beyond 4 for each of the {CORES} cores"),
    ],
)
def test_threads_that_only_wait_for_each_other_are_refused(
    name: str, count: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--threads", str(count), "--out", str(tmp_path / "runs")]
    assert said in f"{refusal(name, flags, capsys).strip()} "
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("flag", ["--batch", "--steps", "--rounds"])
def test_none_of_something_is_refused_by_every_experiment_that_has_it(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others = ("sizing", "gpu_check")  # whose --batch is a list, and which names the flags of what it starts
    names = [name for name in with_flag(flag) if name not in others]
    assert len(names) > 10
    for name in names:
        error = refusal(name, [flag, "0", "--out", str(tmp_path / "runs")], capsys)
        assert f"{flag} must be at least 1, got 0" in error, name
    assert not (tmp_path / "runs").exists()


# -- what a command line may hold -----------------------------------------------------------------

QUICKEST = ["--quiet", "--json", "--layers", "2", "--heads", "4", "--kv-heads", "4", "--head-dim", "8"]
QUICKEST += ["--kv-dtype", "fp8"]


@pytest.mark.parametrize(
    ("out", "said"),
    [("x" * 300, "File name too long"), ("nul\0", "NUL character"), ("\udcff", "not valid UTF-8")],
    ids=["long", "NUL", "bytes"],
)
@pytest.mark.parametrize("name", ["sizing", "work"])
def test_a_place_that_cannot_be_is_refused(
    name: str, out: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = QUICKEST if name == "sizing" else ["--model", "tiny", "--quick"]
    assert said in refusal(name, [*flags, "--out", out], capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("out", ["two words", "-dash", "größe ✓", "a'b\"c", "line\nend", "*"], ids=ascii)
def test_an_odd_place_is_written_and_its_command_can_be_copied(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sizing", *QUICKEST, f"--out={out}"])
    with pytest.raises(SystemExit) as stopped:
        cli.run(import_module("experiments.sizing").main)
    printed = capsys.readouterr()
    assert (stopped.value.code, printed.err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == [out]
    path = Path(json.loads(printed.out)["run"])
    record = RunFolder.load(path, Record).record
    assert shlex.split(record.command)[3:] == sys.argv[1:] and (path / "report.html").exists()


@pytest.mark.parametrize("flag", ["--out", "--model", "--seed", "--context"])
def test_a_flag_without_its_value_is_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected one argument" in refusal("floor", [flag, "--quick"], capsys)


def test_what_the_system_refuses_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main(argv: object) -> int:
        raise OSError(28, "No space left on device", "runs/run.json")

    with pytest.raises(SystemExit) as stopped:
        cli.run(main, [])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "error: runs/run.json: No space left on device\n"


def test_a_shape_beyond_memory_is_refused_before_it_is_asked_for(tmp_path: Path, capsys: Any) -> None:
    raw = {**KNOWN_CONFIGS["llama-2-7b"], "hidden_size": 1 << 20, "num_attention_heads": 1 << 13}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    flags = ["--shape", str(tmp_path / "config.json"), "--out", str(tmp_path / "runs")]
    assert "the weights take" in refusal("floor", flags, capsys)
    assert not (tmp_path / "runs").exists()


DEFAULTS = {
    "floor": ("10,100,500,1000, with", "2", "8, with --quick 4"),
    "context": ("8,10,32,64,", "2", "20, with --quick 3"),
    "batch": ("100", "2", "20, with --quick 3"),
    "paging": ("10,100,500,1000, with", "2", "20, with --quick 4"),
    "throughput": ("10", None, "3, with --quick 1"),
    "memory": ("64,128,256,", None, None),
    "faults": (None, "48, with --quick 24", None),
    "generate": (None, None, None),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_help_says_what_is_done_without_a_flag(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        import_module(f"experiments.{name}").main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for flag, default in zip(
        ("--context N,N", "--steps STEPS", "--rounds ROUNDS"), DEFAULTS[name], strict=True
    ):
        said = ": no meaning here" if default is None else rf" \(default {default}"
        assert re.search(rf"{flag} [a-z][^(:]*{said}", text), flag


def test_more_threads_than_cores_are_allowed(tmp_path: Path) -> None:
    most = 4 * (os.cpu_count() or 1)
    parser = cli.common_parser("experiments.floor", "")
    assert parser.parse_args(["--threads", str(most)]).threads == most


COMMANDS = {
    "list": ["-m", "experiments"],
    "help": ["-m", "experiments.floor", "--help"],
    "rich": ["-m", "experiments.work", "--quick", "--model", "tiny", "--out", "OUT"],
    "json": ["-m", "experiments.sizing", "--quiet", "--json", "--out", "OUT"],
    "print": ["-m", "experiments.predict"],
    "report": ["-m", "reports.build", "RUN"],
}


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_closed_pipe_ends_a_command_quietly(name: str, buffered: bool, tmp_path: Path) -> None:
    """As in `... | head -1`, when head was faster."""
    places = {"OUT": str(tmp_path / "runs"), "RUN": str(copied(tmp_path / "floor"))}
    command = [sys.executable, *([] if buffered else ["-u"]), *(places.get(w, w) for w in COMMANDS[name])]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=120)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_ends_in_the_same_way() -> None:
    commands = {}
    for package in ("variants", "profiling", "experiments", "reports"):
        for file in (ROOT / package).rglob("*.py"):
            _, is_command, last = file.read_text("utf-8").partition('if __name__ == "__main__":\n')
            if is_command:
                commands[file.relative_to(ROOT).as_posix()] = last.strip()
    assert commands.pop("experiments/__main__.py") == "main()"  # which runs what is named
    assert len(commands) > 15 and set(commands.values()) == {"run(main)", "cli.run(main)"}


def test_a_default_model_of_an_experiment_is_no_shape() -> None:
    parser = cli.common_parser("experiments.faults", "")
    parser.set_defaults(model="tiny")
    assert parser.parse_args([]).model == "tiny"
    assert parser.parse_args(["--shape", "smollm2-135m"]).model == "shape:smollm2-135m"
