"""The reference itself: held to logits of transformers, which the committed ones are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from profiling.gate import Gate, known
from profiling.gate.evidence import Mismatch
from profiling.peers.checkpoint import hugging_face
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import Block


@pytest.fixture
def computed_anew() -> Iterator[None]:
    known._off.cache_clear()
    yield
    known._off.cache_clear()


def test_the_committed_logits_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, texts = known.known_model()
    hugging_face(model, tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").double().eval()
    with torch.no_grad():
        logits = [known.asked(theirs(text).logits) for text in texts]
    committed = torch.tensor(known.LOGITS, dtype=torch.float64)
    assert (torch.stack(logits) - committed).abs().max() < known.TOLERANCE


def other_gelu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "activated", lambda self, x: F.gelu(x))


def other_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = F.layer_norm

    def with_another(x, shape, weight, bias, eps):
        return norm(x, shape, weight, bias, eps / 10)

    monkeypatch.setattr(F, "layer_norm", with_another)


@pytest.mark.parametrize("fault", [other_gelu, other_epsilon])
def test_what_reference_and_variants_have_in_common_is_seen_here_and_nowhere_else(
    tiny, fault, monkeypatch: pytest.MonkeyPatch, computed_anew: None
) -> None:
    fault(monkeypatch)
    with pytest.raises(Mismatch, match="reference itself is wrong"):
        known.hold_reference()
    decoder = Decoder.of(ladder()["sdpa"], tiny)
    result = Gate(tiny, "float32", steps=8, forced=8).check(decoder)
    assert "reference itself is wrong" in result.reason
    monkeypatch.setattr("profiling.gate.gate.hold_reference", lambda: None)
    assert Gate(tiny, "float32", steps=8, forced=8).check(decoder).status == "pass"
