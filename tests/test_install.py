"""What is said about installing: sizes before it begins, and what was tried where."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from test_resolution import PINS, pinned

from install import announce, tried

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "system", [("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"), ("Windows", "AMD64")]
)
@pytest.mark.parametrize("extras", ["", "[test,lint,docs]"])
def test_sizes_are_said_for_each_platform(system: tuple[str, str], extras: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(platform, "system", lambda: system[0])
    monkeypatch.setattr(platform, "machine", lambda: system[1])
    assert announce.main(".venv", extras, "") == 0
    said = capsys.readouterr().out
    assert " GB to load, about " in said and " GB on disk" in said
    assert (f"TORCH_INDEX={announce.CPU_INDEX}" in said) == (system == ("Linux", "x86_64"))


def test_a_size_that_nobody_measured_is_unknown(capsys) -> None:
    announce.main(".venv", "", "https://example.org/whl")
    assert "unknown size" in capsys.readouterr().out


def test_an_old_python_is_refused_in_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    assert announce.main(".venv", "", "") == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1 and "needed is 3.11 to 3.14" in said.err


def test_a_missing_compiler_is_said(monkeypatch) -> None:
    monkeypatch.setattr(announce.shutil, "which", lambda name: None)
    assert announce.compiler().startswith("none found")


def test_the_readme_shows_what_was_tried() -> None:
    text, rows = (ROOT / "README.md").read_text("utf-8"), json.loads(tried.ROWS.read_text("utf-8"))
    assert tried.with_table(text, rows) == text
    pins = pinned(PINS.read_text("utf-8"))
    assert {row[2] for row in rows if row[1].partition("+")[0] == pins["torch"]} <= {pins["triton"]}


@pytest.mark.parametrize("stamp", ["floor", "test"])
def test_only_what_develops_installs_extras(stamp: str, tmp_path: Path) -> None:
    command = ["make", "--dry-run", stamp, f"VENV={tmp_path}/venv", "TORCH_INDEX=https://example.org/whl"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("[test,lint,docs]" in done.stdout) == (stamp == "test")
    assert "--extra-index-url https://example.org/whl" in done.stdout


@pytest.mark.parametrize(("outcome", "rows"), [("True", 1), ("False", 0)])
def test_a_run_is_noted_only_where_every_test_passed(outcome: str, rows: int, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(f"def test_it(): assert {outcome}")
    (tmp_path / "README.md").write_text("<!-- tried -->\n<!-- end -->\n")
    (tmp_path / "install").mkdir()
    (tmp_path / "install" / "tried.py").write_text(
        (ROOT / "install" / "tried.py").read_text("utf-8"), "utf-8"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "install.tried", "--tried", "one", "test_it.py"]
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    noted = tmp_path / "install" / "tried.json"
    assert len(json.loads(noted.read_text()) if noted.exists() else []) == rows
    assert ((tmp_path / "README.md").read_text().count("| one | 1 | 0 |")) == rows


@pytest.mark.parametrize(("without", "compiled"), [("", True), ("PEERS_WITHOUT=llama.cpp", False)])
def test_peers_say_that_one_is_compiled_and_can_do_without(
    without: str, compiled: bool, tmp_path: Path
) -> None:
    command = ["make", "--dry-run", "peers", f"PEERS={tmp_path}", *([without] if without else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("Compiles llama.cpp" in done.stdout) == ("GGML_NATIVE=OFF" in done.stdout) == compiled
    assert "'.[peers]'" in done.stdout
