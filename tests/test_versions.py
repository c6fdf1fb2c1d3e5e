"""Two versions of this project in a duel: each runs its own code, in processes of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from floor_run import ROOT
from records import MADE

from experiments import duel
from experiments.shared import cli
from profiling.results.folder import RunFolder
from profiling.results.record import DuelBlock, DuelRecord, DuelSteps

FLAGS = ["--model", "tiny", "--context", "10", "--threads", "1", "--max-time", "1s", "--quiet", "--json"]


def slower_checkout(place: Path) -> Path:
    """The packages that a step needs, with a wait of 5 ms in every step of the modules."""
    for name in ("variants", "profiling"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    file = place / "variants" / "backends" / "modules.py"
    text = file.read_text("utf-8")
    changed = text.replace(
        "logits = self.forward(token", "__import__('time').sleep(0.005)\n        logits = self.forward(token"
    )
    assert changed != text
    file.write_text(changed)
    return place


def test_each_side_runs_its_own_code(tmp_path: Path, capsys: Any) -> None:
    after = slower_checkout(tmp_path / "after")
    assert duel.main([str(ROOT), str(after), *FLAGS, "--out", str(tmp_path / "runs")]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    record = RunFolder.load(Path(said["run"]), DuelRecord).record
    assert min(block.means[1] for block in record.duel.blocks if block.second == "after") >= 5.0
    assert len(set(map(tuple, record.tokens.values()))) == 1 and set(record.tokens) == {
        "before",
        "before again",
        "after",
    }
    assert "both write the same tokens" in (Path(said["run"]) / "report.md").read_text()


def made(after: float, again: float) -> DuelRecord:
    """Blocks whose steps are these times the first's, up to a thousandth."""
    blocks = [
        DuelBlock("before", name, False, (10.0, 10.0 * by * (1 + n % 3 / 1000), 10.0 * by, 10.0))
        for n in range(40)
        for name, by in (("after", after), ("before again", again))
    ]
    return DuelRecord(**MADE, variant="sdpa", context=10, duel=DuelSteps(turns=40, looks=[40], blocks=blocks))


@pytest.mark.parametrize(
    ("after", "again", "word"),
    [
        (1.1, 1.0, "slower"),
        (0.9, 1.0, "faster"),
        (1.02, 1.05, "not seen to differ"),
        (0.98, 0.95, "not seen to differ"),
    ],
)
def test_nothing_smaller_than_the_noise_is_said(after: float, again: float, word: str) -> None:
    record = made(after, again)
    change = duel.ratio(record, "after")
    assert duel.word(record) == word and change and change.contains(after * 1.0005)


def test_without_blocks_nothing_is_known() -> None:
    assert duel.word(DuelRecord(**MADE)) == "unknown"


@pytest.mark.parametrize(
    ("places", "flags", "said"),
    [
        ((".", "nowhere"), [], "nowhere: neither a checkout of this project nor an interpreter"),
        ((".", "."), ["--variant", "fastest"], "before: KeyError: 'fastest'"),
        ((".", "."), ["--context", "60"], "--context must be from 1 to 48"),
        (("/bin/echo", "."), [], "before: it says '-P "),
        (("/bin/false", "."), [], "before: its process ended with status 1"),
    ],
)
def test_bad_input_is_one_line(
    places: tuple[str, str], flags: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as stopped:
        cli.run(duel.main, [*places, *FLAGS, *flags, "--out", str(tmp_path / "runs")])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1
    assert said in error
    assert not (tmp_path / "runs").exists()


def test_a_checkout_that_cannot_be_imported_says_why(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "variants").mkdir()
    (tmp_path / "variants" / "__init__.py").write_text("")
    (tmp_path / "variants" / "command.py").write_text("def run(:\n")
    with pytest.raises(SystemExit, match="2"):
        cli.run(duel.main, [str(tmp_path), str(ROOT), *FLAGS, "--out", str(tmp_path / "runs")])
    error = capsys.readouterr().err
    assert "before: its process ended with status 1 (SyntaxError: " in error and error.count("\n") == 1
