"""Models that transformers runs in its own code: proven with its caches, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from hf_checkpoints import checkpoint

from experiments import prove
from profiling.gate.transformers_gate import TransformersGate
from profiling.results.folder import RunFolder
from profiling.results.record import ProveRecord
from variants.backends import transformers_model
from variants.backends.transformers_model import StaticLayers, TransformersModel, load_transformers_model
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import transformers_ladder

SLOTS = 48  # three windows of the types that have one
RUNGS = transformers_ladder("float32")


def loaded(folder: Path, name: str) -> TransformersModel:
    checkpoint(folder, name)
    return load_transformers_model(folder, torch.float32, "cpu", SLOTS)


def gate_over(model: TransformersModel) -> TransformersGate:
    return TransformersGate(model, "float32", capacity=SLOTS, steps=30, forced=20)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3 windows", "mixtral", "gpt_oss"])
def test_every_rung_is_proven_on_both_sides_of_a_window(name: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, name)
    gate = gate_over(model)
    for variant in (RUNGS[name] for name in ("hf", "hf-static", "hf-tape")):
        result = gate.check(Decoder.of(variant, model, capacity=SLOTS))
        assert (variant.name, result.status, result.reason) == (variant.name, "pass", "")
        assert len(result.checks) == 16
        assert [check.check for check in result.unproven] == ["every slot", "numerics", "long run"]


def test_rungs_differ_in_one_slot_and_say_so() -> None:
    assert {name: rung.difference for name, rung in RUNGS.items()} == {
        "hf": None,
        "hf-static": ("cache", "concat", "static"),
        "hf-compile": ("executor", "eager", "compiled"),
        "hf-tape": ("executor", "eager", "op tape"),
        "hf-cudagraph": ("executor", "eager", "CUDA graph"),
        "hf-compile-cudagraph": ("executor", "compiled", "compiled in a CUDA graph"),
    }


def test_a_window_that_counts_in_python_is_caught_once_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers' own static layers: a recording keeps the position of its making."""
    from transformers import StaticCache

    model = loaded(tmp_path, "gemma3 windows")

    class OwnLayers(StaticLayers):
        def __init__(self, n_layer: int, capacity: int) -> None:
            super().__init__(n_layer, capacity)
            self.cache = StaticCache(config=model.module.config, max_cache_len=capacity)

    monkeypatch.setattr(transformers_model, "StaticLayers", OwnLayers)
    decoder = Decoder.of(RUNGS["hf-tape"], model, capacity=SLOTS)
    assert gate_over(model).check_only(decoder, "forced").status == "fail"


@pytest.mark.parametrize("rung", ["hf", "hf-static"])
def test_a_cache_that_forgets_nothing_is_caught(
    rung: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(tmp_path, "llama")
    decoder = Decoder.of(RUNGS[rung], model, capacity=SLOTS)
    decoder.prefill(torch.ones(1, 3, dtype=torch.int64))
    monkeypatch.setattr(decoder.cache, "rewind", lambda n: None)
    assert gate_over(model).check_only(decoder, "forced").status == "fail"


def test_the_command_proves_writes_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(tmp_path / "model", "llama")
    flags = [
        "--model",
        str(tmp_path / "model"),
        "--capacity",
        str(SLOTS),
        "--quick",
        "--variant",
        "hf,hf-static",
    ]
    assert prove.main([*flags, "--quick", "--quiet", "--json", "--out", str(tmp_path / "runs")]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["verdict"].startswith("PROVEN. hf, hf-static: every check")
    record = RunFolder.load(Path(said["run"]), ProveRecord).record
    assert {name: proof.status for name, proof in record.proofs.items()} == {
        "hf": "pass",
        "hf-static": "pass",
    }
    assert "attention: sdpa" in (Path(said["run"]) / "report.md").read_text("utf-8")


def test_a_version_whose_names_are_not_known_is_refused_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path, "llama")
    monkeypatch.setattr(transformers_model, "OLDEST", (99, 1))
    with pytest.raises(UserError, match=r"transformers [\d.]+ is not known here, only 99\.1 to"):
        load_transformers_model(tmp_path, torch.float32, "cpu", SLOTS)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (
            ["--model", "FOLDER", "--variant", "hf-fast"],
            "unknown variant hf-fast; known: hf, hf-static",
        ),
        (["--model", "FOLDER", "--capacity", "8"], "at least 40 slots"),
        (["--model", "nowhere"], "does not exist"),
        (["--model", "CODE"], "auto_map"),
        (["--model", "PICKLED"], "no .safetensors file"),
        (["--model", "UNKNOWN"], "transformers cannot load it"),
        (["--model", "QUANTISED"], "transformers cannot load it: ImportError"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_writes_nothing(flags: list[str], named: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "FOLDER", "llama")
    config = json.loads((tmp_path / "FOLDER/config.json").read_text("utf-8"))
    for name, changed in {
        "CODE": {"auto_map": {"AutoModel": "own.Model"}},
        "UNKNOWN": {"model_type": "nobody"},
        "QUANTISED": {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    }.items():
        checkpoint(tmp_path / name, "llama")
        (tmp_path / name / "config.json").write_text(json.dumps(config | changed), "utf-8")
    (tmp_path / "PICKLED").mkdir()
    (tmp_path / "PICKLED/config.json").write_text(json.dumps(config), "utf-8")
    (tmp_path / "PICKLED/pytorch_model.bin").write_bytes(b"")
    flags[1] = str(tmp_path / flags[1])
    with pytest.raises(UserError, match=named):
        prove.main([*flags, "--out", str(tmp_path / "runs")])
    assert not (tmp_path / "runs").exists()
