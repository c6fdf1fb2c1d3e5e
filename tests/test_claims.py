"""Published figures and claims: all are checked, the verdict follows, every experiment is listed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import __main__ as listing
from experiments.shared import claims
from experiments.shared.published import PUBLISHED, Check
from experiments.shared.reproduced import device_checks, sizing_checks, work_checks
from profiling.forecast.devices import DEVICES
from profiling.results.record import ClaimKind
from reports.experiment import claims_table

FOLDER = Path(listing.__file__).parent


def test_every_figure_that_no_machine_can_change_is_reproduced_once() -> None:
    keys = [check.key for check in [*work_checks(), *sizing_checks()]]
    assert sorted(keys) == sorted(
        key for key, figure in PUBLISHED.items() if figure.kind is ClaimKind.ARITHMETIC
    )


def test_the_articles_print_these_values() -> None:
    """Each value stands in its article as printed (where the articles are at hand)."""
    folder = FOLDER.parents[1] / "shared" / "seeds"
    if not folder.is_dir():
        pytest.skip("the articles are not beside this checkout")
    spelled = {"×": "x", "µ": "u", "μ": "u", r"\ \text{GiB}": " GiB", "makes it 32": "makes it 32 GiB"}
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.txt"))]
    for key, figure in PUBLISHED.items():
        text = texts[figure.article - 1]
        for theirs, ours in spelled.items():
            text = text.replace(theirs, ours)
        assert figure.value in text, key


def test_every_figure_is_looked_at_by_an_experiment() -> None:
    """A claim that no experiment emits would stand as not measured for ever."""
    emitted = []
    for file in [*FOLDER.glob("*.py"), *(FOLDER / "shared").glob("reproduced.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                emitted.append(re.escape(node.value))
            if isinstance(node, ast.JoinedStr):
                parts = (
                    re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"[\w.]+" for p in node.values
                )
                emitted.append("".join(parts))
    known = [re.compile(pattern) for pattern in emitted if "." in pattern and " " not in pattern]
    assert not [key for key in PUBLISHED if not any(pattern.fullmatch(key) for pattern in known)]


def test_an_accelerator_needs_flops_per_byte_where_the_article_says_macs() -> None:
    """An A100 of 312 TFLOP/s and 2.0 TB/s: 156 FLOPs, 78 MACs per byte."""
    needed, missed = device_checks()
    assert DEVICES["A100-80GB"].tflops * 1e3 / DEVICES["A100-80GB"].bandwidth_gb_per_s == pytest.approx(
        153, abs=1
    )
    assert needed.holds is False and "FLOPs per byte" in needed.here
    assert missed.holds is True


def test_a_claim_holds_only_if_everything_holds() -> None:
    right, wrong = Check("tokens.cached", "522"), Check("toy.ratio", "33.9x", "because")
    assert claims.verdict("it", [right]) == "Claim holds here: it (1 of 1 figures as published)."
    assert claims.verdict("it", [right], also=False).startswith("Claim does not hold")
    broken = claims.verdict("it", [right, wrong])
    assert broken == "Claim does not hold here: it (1 of 2 figures as published; not toy.ratio)."
    assert [claim.holds for claim in claims.rows([right, wrong])] == [True, False]
    assert [row[-2] for row in claims_table(claims.rows([right, wrong])).rows] == ["yes", "no"]


def test_every_experiment_is_listed_with_its_question() -> None:
    questions = listing.questions()
    assert {"floor", "work", "sizing"} <= set(questions)
    assert all("?" in question for question in questions.values()), questions


def test_the_list_needs_no_torch() -> None:
    code = "import sys; from experiments.__main__ import main; main(); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"COLUMNS": "80"})
    assert done.returncode == 0 and "sizing" in done.stdout
