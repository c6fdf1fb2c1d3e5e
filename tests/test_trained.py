"""The model that comes along: it knows its text, attends to what it reads, and every proof holds on it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from experiments import generate
from experiments.faults import TEXT
from profiling.gate import Gate
from profiling.gate.faults import FAULTS
from profiling.gate.purity import Pass, run
from variants import hub
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import GPT, random_model
from variants.weights import load_model

FOLDER = hub.folder_of("shakespeare")
SHORT = 64  # bytes: the tiny model holds no more


@pytest.fixture(scope="module")
def shakespeare() -> GPT:
    return load_model(FOLDER)


def reading(model: GPT) -> Pass:
    return run(model, torch.tensor([[*TEXT.encode()[:SHORT]]]) % model.config.vocab_size)


def evenness(model: GPT) -> float:
    """Entropy of what the last token attends to over that of attending to all alike, mean over all heads."""
    last = torch.cat([weights[:, -1] for weights in reading(model).weights])
    return float(torch.special.entr(last).sum(dim=-1).mean()) / math.log(last.size(-1))


def test_every_named_model_lies_here_with_its_origin() -> None:
    for name in hub.TRAINED:
        folder = hub.folder_of(name)
        origin = " ".join((folder / "README.md").read_text("utf-8").split())
        assert hub.fetched(name) == name and "in the public domain" in origin
        assert (folder / "model.safetensors").stat().st_size < 2_000_000


def test_it_knows_its_text(shakespeare: GPT) -> None:
    logits, text = reading(shakespeare).logits, torch.tensor([*TEXT.encode()[:SHORT]])
    bits = float(cross_entropy(logits[:-1], text[1:])) / math.log(2)
    assert bits < 4  # 8 are a byte's, about 5 its frequencies'


def test_its_attention_is_not_uniform(shakespeare: GPT) -> None:
    assert evenness(random_model(PRESETS["tiny"])) > 0.99
    assert evenness(shakespeare) < 0.9


@pytest.mark.parametrize("variant", ["sdpa", "paged"])
def test_the_gate_passes_on_it_and_sees_a_fault(shakespeare: GPT, variant: str) -> None:
    gate = Gate(shakespeare, "float32", capacity=64, steps=8, forced=8, brief=True)
    result = gate.check_briefly(Decoder.of(ladder()[variant], shakespeare, capacity=64))
    assert result.status == "pass", result.reason
    broken = Decoder.of(ladder()[variant], shakespeare, capacity=64)
    next(fault for fault in FAULTS if fault.name == "position starts at 0").inject(broken)
    assert gate.check_only(broken, "forced").status == "fail"


def test_a_byte_is_a_token_and_temperature_moves_the_text(tmp_path: Path, capsys) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    said = "Ham.\n\tÆ €"
    assert tokenizer.encode(said).ids == [*said.encode()] and tokenizer.decode([*said.encode()]) == said
    flags = ["--model", "shakespeare", "--prompt", "Ham.\n", "--new", "40", "--no-proof", "--quiet", "--json"]
    assert generate.main([*flags, "--temperature", "0,3", "--out", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    (hot,) = result["further"]
    assert len({*result["ids"]}) < len({*hot["ids"]})
