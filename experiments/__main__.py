"""Question: which experiments are there, and what does each answer?

python -m experiments
"""

from __future__ import annotations

import ast
from pathlib import Path

from rich.console import Console

from experiments._ruled import ruled


def questions() -> dict[str, str]:
    """Module name -> the question that its docstring opens with; nothing is imported."""
    found = {}
    for file in sorted(Path(__file__).parent.glob("[!_]*.py")):
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        first, _, _ = docstring.partition("\n\n")
        found[file.stem] = " ".join(first.removeprefix("Question: ").split())
    return found


def main() -> None:
    table = ruled("python -m experiments.NAME", ("name", "question"), ())
    for name, question in questions().items():
        table.add_row(name, question)
    Console().print(table)


if __name__ == "__main__":
    main()
