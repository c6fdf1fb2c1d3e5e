"""Peers do the same work: the conversions are the same model, the processes answer, the ratios are right."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from records import MADE

from experiments import peers
from profiling.measure.expect import floor_bytes
from profiling.peers import checkpoint, compare, engines, graphs, worker
from profiling.peers.peer import Peer, Task
from profiling.peers.worker import Request, Worker
from profiling.results.folder import RunFolder
from profiling.results.record import EngineSample, FloorRead, PeerEntry, PeersRecord, replaced
from reports import build
from variants.config import PRESETS, GPTConfig
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import random_model
from variants.weights import load_model

SMALL = GPTConfig(n_layer=2, n_head=2, n_embd=32, n_ctx=64, vocab_size=320)


def greedy(prompt: list[int], n: int, config: GPTConfig = SMALL, seed: int = 1) -> list[int]:
    decoder = Decoder.of(ladder()["cat"], random_model(config, seed))
    decoder.prefill(torch.tensor([prompt]))
    tokens = [int(decoder.token)]
    for _ in range(n):
        decoder.advance()
        tokens.append(int(decoder.token))
    return tokens


@pytest.mark.parametrize("tied", [True, False])
def test_hugging_face_folder_is_the_same_model(tied: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = GPTConfig(n_layer=2, n_head=2, n_embd=32, n_ctx=16, vocab_size=71, n_inner=96, tied_head=tied)
    model = random_model(config, seed=4)
    checkpoint.hugging_face(model, tmp_path / "hf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    tokens = torch.randint(71, (1, 9))
    expected = Decoder.of(ladder()["naive"], model).prefill(tokens)
    torch.testing.assert_close(theirs(tokens).logits[:, -1].detach(), expected, rtol=1e-4, atol=1e-5)
    again = load_model(tmp_path / "hf")
    assert all(a.equal(b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_growing_step_is_the_same_model() -> None:
    model = random_model(SMALL, seed=1)
    tokens = torch.randint(320, (1, 12))
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
    peer = graphs.OpenVino(random_model(config, 1), task("OpenVINO", tmp_path, config), kind)
    peer.request.reset_state()
    (got,) = peer.request.infer({"tokens": np.array([[5, 300, 17]])}).values()
    rounded = random_model(config, 1)
    rounded.lm_head.weight = torch.nn.Parameter(rounded.lm_head.weight.clone())  # no longer the token table
    for linear in (module for module in rounded.modules() if isinstance(module, torch.nn.Linear)):
        groups = linear.weight.detach().unflatten(1, (-1, group))
        step = groups.abs().amax(-1, keepdim=True) / levels
        linear.weight = torch.nn.Parameter(((groups / step).round() * step).flatten(1))
    expected, *_ = graphs.GrowingStep(rounded)(torch.tensor([[5, 300, 17]]), *graphs.empty_past(rounded))
    torch.testing.assert_close(torch.from_numpy(got), expected.detach(), rtol=1e-4, atol=1e-5)


def task(name: str, folder: Path, config: GPTConfig = SMALL) -> Task:
    return Task(name, config, seed=1, folder=folder, threads=1, tokens=32)


@pytest.mark.parametrize("name", [name for name, engine in engines.ALL.items() if engine.version])
def test_installed_engines_give_the_reference_tokens(name: str, tmp_path: Path) -> None:
    """Float32 exactly; fewer bits may leave the reference, but not at once."""
    engine = engines.ALL[name]
    if name == "aoti":
        pytest.skip("compiles for a minute; tests/test_aoti.py does")
    try:
        peer = engine.build(random_model(SMALL, 1), task(name, tmp_path), engine.kind)
    except RuntimeError as error:
        assert name == "OpenVINO bf16" and "no bf16 arithmetic" in str(error)
        pytest.skip(str(error))
    same = 0
    for prompt in ([5, 300, 17, 8], [9, 2]):  # the second finds nothing of the first
        tokens, right = [peer.prefill(prompt)], greedy(prompt, 6)
        for _ in range(6):
            tokens.append(peer.step(tokens[-1]))
        peer.rest()
        if engine.precision == "float32":
            assert tokens == right
        same += sum(a == b for a, b in zip(tokens, right, strict=True))
        assert len(tokens) == 7 and all(0 <= token < 320 for token in tokens)
    assert same >= 2


def test_a_process_answers_and_ends(tmp_path: Path) -> None:
    worker = Worker(task("sdpa", tmp_path))
    for prompt in ((5, 300, 17), (9, 2)):
        timed = worker.visit(Request(prompt, warm_up=2, steps=3))
        assert timed.tokens == greedy(list(prompt), 5)
        assert len(timed.ms) == 3
    with pytest.raises(RuntimeError, match="do not fit"):
        worker.visit(Request((1,) * 65, warm_up=0, steps=1))
    worker.close()
    assert not worker.process.is_alive()


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RuntimeError, match=r"NotADirectoryError|FileExistsError"):
        Worker(task("transformers", blocked))


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


class Counting(Peer):
    """Counts up, and says how often it was told to rest."""

    rests = 0

    def prefill(self, tokens: list[int]) -> int:
        return tokens[-1]

    def step(self, token: int) -> int:
        return token + 1

    def rest(self) -> None:
        self.rests += 1


def test_an_engine_that_goes_on_by_itself_is_stopped() -> None:
    """CTranslate2 writes to its limit unasked: left alone it would compute through everybody's visits."""
    peer = Counting()
    timed = worker._run(peer, Request((7, 1), warm_up=1, steps=3))
    assert timed.tokens == [1, 2, 3, 4, 5] and len(timed.ms) == 3 and peer.rests == 1


def entry(name: str) -> PeerEntry:
    engine = engines.ALL[name]
    return PeerEntry(
        ours=name in engines.OURS,
        precision=engine.precision,
        package="",
        version="1",
        settings=engine.settings,
        status="measured",
        step_bytes={16: engine.step_bytes(SMALL, 16)},
    )


def record(visits: dict[str, list[tuple[list[float], list[int]]]]) -> PeersRecord:
    samples = [
        EngineSample(engine=name, context=16, round=n, ms=ms, tokens=tokens)
        for name, rounds in visits.items()
        for n, (ms, tokens) in enumerate(rounds)
    ]
    return PeersRecord(**MADE, engines={name: entry(name) for name in visits}, samples=samples)


BY_HAND = {
    "sdpa": [([4.0, 4.0], [1, 2]), ([8.0, 8.0], [3, 4])],
    "onelaunch": [([2.0, 2.0], [1, 2]), ([4.0, 4.0], [3, 4])],
    "llama.cpp Q8_0": [([1.0, 1.0], [0, 0]), ([1.0, 1.0], [0, 0])],
    "llama.cpp": [([3.0, 3.0], [1, 2]), ([6.0, 6.0], [3, 9])],
    "OpenVINO": [([2.2, 2.2], [1, 2]), ([4.4, 4.4], [3, 4])],
}


def test_rows_by_hand() -> None:
    """Ratios are taken within rounds, to our one launch at the same precision."""
    compared = compare.rows(record(BY_HAND), 16)
    rows = {row.name: row for row in compared}
    assert rows["llama.cpp"].ratio.mid == pytest.approx(1.5)
    assert rows["llama.cpp"].ratio.low == pytest.approx(1.5)
    assert rows["sdpa"].ratio.mid == pytest.approx(2)
    assert rows["llama.cpp"].right_tokens == 0.75
    assert rows["llama.cpp Q8_0"].ratio is None  # no one launch at 8 bits was run: unknown
    assert [row.precision for row in compared] == ["float32"] * 4 + ["8 bit"]
    assert compare.wrong(compared) == ["llama.cpp"]
    ((precision, (mine, other)),) = compare.fastest_others(compared).items()
    assert (precision, mine.name, other.name) == ("float32", "onelaunch", "OpenVINO")
    assert compare.rows(record(BY_HAND), 17) == []


def test_floors_by_hand() -> None:
    """The step over the read of its own bytes in its round; unknown where none was read."""
    by_hand = record(BY_HAND)
    size = by_hand.engines["llama.cpp"].step_bytes[16]
    for number, ms in enumerate(([1.0, 1.0, 9.0], [2.0, 2.0, 9.0])):
        by_hand.floors.append(FloorRead(round=number, bytes=size, pages="default", ms=ms))
    rows = {row.name: row for row in compare.rows(by_hand, 16)}
    assert rows["llama.cpp"].over_floor.mid == pytest.approx(3.0) and rows["llama.cpp"].floor_ms == 1.5
    assert rows["onelaunch"].over_floor.mid == pytest.approx(2.0)
    assert (rows["llama.cpp Q8_0"].floor_ms, rows["llama.cpp Q8_0"].over_floor) == (None, None)


@pytest.mark.parametrize("rung", ["cat", "sdpa", "onelaunch", "onelaunch-bf16"])
def test_a_float_engines_bytes_are_those_of_our_rung(rung: str) -> None:
    decoder = Decoder.of(ladder()[rung], random_model(SMALL, 1))
    for context in (0, 1, 16):
        assert engines.OURS[rung].step_bytes(SMALL, context) == floor_bytes(decoder, context)


def test_fewer_bits_are_fewer_bytes() -> None:
    sizes = {name: engine.step_bytes(SMALL, 16) for name, engine in engines.ALL.items()}
    for engine in ("llama.cpp", "ONNX Runtime", "OpenVINO", "CTranslate2"):
        by_bits = [sizes[name] for name in sizes if name.startswith(engine)]
        assert by_bits == sorted(by_bits, reverse=True) and by_bits[0] > by_bits[-1]
    assert sizes["onelaunch-int4"] < sizes["onelaunch-int8"] < sizes["onelaunch-bf16"]


def test_an_engine_that_failed_midway_has_no_row() -> None:
    broken = record({**BY_HAND, "ONNX Runtime": [([1.0, 1.0], [1, 2])]})
    broken.engines["ONNX Runtime"] = replaced(broken.engines["ONNX Runtime"], status="left out")
    assert "ONNX Runtime" not in {row.name for row in compare.rows(broken, 16)}


def test_absent_engines_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = engines.Engine(engines.LlamaCpp, "F32", "float32", "no-such-package-anywhere")
    monkeypatch.setitem(engines.ALL, "llama.cpp", gone)
    known = peers._engines(["llama.cpp"], SMALL, [4])
    assert set(known) == {*engines.OURS, "llama.cpp"}
    assert known["llama.cpp"].status == "left out"
    assert known["llama.cpp"].reason == "no-such-package-anywhere is not installed (docs/peers.md)"
    with pytest.raises(UserError, match=r"unknown peer vllm; known: transformers"):
        peers._engines(["vllm"], SMALL, [4])


@pytest.mark.parametrize(
    "flags", [["--steps", "0"], ["--context", "2000"], ["--rounds", "-1"], ["--context", "0"]]
)
def test_bad_numbers_are_refused(flags: list[str]) -> None:
    with pytest.raises(UserError, match="--"):
        peers.main(flags)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    """The command on a small model with two of ours and one peer; the folder and what it printed."""
    pytest.importorskip("transformers")
    ours = {name: engines.OURS[name] for name in ("sdpa", "onelaunch")}
    out, screen = tmp_path_factory.mktemp("peers"), io.StringIO()
    flags = ["--peer", "transformers", "--rounds", "2", "--steps", "2", "--context", "9,4", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(screen):
        patch.setattr(engines, "OURS", ours)
        patch.setitem(PRESETS, "gpt2", SMALL)
        assert peers.main([*flags, "--folder", str(out / "kept"), "--out", str(out / "runs"), "--json"]) == 0
    (path,) = (out / "runs").iterdir()
    return RunFolder.load(path, PeersRecord), screen.getvalue()


def test_the_command(ran: tuple[RunFolder, str]) -> None:
    run, shown = ran
    result = json.loads(shown.splitlines()[-1])
    assert set(result["contexts"]) == {"4", "9"} and result["run"] == str(run.path)
    rows = {row["name"]: row for row in result["contexts"]["9"]}
    assert set(rows) == {"sdpa", "onelaunch", "transformers"}
    assert rows["transformers"]["right_tokens"] == 1
    assert len(rows["transformers"]["ratio"]) == 3
    assert "transformers" in shown and "float32: " in result["verdict"]
    assert len(run.record.samples) == 2 * 2 * 3
    assert len(rows["transformers"]["over_floor"]) == 3 and rows["sdpa"]["floor_ms"] > 0
    assert {read.bytes for read in run.record.floors} == {
        size for entry in run.record.engines.values() for size in entry.step_bytes.values()
    }
    assert run.record.status == "complete" and run.record.workload.threads == 1


def test_the_report(ran: tuple[RunFolder, str]) -> None:
    """It can be made again from the folder alone, and says versions, settings and tokens."""
    run, _ = ran
    before = (run.path / "report.md").read_text(encoding="utf-8")
    (run.path / "report.md").unlink()
    build.main([str(run.path)])
    text = (run.path / "report.md").read_text(encoding="utf-8")
    assert text == before
    assert "dynamic cache" in text and run.record.engines["transformers"].version in text
    assert run.record.page.sections[0].blocks[-1].text in text and "The articles" not in text
    assert (run.path / "figures" / "peers.png").stat().st_size > 1000
