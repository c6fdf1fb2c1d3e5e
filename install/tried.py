"""A plugin of pytest that notes what was tried where: python -m pytest -p install.tried --tried "quick set"

Keeps one row per Python, torch and set of tests in install/tried.json, and shows them all in README.md.
A row is written only where every test passed.
"""

from __future__ import annotations

import json
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
ROWS = ROOT / "install" / "tried.json"
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- tried -->\n).*?(<!-- end -->)", flags=re.DOTALL)
HEADS = ("Python", "torch", "Triton", "platform", "tests", "passed", "skipped")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tried", metavar="NAME", help="name of this set of tests in install/tried.json")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Of the process that the others report to; theirs have no terminal."""
    if exitstatus or not config.getoption("--tried"):
        return
    counts = [str(len(terminalreporter.stats.get(outcome, []))) for outcome in ("passed", "skipped")]
    system = f"{platform.system()} {platform.machine()}"
    here = (platform.python_version(), torch.__version__, triton(), system, config.getoption("--tried"))
    rows = json.loads(ROWS.read_text("utf-8")) if ROWS.exists() else []
    others = [row for row in rows if tuple(row[:5]) != here]
    rows = sorted([*others, [*here, *counts]])
    ROWS.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    README.write_text(with_table(README.read_text("utf-8"), rows), "utf-8")


def triton() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:
        return "none"


def with_table(text: str, rows: list[list[str]]) -> str:
    """README with the table of these rows."""
    lines = [HEADS, ("---",) * len(HEADS), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return BLOCK.sub(lambda block: f"{block[1]}{table}\n{block[2]}", text)
