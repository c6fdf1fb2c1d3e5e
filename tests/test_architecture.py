"""Imports go one way, reports and help know no torch, every experiment answers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = ["variants", "profiling", "experiments"]  # each may import itself and what stands before it
EXPERIMENTS = sorted(p.stem for p in (ROOT / "experiments").glob("[a-z]*.py"))


def imported(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    plain = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return plain | {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}


@pytest.mark.parametrize("package", ORDER)
def test_imports_go_one_way(package: str) -> None:
    forbidden = {*ORDER[ORDER.index(package) + 1 :]} | ({"reports"} if package != "experiments" else set())
    for file in (ROOT / package).rglob("*.py"):
        assert not {name.split(".")[0] for name in imported(file)} & forbidden, file


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
