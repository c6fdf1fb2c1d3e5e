"""Question: which experiments are there, and what does each answer?

python -m experiments, or after installation decode-floor
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from experiments.shared.cli import run
from profiling.results.record.page import Table
from reports.printers.console import print_blocks
from variants.errors import UserError
from variants.version import version


def questions() -> dict[str, str]:
    """Module name -> the question that its docstring opens with; nothing is imported."""
    by_module = {}
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        first, _, _ = docstring.partition("\n\n")
        by_module[file.stem] = " ".join(first.removeprefix("Question: ").split())
    return by_module


def main(argv: Sequence[str] | None = None) -> None:
    """Console script `decode-floor`: runs what is named first with the other arguments, or lists all."""
    name, *arguments = argv or sys.argv[1:] or ["--help"]
    names = {name: f"experiments.{name}" for name in questions()} | {"report": "reports.build"}
    if name in names:
        run(import_module(names[name]).main, arguments)
    if name == "--version":
        run(_version, [])
    run(_list if name in ("-h", "--help") else _refuse, [name])


def _list(names: Sequence[str] | None) -> None:
    title = "decode-floor NAME, or python -m experiments.NAME"
    print_blocks(Console(), [Table(("name", "question"), list(questions().items()), 2, title)])


def _version(names: Sequence[str] | None) -> None:
    sys.stdout.write(f"{version()}\n")


def _refuse(names: Sequence[str] | None) -> None:
    raise UserError(f"no experiment is named {', '.join(names or ())}; `decode-floor` alone lists all")


if __name__ == "__main__":
    main()
