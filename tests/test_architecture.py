"""Imports go one way, reports and help know no torch, every experiment answers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted(p.stem for p in (ROOT / "experiments").glob("[a-z]*.py"))

# Every room, in the order in which they may know each other: each imports itself and what stands above it.
ROOMS = (
    *("variants", "variants.slots", "variants.executors", "variants.backends"),
    *("profiling.trace", "profiling.cost", "profiling.gate", "profiling.results"),
    *("profiling.sizing", "profiling.analysis", "profiling.measure", "profiling.peers"),
    *("reports", "experiments.shared", "experiments"),
)

NEEDS_TORCH = ("profiling.gate", "profiling.measure", "profiling.peers")


def room_of(module: str) -> str | None:
    """The innermost room that a module is in; None for a module that is not ours."""
    inside = [room for room in ROOMS if module == room or module.startswith(f"{room}.")]
    return max(inside, key=len, default=None)


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    named = {
        f"{node.module}.{alias.name}" if room_of(f"{node.module}.{alias.name}") else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    return plain | named


def files_of(room: str) -> list[Path]:
    files = (ROOT / room.replace(".", "/")).rglob("*.py")
    return [file for file in files if room_of(".".join(file.relative_to(ROOT).with_suffix("").parts)) == room]


def test_every_file_is_in_a_room() -> None:
    for package in ("profiling", "reports", "experiments"):
        loose = [p.name for p in (ROOT / package).glob("*.py") if p.name != "__init__.py"]
        assert not loose or room_of(package) == package, loose


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    # the decoder is built of slots, executors and backends, and they of its model: one floor, both directions
    above = ROOMS[: 4 if room.startswith("variants") else ROOMS.index(room) + 1]
    if room == "reports":
        above = tuple(r for r in above if r not in NEEDS_TORCH)
    for file in files_of(room):
        for name in imported(file):
            assert room_of(name) in (None, *above), f"{file.relative_to(ROOT)} imports {name}"


def without_torch(code: str) -> None:
    check = f"import sys; sys.modules['torch'] = None\n{code}"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT, timeout=120)


def test_reports_never_import_torch() -> None:
    files = [p.relative_to(ROOT).with_suffix("") for p in (ROOT / "reports").rglob("[a-z]*.py")]
    modules = [".".join(file.parts) for file in files]
    without_torch("\n".join(f"import {module}" for module in modules))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_help_needs_no_torch(name: str) -> None:
    without_torch(
        f"import contextlib, runpy\nsys.argv = ['experiments.{name}', '--help']\n"
        f"with contextlib.suppress(SystemExit): runpy.run_module('experiments.{name}', run_name='__main__')"
    )
