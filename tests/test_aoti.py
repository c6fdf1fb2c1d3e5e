"""AOTInductor's library computes the step, holds no weights, and is found again only where it fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from variants.config import GPTConfig
from variants.decoder import Decoder
from variants.executors.aoti import AotStep, compile_step
from variants.ladder import ladder
from variants.model import random_model

reason = ladder()["aoti"].why_not("cpu")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(reason is not None, reason=str(reason))]

CONFIG = GPTConfig(n_layer=1, n_head=2, n_embd=16, n_ctx=12, vocab_size=31)


def artefact(decoder: Decoder) -> AotStep:
    decoder.warm_up()
    (step,) = decoder._steps.values()
    assert isinstance(step, AotStep)
    return step


def test_the_library_serves_any_weights_and_nothing_else() -> None:
    """Built once for two seeds; both decoders give eager's logits, tokens and cache."""
    packages = []
    for seed in (1, 2):
        model = random_model(CONFIG, seed=seed)
        compiled, eager = Decoder.of(ladder()["aoti"], model), Decoder.of(ladder()["sdpa"], model)
        packages.append(artefact(compiled).package)
        prompt = torch.randint(31, (1, 4), generator=torch.Generator().manual_seed(seed))
        compiled.prefill(prompt)
        eager.prefill(prompt)
        for _ in range(8):
            torch.testing.assert_close(compiled.advance(), eager.advance(), rtol=1e-5, atol=1e-6)
            assert compiled.token.equal(eager.token)
        assert int(compiled.cache.length) == 12
        for a, b in zip(compiled.cache.buffers(), eager.cache.buffers(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert packages[0] == packages[1]
    assert packages[0].stat().st_size < 4 << 20
    assert compiled.executor.log[0].bytes["library"] == packages[0].stat().st_size


def test_another_graph_is_another_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stale build is not found: anything that changes the graph changes the key."""
    asked: list[Path] = []

    def refuse(exported: object, package: Path) -> None:
        asked.append(package)
        raise LookupError

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("variants.executors.aoti._build", refuse)
    model = random_model(CONFIG, seed=1)
    for variant, slots in (("sdpa", 12), ("sdpa", 8), ("static", 12), ("nomask", 12)):
        decoder = Decoder.of(ladder()[variant], model, buckets=(8, 12))
        decoder.cache.slots = slots
        with pytest.raises(LookupError):
            compile_step(decoder.backend.step, decoder.token)
    assert len(set(asked)) == 4
