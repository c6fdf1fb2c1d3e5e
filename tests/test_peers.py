"""Engines of others as cases: converted exactly, proven or FAILED, timed in the same rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_engines import DEATH, Fake, engine
from floor_run import text_of
from records import MADE
from records import entry as entry_of
from torch import Tensor

from experiments import floor, peers
from profiling.gate import Gate
from profiling.measure.expect import floor_bytes
from profiling.peers import checkpoint, engines, graphs
from profiling.peers.peer import Task
from profiling.peers.worker import Visit, Worker
from profiling.results.engines import fastest_others, rows
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import (
    Drift,
    Entry,
    FloorRead,
    FloorRecord,
    GateResult,
    Model,
    PeersRecord,
    Sample,
    StepPrediction,
    Workload,
    decoded,
)
from reports import build
from variants.backends.plugin import NotAnswered, Source, Told, plugin_option
from variants.config import PRESETS, GPTConfig, Rope
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import GPT, random_model
from variants.slots.cache import CONCAT
from variants.slots.precision import FLOAT32, INT8, PrecisionOption
from variants.spec import Variant
from variants.weights import load_model

SMALL = GPTConfig(n_layer=2, n_head=2, n_embd=32, n_ctx=64, vocab_size=320)


WIDE_LLAMA = GPTConfig(
    n_layer=2,
    n_head=4,
    n_kv_head=2,
    n_embd=64,
    n_ctx=64,
    vocab_size=320,
    norm="rms",
    activation="silu",
    gated=True,
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    rope=Rope(10000.0),
)


def greedy(prompt: list[int], n: int, config: GPTConfig = SMALL, seed: int = 1) -> list[int]:
    decoder = Decoder.of(ladder()["cat"], random_model(config, seed))
    decoder.prefill(torch.tensor([prompt]))
    tokens = [int(decoder.token)]
    for _ in range(n):
        decoder.advance()
        tokens.append(int(decoder.token))
    return tokens


GPT2 = GPTConfig(n_layer=2, n_head=2, n_embd=32, n_ctx=32, vocab_size=71, n_inner=96)
LLAMA = dataclasses.replace(WIDE_LLAMA, n_embd=32, n_ctx=32, vocab_size=71, n_inner=96)
KINDS = {
    "GPT-2": GPT2,
    "untied": dataclasses.replace(GPT2, tied_head=False),
    "Llama": LLAMA,
    "Llama with biases": dataclasses.replace(LLAMA, qkv_bias=True, out_bias=True, mlp_bias=True),
    "Llama 3": dataclasses.replace(LLAMA, rope=Rope(5e5, "llama3", 8.0, 16)),
    "Qwen2": dataclasses.replace(LLAMA, qkv_bias=True, tied_head=False),
    "Qwen3": dataclasses.replace(LLAMA, qk_norm=True, head_width=16),
}


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_folder_is_the_same_model(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = random_model(KINDS[kind], seed=4)
    checkpoint.hugging_face(model, tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    tokens = torch.randint(71, (1, 9))
    expected = Decoder.of(ladder()["naive"], model).prefill(tokens)
    torch.testing.assert_close(theirs(tokens).logits[:, -1].detach(), expected, rtol=1e-4, atol=1e-5)
    again = load_model(tmp_path / "hf")
    assert all(a.equal(b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("Llama 3", "Llama with biases")])
def test_gguf_is_the_same_model_to_its_other_reader(kind: str, tmp_path: Path) -> None:
    """transformers reads the files of llama.cpp's own converter: it turns rows back and knows its names."""
    pytest.importorskip("gguf")
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    transformers = pytest.importorskip("transformers")
    model = random_model(KINDS[kind], seed=4)
    checkpoint.gguf(model, tmp_path / "model.gguf", "F32")
    settings = checkpoint.settings(model.config)
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**settings))
    read = load_gguf_checkpoint(tmp_path / "model.gguf", return_tensors=True, model_to_load=theirs)
    for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope_theta"):
        if key in settings and key in read["config"]:
            assert read["config"][key] == pytest.approx(settings[key]), key
    missing = theirs.load_state_dict(read["tensors"], strict=False).missing_keys
    assert not set(missing) - {"lm_head.weight"}
    tokens = torch.randint(71, (1, 9))
    expected = Decoder.of(ladder()["naive"], model).prefill(tokens)
    torch.testing.assert_close(theirs.eval()(tokens).logits[:, -1].detach(), expected, rtol=1e-4, atol=1e-5)


def test_what_gguf_cannot_say_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    with pytest.raises(UserError, match="stretched as llama3 are not written as GGUF"):
        checkpoint.gguf(random_model(KINDS["Llama 3"], 1), tmp_path / "model.gguf", "F32")
    with pytest.raises(UserError, match="no type of checkpoint"):
        checkpoint.settings(dataclasses.replace(LLAMA, gated=False))
    with pytest.raises(UserError, match="no type of checkpoint"):
        checkpoint.settings(dataclasses.replace(LLAMA, windows=(16, None)))


@pytest.mark.parametrize("config", [SMALL, LLAMA], ids=["GPT-2", "Llama"])
def test_growing_step_is_the_same_model(config: GPTConfig) -> None:
    model = random_model(config, seed=1)
    tokens = torch.randint(config.vocab_size, (1, 12))
    step, decoder = graphs.GrowingStep(model), Decoder.of(ladder()["cat"], model)
    logits, *past = step(tokens[:, :7], *graphs.empty_past(model))
    torch.testing.assert_close(logits, decoder.prefill(tokens[:, :7]))
    for token in tokens[:, 7:].split(1, dim=1):
        logits, *past = step(token, *past)
        torch.testing.assert_close(logits, decoder.step(token), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "levels", "group"), [("i8", 127, 128), ("i4", 7, 64)])
def test_openvino_multiplies_by_the_stored_weights(
    kind: str, levels: int, group: int, tmp_path: Path
) -> None:
    """The narrow graph computes what plain float32 does with each weight rounded to its step."""
    pytest.importorskip("openvino")
    config = GPTConfig(n_layer=1, n_head=2, n_embd=128, n_inner=128, n_ctx=64, vocab_size=320)
    peer = graphs.OpenVino(random_model(config, 1), task(tmp_path, config), kind)
    peer.prefill([5, 300, 17])
    got = np.array(peer.logits)[None]
    rounded = random_model(config, 1)
    rounded.lm_head.weight = torch.nn.Parameter(rounded.lm_head.weight.clone())  # no longer the token table
    for linear in (module for module in rounded.modules() if isinstance(module, torch.nn.Linear)):
        groups = linear.weight.detach().unflatten(1, (-1, group))
        step = groups.abs().amax(-1, keepdim=True) / levels
        linear.weight = torch.nn.Parameter(((groups / step).round() * step).flatten(1))
    expected, *_ = graphs.GrowingStep(rounded)(torch.tensor([[5, 300, 17]]), *graphs.empty_past(rounded))
    torch.testing.assert_close(torch.from_numpy(got), expected.detach(), rtol=1e-4, atol=1e-5)


def test_openvino_keeps_its_cache_in_place(tmp_path: Path) -> None:
    """Attention over states is one operation; without it keys and values are concatenated in each step."""
    pytest.importorskip("openvino")
    peer = graphs.OpenVino(random_model(SMALL, 1), task(tmp_path), "f32")
    running = peer.request.get_compiled_model().get_runtime_model().get_ops()
    kinds = {str(op.get_rt_info()["layerType"].value) for op in running}
    assert "ScaledDotProductAttention" in kinds and "Concatenation" not in kinds


def task(folder: Path, config: GPTConfig = SMALL) -> Task:
    return Task(config, weights=folder / "none", folder=folder, threads=1, capacity=config.n_ctx)


@pytest.mark.parametrize("config", [SMALL, WIDE_LLAMA], ids=["GPT-2", "Llama"])
@pytest.mark.parametrize("name", [name for name, engine in engines.ENGINES.items() if engine.version])
def test_installed_engines_give_the_reference_tokens(name: str, config: GPTConfig, tmp_path: Path) -> None:
    """Float32 exactly; fewer bits may leave the reference, but not at once."""
    engine = engines.ENGINES[name]
    try:
        peer = engine.build(random_model(config, 1), task(tmp_path, config), engine.kind)
    except (RuntimeError, ValueError, UserError) as error:
        no_bf16 = name.endswith("-bf16") and re.search("no bf16 arithmetic|bfloat16 compute type", str(error))
        assert no_bf16 or ("onnxruntime" in name and config.rope and "no RMS norms" in str(error))
        pytest.skip(str(error))
    same = 0
    for prompt in ([5, 300, 17, 8], [9, 2]):  # the second finds nothing of the first
        tokens, right = [peer.prefill(prompt)], greedy(prompt, 6, config)
        for _ in range(6):
            tokens.append(peer.step(tokens[-1]))
            if engine.gives_logits:
                assert peer.logits.shape == (320,) and int(peer.logits.argmax()) == tokens[-1]
        peer.rest()
        if engine.precision is FLOAT32:
            assert tokens == right
        same += sum(a == b for a, b in zip(tokens, right, strict=True))
        assert len(tokens) == 7 and all(0 <= token < 320 for token in tokens)
    assert same >= 2


# -- a process ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """An engine's process over SMALL."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(engines.ENGINES, "honest", engine())
        made = Worker.of("honest", random_model(SMALL, 1), 1, 64, tmp_path_factory.mktemp("kept"))
    yield made
    made.close()


def test_a_process_answers(worker: Worker) -> None:
    decoder = Decoder.of(ladder()["cat"], random_model(SMALL, 1))
    for prompt in ([5, 300, 17], [9, 2]):
        told = worker.timed(torch.tensor([prompt]), warm_up=2, steps=3)
        assert told.tokens == greedy(prompt, 5)
        assert len(told.steps_ms) == 3 and told.first_ms > 0
        assert torch.equal(worker.prefill(torch.tensor([prompt])), decoder.prefill(torch.tensor([prompt])))
        assert torch.equal(worker.step(torch.tensor([[4]])), decoder.step(torch.tensor([[4]])))
    assert worker.about.startswith("torch 2.") and worker.about.endswith(": a fake")


def test_a_process_says_what_went_wrong_and_goes_on(worker: Worker) -> None:
    with pytest.raises(RuntimeError, match="do not fit"):
        worker.timed(torch.ones(1, 65, dtype=torch.int64), warm_up=0, steps=1)
    assert len(worker.timed(torch.tensor([[5]]), warm_up=0, steps=1).tokens) == 2


def test_ctrl_c_is_the_parents(worker: Worker) -> None:
    """It reaches every process of a terminal, and this one would die with a traceback."""
    assert worker.process.pid is not None
    os.kill(worker.process.pid, signal.SIGINT)
    assert worker.timed(torch.tensor([[5]]), warm_up=0, steps=1).tokens


def test_a_process_ends_with_its_worker(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RuntimeError, match=r"^ValueError: out of paper$"):
        Worker(dataclasses.replace(task(tmp_path), weights=saved(tmp_path)), engine("unready"))


def saved(folder: Path) -> Path:
    checkpoint.save(random_model(SMALL, 1), folder / "weights.safetensors")
    return folder / "weights.safetensors"


@pytest.mark.parametrize(
    ("model", "batch", "why"),
    [
        (random_model(SMALL, 1), 2, "one row"),
        (random_model(SMALL, 1, torch.bfloat16), 1, "float32 weights"),
    ],
)
def test_what_no_engine_runs_is_said_before_a_process_starts(
    model: GPT, batch: int, why: str, tmp_path: Path
) -> None:
    with pytest.raises(NotAnswered, match=why):
        Worker.of("transformers", model, batch, 64, tmp_path)
    assert not list(tmp_path.iterdir())


def test_conversions_happen_once_and_are_never_half_done(tmp_path: Path) -> None:
    folders: list[Path] = []

    def make(part: Path) -> None:
        folders.append(part)
        part.write_text("whole")

    def break_down(part: Path) -> None:
        part.write_text("half")
        raise OSError

    with pytest.raises(OSError):
        checkpoint.once(tmp_path / "x", break_down)
    assert not (tmp_path / "x").exists()
    for _ in range(2):
        assert checkpoint.once(tmp_path / "x", make).read_text() == "whole"
    assert len(folders) == 1


class Counting(Fake):
    """Counts up, and says how often it was told to rest."""

    rests = 0

    def __init__(self) -> None:
        return

    def prefill(self, tokens: list[int]) -> int:
        return tokens[-1]

    def step(self, token: int) -> int:
        return token + 1

    def rest(self) -> None:
        self.rests += 1


def test_an_engine_that_goes_on_by_itself_is_stopped() -> None:
    """CTranslate2 writes to its limit unasked: left alone it would compute through everybody's visits."""
    peer = Counting()
    told = Visit((7, 1), warm_up=1, steps=3).answer(peer)
    assert told.tokens == [1, 2, 3, 4, 5] and len(told.steps_ms) == 3 and peer.rests == 1


# -- the proof ------------------------------------------------------------------------------------


class Here:
    """An engine as the gate sees it, without a process; `fault` names what is wrong with it."""

    about = "none"

    def __init__(self, model: GPT, fault: str, unproven: str = "", gives_logits: bool = True) -> None:
        self.decoder = Decoder.of(ladder()["cat"], model)
        self.fault, self.unproven, self.gives_logits = fault, unproven, gives_logits

    def prefill(self, tokens: Tensor) -> Tensor:
        if not self.gives_logits:
            raise NotAnswered("it gives no logits")
        logits = self.decoder.prefill(tokens)
        return logits[:, :-1] if self.fault == "shape" else logits

    def step(self, token: Tensor) -> Tensor:
        logits = self.decoder.step(token)
        if self.fault == "logits":
            return logits * 1.01
        return torch.randn_like(logits) if self.fault == "other function" else logits

    def timed(self, tokens: Tensor, warm_up: int, steps: int) -> Told:
        logits, told = self.decoder.prefill(tokens), []
        for _ in range(warm_up + steps + 1):
            told.append(int(logits.argmax()))
            logits = self.decoder.step(logits.argmax(-1, keepdim=True))
        if self.fault == "token":
            told[-1] = (told[-1] + 1) % 101
        return Told(1.0, [1.0] * steps, told)

    def step_bytes(self, context: int) -> int:
        return 1000 + 10 * context


def held(here: Here, model: GPT, precision: PrecisionOption = FLOAT32) -> GateResult:
    source = Source("own", "here", lambda: lambda model, batch, capacity: here, elsewhere=True)
    rung = Variant("own", "nothing", cache=CONCAT, precision=precision, backend=plugin_option(source))
    gate = Gate(model, "float32", capacity=32, contexts=(5,), steps=8, forced=4)
    return gate.check(Decoder.of(rung, model, capacity=32))


def test_an_engine_is_proven_as_far_as_it_answers(tiny: GPT) -> None:
    result = held(Here(tiny, ""), tiny)
    assert result.status == "pass", result.reason
    proven = {check.check for check in result.checks if check.status == "pass"}
    assert {"timed tokens", "greedy", "forced", "contexts", "second prompt"} <= proven
    assert {"chunks", "rewind", "every slot", "batch rows", "long run"} <= {c.check for c in result.unproven}
    assert result.drift is None


def test_an_engine_without_logits_is_proven_by_the_tokens_that_are_timed(tiny: GPT) -> None:
    result = held(Here(tiny, "", gives_logits=False), tiny)
    assert result.status == "pass", result.reason
    assert result.checks[0].check == "timed tokens" and result.checks[0].status == "pass"
    assert {"it gives no logits"} == {c.detail for c in result.unproven if c.check in ("greedy", "forced")}


def test_weights_of_its_own_are_not_proven_but_near(tiny: GPT) -> None:
    result = held(Here(tiny, "", unproven="it stores weights as Q8_0"), tiny, INT8)
    assert result.status == "pass", result.reason
    details = {check.check: check.detail for check in result.unproven}
    assert details["timed tokens"] == details["greedy"] == "it stores weights as Q8_0"
    assert "near" not in details and result.drift is not None and result.drift.top1_agreement == 1


@pytest.mark.parametrize(
    ("fault", "unproven", "caught"),
    [
        ("token", "", "timed tokens"),
        ("logits", "", "greedy"),
        ("shape", "", "greedy"),
        ("other function", "", "greedy"),
        ("other function", "it stores weights as Q8_0", "near"),
    ],
)
def test_a_fault_of_an_engine_is_seen(fault: str, unproven: str, caught: str, tiny: GPT) -> None:
    result = held(Here(tiny, fault, unproven), tiny)
    assert result.failed is not None and result.failed.check == caught, result.checks


# -- in the floor study ---------------------------------------------------------------------------

QUICKEST = ["--model", "tiny", "--context", "6,20", "--rounds", "3", "--quick", "--threads", "1", "--quiet"]


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine that works and one that dies while it is timed, beside `sdpa`."""
    folder = tmp_path_factory.mktemp("engines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "conversions", lambda model, parent: folder / "kept")
        patch.setattr(engines, "ENGINES", {"honest": engine(), "mortal": engine("mortal")})
        patch.setattr("profiling.peers.worker.ENGINES", engines.ENGINES)
        flags = ["--variant", "sdpa,honest,mortal", "--max-time", "1s", "--out", str(folder / "runs")]
        assert floor.main([*QUICKEST, *flags]) == 0
    (path,) = (folder / "runs").iterdir()
    return path


def test_an_engine_is_a_case_of_the_same_rounds(studied: Path) -> None:
    record = RunFolder.load(studied, FloorRecord).record
    entry, measured = record.variants["honest"], Measured(record)
    assert (entry.status, entry.parent, entry.elsewhere) == ("proven", None, True), entry.reason
    assert entry.implementation.endswith(": a fake") and entry.ops is None and entry.memory is None
    rung = measured.rung("honest")
    assert rung.ratio_to_memory_floor and rung.ratio_to_baseline and rung.ttft_ms
    assert {(s.round, s.context) for s in record.samples if s.variant == "honest"} == {
        (n, context) for n in range(3) for context in (6, 20)
    }
    assert not entry.narrow_bytes and entry.trace is None
    assert measured.duel is not None and not any("honest" in pair for pair in measured.duel.pairs())
    wanted = engine().step_bytes(PRESETS["tiny"], 6)
    assert entry.prediction[6].bytes == wanted == record.variants["sdpa"].prediction[6].bytes


def test_an_engine_that_dies_is_failed_and_the_others_go_on(studied: Path) -> None:
    entries = RunFolder.load(studied, FloorRecord).record.variants
    assert entries["mortal"].status == "failed"
    assert entries["mortal"].reason == f"RuntimeError: its process ended with status {DEATH}"
    assert entries["sdpa"].status == entries["honest"].status == "proven"


def test_the_floor_report_shows_the_engine(studied: Path) -> None:
    report = text_of(studied)
    assert "an engine of others (brings its own cache, mask, head, attention) (torch" in report
    assert "**FAILED** | RuntimeError: its process ended" in report
    assert "not proven of `honest`" in report


def test_an_engine_that_is_not_installed_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    absent = engine(package="no-such-package-anywhere")
    monkeypatch.setitem(engines.ENGINES, "llama.cpp", absent)
    with pytest.raises(UserError, match=r"--variant llama.cpp: no-such-package-anywhere is not installed"):
        floor.main([*QUICKEST, "--variant", "sdpa,llama.cpp", "--out", str(tmp_path / "runs")])
    with pytest.raises(UserError, match=r"--peer llama.cpp: no-such-package-anywhere is not installed"):
        peers.main(["--peer", "llama.cpp", "--out", str(tmp_path / "runs")])
    assert not (tmp_path / "runs").exists()


def test_all_means_every_rung_of_ours() -> None:
    known = ladder() | engines.engine_rungs()
    from variants.ladder import select

    assert not {v.name for v in select(["all"], known)[0]} & set(engines.ENGINES)


# -- numbers --------------------------------------------------------------------------------------


def entry(name: str) -> Entry:
    known, elsewhere = ladder() | engines.engine_rungs(), name in engines.ENGINES
    precision = known[name].precision.name
    size = engines.ENGINES[name].step_bytes(SMALL, 16) if elsewhere else 77
    return entry_of(
        precision=precision,
        elsewhere=elsewhere,
        status="proven",
        prediction={16: StepPrediction(bytes=size, macs=None, memory_ms=1.0, arithmetic_ms=None)},
        slots={16: 17},
        gate=GateResult(drift=Drift(0.75, None, None, None, None) if precision != "float32" else None),
    )


def record(visits: dict[str, list[list[float]]]) -> PeersRecord:
    samples = [
        Sample(
            round=n,
            variant=name,
            width=32,
            context=16,
            batch=1,
            steps_ms=ms,
            pipelined_ms=None,
            energy_j=None,
        )
        for name, rounds in visits.items()
        for n, ms in enumerate(rounds)
    ]
    return PeersRecord(
        **MADE,
        model=Model("small", "float32", SMALL),
        workload=Workload(contexts=(16,)),
        variants={name: entry(name) for name in visits},
        samples=samples,
    )


BY_HAND = {
    "sdpa": [[4.0, 4.0], [8.0, 8.0]],
    "onelaunch": [[2.0, 2.0], [4.0, 4.0]],
    "llama.cpp-q8_0": [[1.0, 1.0], [1.0, 1.0]],
    "llama.cpp": [[3.0, 3.0], [6.0, 6.0]],
    "openvino": [[2.2, 2.2], [4.4, 4.4]],
}


def test_rows_by_hand() -> None:
    """Ratios are taken within rounds, to our one launch at the same precision."""
    compared = rows(Measured(record(BY_HAND)), 16)
    by_name = {row.name: row for row in compared}
    assert by_name["llama.cpp"].ratio.mid == pytest.approx(1.5)
    assert by_name["llama.cpp"].ratio.low == pytest.approx(1.5)
    assert by_name["sdpa"].ratio.mid == pytest.approx(2)
    assert by_name["llama.cpp-q8_0"].ratio is None  # no one launch at 8 bits was run: unknown
    assert (by_name["llama.cpp"].agreement, by_name["llama.cpp-q8_0"].agreement) == (1.0, 0.75)
    assert [row.precision for row in compared] == ["float32"] * 4 + ["int8"]
    ((precision, (mine, other)),) = fastest_others(compared).items()
    assert (precision, mine.name, other.name) == ("float32", "onelaunch", "openvino")
    assert rows(Measured(record(BY_HAND)), 17) == []


def test_floors_by_hand() -> None:
    """The step over the read of its own bytes in its round; unknown where none was read."""
    by_hand = record(BY_HAND)
    size = by_hand.variants["llama.cpp"].prediction[16].bytes
    for number, ms in enumerate(([1.0, 1.0, 9.0], [2.0, 2.0, 9.0])):
        by_hand.floors.append(FloorRead(round=number, bytes=size, pages="default", ms=ms))
    by_name = {row.name: row for row in rows(Measured(by_hand), 16)}
    assert by_name["llama.cpp"].over_floor.mid == pytest.approx(3.0)
    assert by_name["llama.cpp"].floor_ms == 1.5
    assert (by_name["llama.cpp-q8_0"].floor_ms, by_name["llama.cpp-q8_0"].over_floor) == (None, None)


@pytest.mark.parametrize(("name", "rung"), [("llama.cpp", "sdpa"), ("transformers-bf16", "onelaunch-bf16")])
def test_a_float_engines_bytes_are_those_of_our_rung(name: str, rung: str) -> None:
    decoder = Decoder.of(ladder()[rung], random_model(SMALL, 1))
    for context in (0, 1, 16):
        assert engines.ENGINES[name].step_bytes(SMALL, context) == floor_bytes(decoder, context)


def test_fewer_bits_are_fewer_bytes() -> None:
    sizes = {name: engine.step_bytes(SMALL, 16) for name, engine in engines.ENGINES.items()}
    for package in ("llama.cpp", "onnxruntime", "openvino", "ctranslate2"):
        by_bits = [sizes[name] for name in sizes if name.startswith(package)]
        assert by_bits == sorted(by_bits, reverse=True) and by_bits[0] > by_bits[-1]


# -- the command of their own page ----------------------------------------------------------------


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UserError, match=r"unknown peer vllm; known: transformers"):
        peers.chosen(["vllm"])
    assert [variant.name for variant in peers.chosen([])] == [*peers.OURS, *engines.ENGINES]


@pytest.mark.parametrize(
    "flags", [["--steps", "0"], ["--context", "2000"], ["--rounds", "-1"], ["--context", "0"]]
)
def test_bad_numbers_are_refused(flags: list[str]) -> None:
    with pytest.raises(UserError, match=r"--|context"):
        peers.main(flags)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    """The command on a small model with three of ours and one peer; the folder and what it printed."""
    pytest.importorskip("transformers")
    out, screen = tmp_path_factory.mktemp("peers"), io.StringIO()
    flags = ["--peer", "transformers", "--rounds", "2", "--steps", "2", "--context", "9,4", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(screen):
        patch.setattr(peers, "OURS", ("cat", "sdpa", "onelaunch"))
        patch.setitem(PRESETS, "gpt2", SMALL)
        flags += ["--quick", "--folder", str(out / "kept"), "--out", str(out / "runs"), "--json"]
        assert peers.main(flags) == 0
    (path,) = (out / "runs").iterdir()
    return RunFolder.load(path, PeersRecord), screen.getvalue()


def test_the_command(ran: tuple[RunFolder, str]) -> None:
    run, shown = ran
    result = json.loads(shown.splitlines()[-1])
    assert set(result["contexts"]) == {"4", "9"} and result["run"] == str(run.path)
    by_name = {row["name"]: row for row in result["contexts"]["9"]}
    assert set(by_name) == {"cat", "sdpa", "onelaunch", "transformers"}
    assert by_name["transformers"]["agreement"] == 1
    assert len(by_name["transformers"]["ratio"]) == 3
    assert "transformers" in shown and "float32: " in result["verdict"]
    assert len(run.record.samples) == 2 * 2 * 5  # the baseline twice
    assert len(by_name["transformers"]["over_floor"]) == 3 and by_name["sdpa"]["floor_ms"] > 0
    assert run.record.status == "complete" and run.record.environment.threads == 1


def test_the_report(ran: tuple[RunFolder, str]) -> None:
    """It can be made again from the folder alone, and says versions, settings and tokens."""
    run, _ = ran
    before = (run.path / "report.md").read_text(encoding="utf-8")
    (run.path / "report.md").unlink()
    build.main([str(run.path)])
    text = (run.path / "report.md").read_text(encoding="utf-8")
    assert text == before
    assert "dynamic cache" in text and run.record.variants["transformers"].implementation in text
    assert peers._notes(run.record)[0] in text and "The articles" not in text
    assert (run.path / "figures" / "peers.png").stat().st_size > 1000


def test_a_record_of_before_keeps_its_page() -> None:
    """Its steps were another loop's, of engines that the gate had not seen."""
    old: dict[str, Any] = {"schema": 3, "experiment": "peers", "command": "c", "started": "s"}
    old |= {
        "workload": {"contexts": [1], "threads": 2},
        "entropy": 1,
        "engines": {"cat": {}},
        "samples": [{}],
    }
    old |= {"floors": [], "page": {"title": "kept", "sections": []}}
    known = decoded(json.dumps(old).encode(), Path("run.json"))
    assert isinstance(known, PeersRecord) and known.page.title == "kept" and not known.samples
