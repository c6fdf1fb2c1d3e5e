"""From Python: what is imported, what the calls return, that the examples run, and in which folder."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from floor_run import GOLDEN, ROOT

from profiling import explain, study
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import FloorRecord
from variants.errors import UserError
from variants.model import GPT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TRACE = next((GOLDEN / "traces").glob("*.json*"))


def example(file: Path) -> ModuleType:
    spec = spec_from_file_location(f"example_{file.stem}", file)
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def python(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    there = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=there, capture_output=True, text=True, timeout=120
    )


def test_importing_and_explaining_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import profiling; print(profiling.explain({str(TRACE)!r}).reading.label)"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.strip() == explain(TRACE).reading.label, done.stderr


def test_importing_reads_nothing_but_itself(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import profiling; print(*sorted(set(sys.modules) - before))"
    )
    loaded = python("-c", code, cwd=tmp_path).stdout.split()
    assert "profiling" in loaded
    assert not [
        name for name in loaded if name.split(".")[0] in ("torch", "pandas", "numpy", "scipy", "variants")
    ]


def test_a_study_is_the_command_s_record(tiny: GPT, tmp_path: Path) -> None:
    record = study(tiny, ["tape"], contexts=[20, 6], rounds=3, seconds=0.1, out=tmp_path)
    (path,) = tmp_path.iterdir()
    assert RunFolder.load(path, FloorRecord).record == record and record.status == "complete"
    assert record.workload and record.workload.contexts == (6, 20) and record.workload.rounds == 3
    assert list(record.variants) == ["cat", "boolmask", "lasthead", "static", "sdpa", "tape"]
    assert Measured(record).rung("tape").ratio_to_memory_floor is not None


def test_a_study_of_a_name_runs_both_trunks(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    record = study("tiny", ["hf-static", "sdpa"], contexts=[6], rounds=2, seconds=0.1, out=tmp_path)
    assert {"cat", "sdpa", "hf", "hf-static"} <= record.variants.keys()
    assert {entry.status for entry in record.variants.values()} == {"proven"}


def test_a_study_takes_a_module_of_transformers_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from hf_checkpoints import checkpoint

    module = checkpoint(tmp_path / "model", "qwen3_moe")
    record = study(module, contexts=[6], rounds=2, seconds=0.1, out=tmp_path / "runs")
    assert list(record.variants) == ["hf", "hf-static", "hf-tape"]
    assert {entry.status for entry in record.variants.values()} == {"proven"}
    with pytest.raises(UserError, match="does not run a Qwen3MoeForCausalLM: our decoder"):
        study(module, ["sdpa"], contexts=[6], out=tmp_path / "runs")


def test_our_model_has_no_rung_of_transformers(tiny: GPT, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hf does not run a GPT: a model of transformers"):
        study(tiny, ["hf"], contexts=[6], out=tmp_path / "runs")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "gpt5"}, "neither a folder nor one of"),
        ({"variants": ["fastest"]}, "unknown variant fastest"),
        ({"contexts": [64]}, "context 64 is beyond"),
        ({"rounds": 0}, "--rounds must be at least 1"),
        ({"rounds": 1.5}, "rounds: a whole number"),
        ({"variants": "cat"}, "variants: a list"),
        ({"variants": [3]}, "variants: a list"),
        ({"contexts": 10}, "contexts: a list"),
        ({"contexts": "10"}, "contexts: a list"),
        ({"contexts": [5.5]}, "contexts: a list"),
    ],
)
def test_what_cannot_be_studied_leaves_no_folder(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        study(**{"model": "tiny", **given}, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_page_shows_the_examples() -> None:
    page = (ROOT / "docs" / "library.md").read_text("utf-8")
    for name in ("study_a_step", "explain_a_trace"):
        text = (ROOT / "examples" / f"{name}.py").read_text("utf-8")
        assert text.partition("\n\nif __name__")[0].strip() in page


RUNS = {
    "study_a_step": (["tiny", "6"], "times its memory floor"),
    "explain_a_trace": ([str(TRACE)], "us per step"),
    "own_decoder": (["tiny"], "Lists is proven"),
    "train_bytes": (["model", str(ROOT / "README.md"), "--steps", "1"], "1 of 1 steps"),
}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_every_example_runs(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, says = RUNS[file.stem]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    example(file).main(*words)
    assert says in capsys.readouterr().out


# -- in which folder ------------------------------------------------------------------------------


@pytest.fixture
def shadows(tmp_path: Path) -> Path:
    """A folder with packages of our names, none of which may run."""
    for name in ("experiments", "profiling", "variants", "reports"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('a stranger ran')\n")
    return tmp_path


def test_the_installed_command_does_not_look_where_it_is_started(shadows: Path, tmp_path: Path) -> None:
    script = tmp_path / "bin" / "decode-floor"  # as an installer writes it
    script.parent.mkdir()
    script.write_text("import sys\nfrom experiments.__main__ import main\nsys.exit(main())\n")
    assert "a stranger ran" in python("-m", "experiments", "--version", cwd=shadows).stderr
    for words in ([str(script), "--version"], [str(script), "predict", "--version"]):
        done = python(*words, cwd=shadows)
        assert done.returncode == 0 and done.stdout.startswith("decode-floor "), done.stderr


def test_what_an_experiment_starts_is_ours_too(shadows: Path) -> None:
    done = python("-P", "-m", "experiments", "--version", cwd=shadows)
    assert done.returncode == 0 and done.stdout.startswith("decode-floor "), done.stderr
