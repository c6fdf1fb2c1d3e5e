"""The documentation is true: it builds, links lead somewhere, code runs, commands and functions exist."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from floor_run import GOLDEN

from experiments.__main__ import questions
from profiling.peers.engines import engine_rungs
from profiling.results.calibration import IN_PYTHON
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import (
    CalibrateRecord,
    FloorRecord,
    InjectedWait,
    Record,
    RunAnswer,
    StepDifference,
)
from reports import readme
from reports.numbers import number
from variants.backends.plugin import FILE, GROUP
from variants.config import PRESETS
from variants.errors import UserError
from variants.ladder import ladder, transformers_ladder
from variants.spec import SLOTS

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of every fenced block."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", flags=re.M | re.S)
    return [(name, text) for name, page in TEXTS.items() for text in pattern.findall(page)]


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for _, text in blocks("sh") for line in text.splitlines()]
    return sorted({line for line in lines if line})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", TEXTS[page.name]):
        assert target.startswith("https://") or (page.parent / target).is_file(), target


@pytest.mark.parametrize(("page", "code"), blocks("python"))
def test_python_runs(page: str, code: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("variants.config.PRESETS", dict(PRESETS))  # a page adds one
    tokens = torch.zeros(1, 4, dtype=torch.long)
    given = {"torch": torch, "n": 2, "tokens": tokens, "model": lambda tokens: torch.ones(*tokens.shape, 7)}
    exec(compile(code, page, "exec"), given if page == "the-floor.md" else {})


@pytest.mark.parametrize("command", commands())
def test_commands_exist_and_know_their_flags(command: str, capsys) -> None:
    words = shlex.split(command)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), flags=re.M)
        return
    if words[1:3] in (["-m", "venv"], ["-m", "pip"]) or words[0].endswith("/pip"):
        return  # not ours
    assert words[0].endswith("python") and words[1] == "-m", command
    with pytest.raises(SystemExit):
        importlib.import_module(words[2]).main(["--help"])
    flags = set(re.findall(r"--[a-z][a-z-]*", capsys.readouterr().out))
    assert {word for word in words if word.startswith("--")} <= flags
    if "--variant" in words:
        names = words[words.index("--variant") + 1].split(",")
        example = tomllib.loads((ROOT / "examples" / "plugin" / "pyproject.toml").read_text("utf-8"))
        known = {
            "all",
            *ladder(),
            *transformers_ladder("float32"),
            *engine_rungs(),
            *example["project"]["entry-points"][GROUP],
        }
        assert all(
            name in known or (ROOT / name.partition(FILE)[0]).with_suffix(".py").is_file() for name in names
        )


def test_every_function_that_a_page_names_exists() -> None:
    named = {
        name for text in TEXTS.values() for name in re.findall(r"`((?:profiling|variants)(?:\.\w+)+)`", text)
    }
    assert len(named) > 15
    for name in named:
        parts = name.split(".")
        depth = next(n for n in range(len(parts), 0, -1) if importable(".".join(parts[:n])))
        value = importlib.import_module(".".join(parts[:depth]))
        for attribute in parts[depth:]:
            value = getattr(value, attribute)


def importable(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_every_slot_is_in_the_glossary() -> None:
    assert all(f"`{slot}`" in TEXTS["glossary.md"] for slot in SLOTS)


def test_every_variant_that_a_page_asks_for_is_in_the_ladder() -> None:
    assert set(re.findall(r'record\.rung\("([^"]+)"\)', TEXTS["the-floor.md"])) <= set(ladder())


# -- the built pages --------------------------------------------------------------------------------


def build(site: Path, run: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(site)]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "RUN": str(run)}, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("material", reason="needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    built = build(folder, GOLDEN)
    assert built.returncode == 0, built.stderr
    return folder


def test_numbers_come_from_the_record(site: Path) -> None:
    measured = Measured(RunFolder.load(GOLDEN, FloorRecord).record)
    page = (site / "the-floor.html").read_text()
    steps = measured.step_quantiles("cat", measured.contexts[0])
    assert steps and f"{number(steps.median)} ms at context {measured.contexts[0]}" in page
    assert "not measured: " in page  # no CUDA graph in a record of a CPU
    assert "{{" not in page


def test_every_experiment_is_mentioned(site: Path) -> None:
    page = (site / "index.html").read_text()
    assert all(f"<code>{name}</code>" in page for name in questions())


def test_pages_need_no_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page.read_text()), page


def test_a_folder_without_a_record_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the extra `docs`")
    built = build(tmp_path / "site", tmp_path)
    assert (
        built.returncode != 0 and "expected a run folder" in built.stderr and "Traceback" not in built.stderr
    )


def test_without_a_run_the_fullest_published_floor_is_taken(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("mkdocs", reason="needs the extra `docs`")
    spec = spec_from_file_location("numbers_of_docs", ROOT / "docs" / "_numbers.py")
    assert spec and spec.loader
    numbers = module_from_spec(spec)
    spec.loader.exec_module(numbers)
    monkeypatch.delenv("RUN", raising=False)
    monkeypatch.setattr(numbers, "PUBLISHED", tmp_path)
    with pytest.raises(numbers.PluginError, match="no record in"):
        numbers.record_folder()
    record = json.loads((GOLDEN / "run.json").read_text())
    few = {"cat": record["variants"]["cat"]}
    for name, started, experiment, variants in (
        ("a", "2026-02", "floor", record["variants"]),
        ("b", "2026-01", "floor", record["variants"]),
        ("c", "2026-03", "batch", record["variants"]),
        ("d", "2026-04", "floor", few),
    ):
        (tmp_path / name).mkdir()
        fields = {"started": started, "experiment": experiment, "variants": variants}
        (tmp_path / name / "run.json").write_text(json.dumps({**record, **fields, "samples": [], "ttft": []}))
    assert numbers.record_folder() == tmp_path / "a"


def test_the_page_of_proofs_counts_its_tests() -> None:
    pytest.importorskip("triton", reason="without it the files have no tests")
    rows = re.findall(r"^\| [^|]*`(test_\w+\.py)`[^|]*\| (\d+) \| (\d+) \|$", TEXTS["gpu.md"], flags=re.M)
    files = [f"tests/{file}" for file, _, _ in rows]
    counted = collected(files, "not slow"), collected(files, "slow or not slow")
    assert len(rows) > 5
    assert rows == [(file[6:], counted[0][file], counted[1][file]) for file in files]


def collected(files: list[str], chosen: str) -> dict[str, str]:
    """How many tests of each file a run with this -m has."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-m", chosen, *files]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    return dict(re.findall(r"^(\S+): (\d+)$", listed, flags=re.M))


def test_the_readme_shows_what_its_command_makes() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert {name for _, name, _ in readme.BLOCK.findall(text)} == set().union(
        *readme.PARTS.values(), readme.OWN_CODE, readme.OF_A_SHAPE
    )
    for name in ("source", "own_code", "shape", "accuracy"):
        (path,) = re.findall(rf"measured: {name} -->\n.*?\((reports/published/[^/)]+)/report\.md\)", text)
        run = RunFolder.load(ROOT / path, Record)
        assert readme.filled(text, RunFolder(Path(path), run.record)) == text


def test_a_calibration_fills_its_block_and_leaves_the_others(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(readme, "README", tmp_path / "README.md")
    readme.README.write_text(
        "<!-- measured: table -->\nold\n<!-- end -->\n<!-- measured: accuracy -->\nold\n<!-- end -->\n"
    )
    words = (("PARTLY", 0.3), ("PARTLY", 0.6), ("REFUTED", 0.05))
    beside, wait = StepDifference(10.0, [0.01, -0.01] * 4), StepDifference(10.0, [0.1] * 8)
    run = RunFolder(tmp_path / "run", CalibrateRecord(command="", started="2026-11-30"))
    run.update(
        beside_itself=[beside] * 20,
        injected=[InjectedWait(IN_PYTHON, ms, wait, [1.0, 1.1], [2.0, 2.1]) for ms in (1.0, 3.0)],
        runs=[RunAnswer("2026-11-30", 8, word, word, (0.1, high), None) for word, high in words],
    )
    (tmp_path / "run").mkdir()
    run.save()
    readme.main([str(tmp_path / "run")])
    table, _, accuracy = readme.README.read_text().partition("accuracy")
    assert "old" in table and "old" not in accuracy
    assert "of 20 duels of a step with itself 0 called it different" in accuracy
    assert "of 2 waits of a known length 1 were found within 5 % or 20 us, 1 put into" in accuracy
    assert "All 3 whole runs said PARTLY (2) or REFUTED (1); 2 of them bound" in accuracy


def test_another_run_replaces_every_number(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(readme, "README", tmp_path / "README.md")
    readme.README.write_text("kept\n<!-- measured: table -->\nold\n<!-- end -->\nkept\n")
    readme.main([str(GOLDEN)])
    before, *rows, after = readme.README.read_text().splitlines()
    assert (before, after, "old" in rows) == ("kept", "kept", False)
    assert sum(row.startswith("| `") for row in rows) == len(
        [row for row in Measured(RunFolder.load(GOLDEN, FloorRecord).record).ladder() if row.measured]
    )
    with pytest.raises(UserError, match="missing"):
        readme.main([str(tmp_path / "missing")])
