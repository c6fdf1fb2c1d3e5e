"""Imports go one way, reports and help know no torch, every experiment answers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.shared.map import ROOMS, arrows, diagram, files_of, importers, imports, room_of

ROOT = Path(__file__).parent.parent
EXPERIMENTS = sorted(p.stem for p in (ROOT / "experiments").glob("[a-z]*.py"))

MAX_FILE, MAX_FUNCTION, MAX_SINGLE_SHARE = 300, 45, 0.20  # lines, and of all modules

NEEDS_TORCH = ("profiling.gate", "profiling.measure", "profiling.peers")


def test_every_file_is_in_a_room() -> None:
    for package in ("profiling", "reports", "experiments"):
        loose = [p.name for p in (ROOT / package).glob("*.py") if p.name != "__init__.py"]
        assert not loose or room_of(package) == package, loose


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    order = list(ROOMS)
    # the decoder is built of slots, backends and executors, and they of its model: see the next test
    above = order[: 4 if room.startswith("variants") else order.index(room) + 1]
    if room == "reports":
        above = [other for other in above if other not in NEEDS_TORCH]
    assert arrows()[room] <= {*above}


def test_variants_is_built_from_the_ground_up() -> None:
    """Ground (config, model, ...), slots, backends, executors, and on top what is made of them all."""
    top = ("spec", "ladder", "decoder", "sampling")
    on_top = {f"variants.{name}" for name in top}
    order = list(ROOMS)[:4]
    for room in order[1:]:
        known = {name for file in files_of(room) for name in imports(file)}
        assert not {name for name in known if any(f"{name}.".startswith(f"{t}.") for t in on_top)}, room
        assert arrows()[room] <= {*order[: order.index(room)]}
    for file in files_of("variants"):
        if file.stem not in top:
            assert {room_of(name) for name in imports(file)} <= {"variants", None}, file.stem


def test_the_picture_of_the_rooms_is_todays() -> None:
    assert diagram() in (ROOT / "CONTRIBUTING.md").read_text("utf-8"), "python -m experiments.shared.map"


def test_files_and_functions_are_small() -> None:
    """A file holds one subject, and a function fits a screen; only a kernel is as long as its step."""
    for file in (file for room in ROOMS for file in files_of(room)):
        text = file.read_text(encoding="utf-8")
        assert text.count("\n") <= MAX_FILE, file
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and "triton.jit" not in map(
                ast.unparse, node.decorator_list
            ):
                assert (node.end_lineno or 0) - node.lineno < MAX_FUNCTION, f"{file}: {node.name}"


def test_most_modules_serve_more_than_one_other() -> None:
    """What serves one other is a part of it, unless there is a reason; the map lists them."""
    by = importers()
    single = [name for name, others in by.items() if len(others) == 1]
    assert len(single) < MAX_SINGLE_SHARE * len(by), single


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
