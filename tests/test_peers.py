"""Peers do the same work: the conversions are the same model, the processes answer, the ratios are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments import peers
from profiling.peers import checkpoint, engines
from profiling.peers.worker import Task, Timed, Visit, Worker
from variants.config import PRESETS, GPTConfig
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import random_model
from variants.weights import load_model

SMALL = GPTConfig(n_layer=2, n_head=2, n_embd=32, n_ctx=64, vocab_size=320)


def greedy(prompt: list[int], n: int, config: GPTConfig = SMALL, seed: int = 1) -> list[int]:
    decoder = Decoder(ladder()["cat"], random_model(config, seed))
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
    expected = Decoder(ladder()["naive"], model).prefill(tokens)
    torch.testing.assert_close(theirs(tokens).logits[:, -1].detach(), expected, rtol=1e-4, atol=1e-5)
    again = load_model(tmp_path / "hf")
    assert all(a.equal(b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_growing_step_is_the_same_model() -> None:
    model = random_model(SMALL, seed=1)
    tokens = torch.randint(320, (1, 12))
    step, decoder = checkpoint.GrowingStep(model), Decoder(ladder()["cat"], model)
    logits, *past = step(tokens[:, :7], *checkpoint.empty_past(model))
    torch.testing.assert_close(logits, decoder.prefill(tokens[:, :7]))
    for token in tokens[:, 7:].split(1, dim=1):
        logits, *past = step(token, *past)
        torch.testing.assert_close(logits, decoder.step(token), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, engine in engines.PEERS.items() if engine.version])
def test_installed_engines_give_the_reference_tokens(name: str, tmp_path: Path) -> None:
    """Float32 exactly; fewer bits may leave the reference, but not at once."""
    engine = engines.PEERS[name]
    peer = engine.build(random_model(SMALL, 1), tmp_path, 1, engine.format)
    for prompt in ([5, 300, 17, 8], [9, 2]):  # the second finds nothing of the first
        tokens = [peer.prefill(prompt)]
        for _ in range(6):
            tokens.append(peer.step(tokens[-1]))
        if engine.precision == "float32":
            assert tokens == greedy(prompt, 6)
        assert len(tokens) == 7 and all(0 <= token < 320 for token in tokens)


def test_a_process_answers_and_ends(tmp_path: Path) -> None:
    worker = Worker(Task("sdpa", SMALL, 1, tmp_path, 1))
    for prompt in ((5, 300, 17), (9, 2)):
        timed = worker.visit(Visit(prompt, settle=2, steps=3))
        assert timed.tokens == greedy(list(prompt), 5)
        assert len(timed.ms) == 3
    with pytest.raises(RuntimeError, match="do not fit"):
        worker.visit(Visit((1,) * 65, settle=0, steps=1))
    worker.close()
    assert not worker.process.is_alive()


def test_an_engine_that_cannot_start_says_why(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RuntimeError, match=r"NotADirectoryError|FileExistsError"):
        Worker(Task("transformers", SMALL, 1, blocked, 1))


def test_conversions_happen_once_and_are_never_half_done(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(part: Path) -> None:
        made.append(part)
        part.write_text("whole")

    def break_down(part: Path) -> None:
        part.write_text("half")
        raise OSError

    with pytest.raises(OSError):
        checkpoint.once(tmp_path / "x", break_down)
    assert not (tmp_path / "x").exists()
    for _ in range(2):
        assert checkpoint.once(tmp_path / "x", make).read_text() == "whole"
    assert len(made) == 1


def test_rows_by_hand() -> None:
    """Ratios are taken within rounds, to our one launch at the same precision."""
    seen = {
        "sdpa": [Timed([4.0, 4.0], [1, 2]), Timed([8.0, 8.0], [3, 4])],
        "onelaunch": [Timed([2.0, 2.0], [1, 2]), Timed([4.0, 4.0], [3, 4])],
        "llama.cpp": [Timed([3.0, 3.0], [1, 2]), Timed([6.0, 6.0], [3, 9])],
        "llama.cpp Q8_0": [Timed([1.0, 1.0], [0, 0]), Timed([1.0, 1.0], [0, 0])],
    }
    rows = {row["name"]: row for row in peers._rows(seen)}
    assert rows["llama.cpp"]["ratio"].mid == pytest.approx(1.5)
    assert rows["llama.cpp"]["ratio"].low == pytest.approx(1.5)
    assert rows["sdpa"]["ratio"].mid == pytest.approx(2)
    assert rows["llama.cpp"]["same_tokens"] == 0.75
    assert rows["llama.cpp Q8_0"]["ratio"] is None  # no one launch at 8 bits was run: unknown
    assert [row["precision"] for row in rows.values()] == ["float32"] * 3 + ["int8"]


def test_absent_engines_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = engines.Engine(engines.LlamaCpp, "F32", "float32", "no-such-package-anywhere")
    monkeypatch.setitem(engines.PEERS, "llama.cpp", gone)
    names, absent = peers._names(["llama.cpp"])
    assert "llama.cpp" not in names
    assert absent == {"llama.cpp": "no-such-package-anywhere is not installed (docs/peers.md)"}
    with pytest.raises(UserError, match=r"unknown peer vllm; known: transformers"):
        peers._names(["vllm"])


@pytest.mark.parametrize(
    "flags", [["--steps", "0"], ["--context", "2000"], ["--rounds", "-1"], ["--context", "0"]]
)
def test_bad_numbers_are_refused(flags: list[str]) -> None:
    with pytest.raises(UserError, match="--"):
        peers.main(flags)


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(engines, "OURS", {"sdpa": engines.OURS["sdpa"]})
    monkeypatch.setitem(PRESETS, "gpt2", SMALL)
    flags = ["--peer", "transformers", "--rounds", "2", "--steps", "2", "--context", "4,9", "--threads", "1"]
    assert peers.main([*flags, "--folder", str(tmp_path), "--json"]) == 0
    shown = capsys.readouterr().out
    result = json.loads(shown.splitlines()[-1])
    assert set(result["contexts"]) == {"4", "9"}
    rows = {row["name"]: row for row in result["contexts"]["9"]}
    assert rows["transformers"]["same_tokens"] == 1
    assert len(rows["sdpa"]["visit_medians_ms"]) == 2
    assert "transformers" in shown
