"""Rungs of a transformers model in the floor study: alone or beside ours, what they read, and the traps."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("transformers")

from hf_checkpoints import SHAPE, checkpoint
from transformers import LlamaConfig

from experiments import floor
from profiling.cost.matmul_counter import MatmulCounter
from profiling.cost.work import weights_read_bytes
from profiling.gate.transformers_gate import TransformersGate, Uncached
from profiling.measure.expect import floor_bytes, predict, step_reads
from profiling.measure.visits import Steps
from profiling.results.duel import MIN_TRACES
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import FloorRecord, Peaks
from profiling.results.verdict import verdict, verdicts
from variants.backends.transformers_model import (
    TransformersModel,
    as_transformers,
    load_transformers_model,
)
from variants.decoder import Decoder
from variants.errors import UserError
from variants.executors.capture_rules import CaptureError
from variants.executors.executor import compiled_graphs
from variants.hf_config import read_json
from variants.ladder import transformers_ladder
from variants.slots import exact
from variants.weights import load_model

SLOTS = 48  # three windows of the types that have one
RUNGS = transformers_ladder("float32")
FAST = ["--context", "6,20", "--rounds", "3", "--quick", "--max-time", "1s"]
PEAKS = Peaks(read_gb_per_s=1.0, matmul_flop_per_s=1e9, launch_us=1.0, graph_node_us=None, tape_op_us=None)
ALIKE = ["gpt2", "llama", "llama biased", "mistral", "qwen2", "qwen3", "phi3"]  # of a config that is ours too


def loaded(folder: Path, name: str) -> TransformersModel:
    checkpoint(folder, name)
    return load_transformers_model(folder, torch.float32, "cpu", SLOTS)


def decoder_of(rung: str, model: TransformersModel) -> Decoder:
    return Decoder.of(RUNGS[rung], model, capacity=SLOTS)


def run(arguments: list[str], out: Path, capsys: pytest.CaptureFixture[str]) -> RunFolder[FloorRecord]:
    assert floor.main([*arguments, "--json", "--quiet", "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    return RunFolder.load(Path(said["run"]), FloorRecord)


# -- the study ----------------------------------------------------------------------------------


def test_a_type_that_is_not_ours_is_studied_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(tmp_path / "model", "mixtral")
    done = run(["--model", str(tmp_path / "model"), "--variant", "hf-tape", *FAST], tmp_path / "runs", capsys)
    record, measured = done.record, Measured(done.record)
    assert {name: entry.status for name, entry in record.variants.items()} == {
        "hf": "proven",
        "hf-static": "proven",
        "hf-tape": "proven",
    }
    assert record.baseline == "hf" and measured.aa_ratio is not None
    assert record.predicted_replay is not None and record.predicted_replay.parent == "hf-static"
    judged = verdict(measured)
    assert (judged.replay, judged.parent) == ("hf-tape", "hf-static") and judged.numbers is not None
    for rung in measured.ladder():
        assert rung.ratio_to_baseline is not None and rung.ratio_to_memory_floor is not None
        assert rung.excess_narrow_ms is None
        predicted = record.variants[rung.variant].prediction[6]
        assert predicted.macs is None and predicted.arithmetic_ms is None
    report = (done.path / "report.md").read_text("utf-8")
    assert "step / `hf`" in report and "experts: batched_mm" in report and "unknown" in report
    assert "not proven of `hf`, `hf-static` and `hf-tape`: numerics" in report


def test_both_trunks_are_timed_in_the_same_rounds_and_duel(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(["--model", "tiny", "--variant", "hf-tape,tape", *FAST], tmp_path, capsys)
    record, measured = done.record, Measured(done.record)
    ours = {"cat", "cat again", "boolmask", "lasthead", "static", "sdpa", "tape"}
    names = ours | {"hf", "hf-static", "hf-tape"}
    for number in range(3):
        assert {s.variant for s in record.samples if s.round == number and s.width == 48} == names
    assert record.baseline == "cat" and measured.duel is not None
    assert {("cat", "hf"), ("hf", "hf-static"), ("hf-static", "hf-tape")} <= {*measured.duel.pairs()}
    judged = verdicts(measured)
    assert [one.parent for one in judged] == ["sdpa", "hf-static"]
    for one in judged:
        assert one.numbers is not None and len(measured.duel.traces(str(one.parent))) >= MIN_TRACES
    of_ours, of_theirs = (record.variants[name].prediction[6] for name in ("cat", "hf-static"))
    assert of_ours.bytes == of_theirs.bytes
    report = (done.path / "report.md").read_text("utf-8")
    assert "step / `cat`" in report and "Of `sdpa`: **" in report and "Of `hf-static`: **" in report
    assert "figures/divided-1.png" in report and record.predicted_replay.parent == "sdpa"  # type: ignore[union-attr]


def test_an_interrupted_run_of_both_trunks_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = Steps.__call__

    def interrupted(self: Steps, number: int) -> None:
        if number == 1:
            raise KeyboardInterrupt
        timed(self, number)

    flags = ["--model", "tiny", "--variant", "hf-tape,cat", *FAST, "--no-trace"]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Steps, "__call__", interrupted)
        floor.main([*flags, "--quiet", "--out", str(tmp_path)])
    (folder,) = tmp_path.iterdir()
    half = RunFolder.load(folder, FloorRecord).record
    assert half.status == "incomplete" and {sample.round for sample in half.samples} == {0}
    capsys.readouterr()
    record = run(["--resume", str(folder), "--no-trace", "--max-time", "1s"], folder, capsys).record
    assert record.status == "complete" and record.entropy == half.entropy
    assert {name: entry.status for name, entry in record.variants.items()} == dict.fromkeys(
        ["cat", "hf", "hf-static", "hf-tape"], "proven"
    )
    visits = Counter((s.round, s.variant, s.context) for s in record.samples if s.width == 48)
    assert set(visits.values()) == {1} and len(visits) == 3 * 5 * 2


def test_a_shape_is_made_by_transformers_with_the_same_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", **SHAPE}), "utf-8")
    done = run(["--shape", str(config), "--variant", "hf,cat", *FAST, "--no-trace"], tmp_path, capsys)
    assert [entry.status for entry in done.record.variants.values()] == ["proven", "proven"]
    ours, theirs = (done.record.variants[name].prediction[20] for name in ("cat", "hf"))
    angles, frequencies = 8 * 4, 8 // 2 * 4  # of one position, and of all
    assert (ours.macs, ours.bytes - angles) == (theirs.macs, theirs.bytes - frequencies)


def test_a_type_that_is_not_ours_is_refused_on_our_rungs_with_the_way_out(tmp_path: Path) -> None:
    checkpoint(tmp_path / "model", "mixtral")
    with pytest.raises(UserError, match="--variant hf,hf-static,hf-tape"):
        floor.main(["--model", str(tmp_path / "model"), "--variant", "cat", "--out", str(tmp_path / "runs")])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3 windows", "qwen3_moe", "gpt_oss"])
def test_a_truth_that_is_widened_pass_by_pass_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large model no float64 copy is kept; norms are in float32 there either way."""
    model, tokens = loaded(tmp_path, name), torch.arange(24).view(1, 24)
    whole = Uncached(model).logits(tokens)
    monkeypatch.setattr(exact, "KEPT_BYTES", 0)
    widened = Uncached(model)
    assert any(isinstance(module, exact.Widened) for module in widened.model.modules())
    assert widened.logits(tokens).dtype == torch.float64
    torch.testing.assert_close(widened.logits(tokens), whole, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ALIKE)
def test_our_weights_in_their_module_are_the_checkpoint(name: str, tmp_path: Path) -> None:
    theirs = checkpoint(tmp_path, name)
    ours = as_transformers(load_model(tmp_path), read_json(tmp_path / "config.json"))
    expected = theirs.state_dict()
    assert ours.module.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in ours.module.state_dict().items())


def test_gains_that_are_stored_less_one_come_back(tmp_path: Path) -> None:
    expected = checkpoint(tmp_path, "gemma3").state_dict()
    stored = as_transformers(load_model(tmp_path), read_json(tmp_path / "config.json")).module.state_dict()
    assert stored.keys() == expected.keys()
    for key, value in stored.items():
        torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-6)


# -- what a step must read and compute ----------------------------------------------------------


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_watched_is_what_our_config_says(name: str, tmp_path: Path) -> None:
    """A step of ours reads one row of cosines and sines where theirs reads the frequencies."""
    model = loaded(tmp_path, name)
    reads = step_reads(decoder_of("hf-static", model))
    turned = sum(tensor.nbytes for tensor in model.module.buffers() if tensor.dim() == 1)
    frequencies = min(turned, 4 * model.config.head_dim // 2)
    row = 4 * model.config.head_dim if model.config.rope else 0
    weights = weights_read_bytes(model.config, 4) - row + (frequencies if row else 0)
    assert sum(tensor.nbytes for tensor in reads.whole) + reads.rows == weights
    assert floor_bytes(decoder_of("hf", model), 20) == weights + 20 * 2 * 2 * model.config.kv_dim * 4


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_of_experts_those_that_are_chosen_are_read(name: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, name)
    reads = step_reads(decoder_of("hf-static", model))
    experts = [(name, p) for name, p in model.module.named_parameters() if ".experts." in name]
    others = sum(p.nbytes for name, p in model.module.named_parameters() if ".experts." not in name)
    table = model.module.get_input_embeddings().weight
    chosen = sum(parameter.nbytes for _, parameter in experts) // 2  # two of four
    read = sum(tensor.nbytes for tensor in reads.whole) + reads.rows
    beside = read - (others - table.nbytes + table[0].nbytes + chosen)
    assert 0 <= beside <= 4 * model.config.head_dim  # frequencies


@pytest.mark.parametrize("name", ["gemma2", "gemma3 windows", "gpt_oss"])
def test_a_window_bounds_what_must_be_read(name: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, name)
    decoder = decoder_of("hf-static", model)
    token, short = 2 * 2 * 16 * 4, sum(window == 16 for window in model.windows)
    layers = model.config.n_layer
    assert 0 < short < layers
    assert floor_bytes(decoder, 10) - floor_bytes(decoder, 0) == 10 * layers * token
    assert floor_bytes(decoder, 40) - floor_bytes(decoder, 10) == (30 * (layers - short) + 5 * short) * token
    (note,) = model.notes(SLOTS)
    assert f"{short * (SLOTS - 16) * token / 1e6:.3g} MB" in note


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_macs_of_a_described_type_are_those_that_run(name: str, tmp_path: Path) -> None:
    decoder = decoder_of("hf-static", loaded(tmp_path, name))
    expected = predict(decoder, 20, PEAKS).macs
    decoder.prefill(torch.ones(1, 20, dtype=torch.int64))
    with torch.inference_mode(), MatmulCounter() as counted:
        decoder.backend.step(decoder.token)
    assert counted.macs == expected


# -- traps --------------------------------------------------------------------------------------


def test_a_rope_that_reads_the_device_is_refused_by_its_operation(tmp_path: Path) -> None:
    model = loaded(tmp_path, "llama dynamic")
    with pytest.raises(CaptureError, match="_local_scalar_dense"):
        decoder_of("hf-tape", model).warm_up()


def test_a_model_that_is_another_one_without_a_cache_is_no_truth(tmp_path: Path) -> None:
    model = loaded(tmp_path, "llama")
    gate = TransformersGate(model, "float32", capacity=SLOTS, steps=4, forced=4)
    truth = gate._truth_for(RUNGS["hf"].precision)
    assert isinstance(truth, Uncached)
    forward = truth.model.forward

    def other(tokens: torch.Tensor, cache: Any = None, every: bool = True) -> torch.Tensor:
        return forward(tokens, cache, every) * (1.01 if cache is None else 1.0)

    truth.model.forward = other  # type: ignore[method-assign]
    assert "with an empty cache" in gate.check_only(decoder_of("hf", model), "forced").reason


@pytest.mark.parametrize("version", ["4.57.6", "5.3.0", "5.25.0", "6.0.0"])
def test_a_version_that_was_not_tested_is_refused_by_number(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path, "llama")
    monkeypatch.setattr("transformers.__version__", version)
    with pytest.raises(UserError, match=rf"transformers {version} is not known here, only 5\.4 to 5\.24"):
        load_transformers_model(tmp_path, torch.float32, "cpu", SLOTS)


class Newer(nn.Module):
    config = LlamaConfig(**SHAPE)

    def forward(self, tokens: Any, cache: Any = None, use_cache: Any = None, logits_to_keep: Any = 0) -> Any:
        return SimpleNamespace(logits=(cache, use_cache))


class Older(nn.Module):
    config = LlamaConfig(**SHAPE)

    def forward(
        self, tokens: Any, past_key_values: Any = None, use_cache: Any = None, logits_to_keep: Any = 0
    ) -> Any:
        return SimpleNamespace(logits=(past_key_values, use_cache))


@pytest.mark.parametrize("module", [Newer, Older])
def test_the_cache_goes_in_under_the_name_of_the_version(module: type[nn.Module]) -> None:
    """A deprecated name costs a warning in every step."""
    model: Any = TransformersModel(module(), SLOTS)
    assert model(torch.zeros(1, 1, dtype=torch.int64), "the cache") == ("the cache", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "gemma2", "gemma3 windows", "gpt_oss", "mixtral", "qwen3_moe"]
)
def test_the_compiled_rung_is_one_graph_over_fifty_steps(name: str, tmp_path: Path) -> None:
    model = loaded(tmp_path, name)
    gate = TransformersGate(model, "float32", capacity=SLOTS, steps=30, forced=20)
    decoder = decoder_of("hf-compile", model)
    before = compiled_graphs()
    decoder.warm_up()
    assert compiled_graphs() == before + 1
    for _ in range(2):
        decoder.prefill(torch.ones(1, 3, dtype=torch.int64))
        for _ in range(25):
            decoder.advance()
    assert compiled_graphs() == before + 1
    assert gate.check(decoder).reason == ""
