"""What all command lines share: how they refuse numbers that no run can use, and how they end."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from floor_run import ROOT, copied

from experiments.shared import cli


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
@pytest.mark.parametrize("count", [0, -3, 4 * (os.cpu_count() or 1) + 1])
def test_threads_that_only_wait_for_each_other_are_refused(
    name: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--threads", str(count), "--out", str(tmp_path / "runs")]
    error = refusal(name, flags, capsys)
    assert f"got {count}: beyond 4 for each of the {os.cpu_count()} cores" in error
    assert not (tmp_path / "runs").exists()


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
