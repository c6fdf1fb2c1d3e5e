"""What all command lines share: how they refuse numbers that no run can use."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import pytest

from experiments import _cli

ROOT = Path(__file__).parent.parent


def with_flag(flag: str) -> list[str]:
    """The experiments that know `flag`."""
    texts = {file.stem: file.read_text("utf-8") for file in (ROOT / "experiments").glob("[a-z]*.py")}
    return sorted(name for name, text in texts.items() if "common_parser(" in text or f'"{flag}"' in text)


def refusal(name: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        _cli.run(import_module(f"experiments.{name}").main, flags)
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
    parser = _cli.common_parser("experiments.floor", "")
    assert parser.parse_args(["--threads", str(most)]).threads == most
