"""Shared fixtures: small models, and the markers' rules."""

from __future__ import annotations

import os
from dataclasses import replace

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own log lines are not test output

import pytest
import torch

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # a machine lent for its GPU may have pytest alone; its tests draw nothing
    pass
else:
    # How long an example takes says nothing on a machine that computes other things too. The same examples in
    # every run: a change is judged by what it changed; `--hypothesis-profile exploring` draws new ones.
    patient = settings(settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("exploring", patient)
    settings.register_profile("patient", patient, derandomize=True)
    settings.load_profile("patient")

if not torch.cuda.is_available():  # must stand before anything imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

from profiling.gate import checks
from variants.config import PRESETS, GPTConfig
from variants.model import GPT, random_model
from variants.slots.attention import FUSED, Attention

# the models are tiny: a second thread only waits, and several test processes run side by side
torch.set_num_threads(1)

# odd on purpose: heads != layers, 3 heads, grouped KV heads, a vocabulary that no tile divides
CONFIGS = {
    "tiny": PRESETS["tiny"],
    "grouped": GPTConfig(n_layer=3, n_head=4, n_kv_head=2, n_embd=32, n_ctx=48, vocab_size=67),
    "one-kv-head": GPTConfig(n_layer=1, n_head=5, n_kv_head=1, n_embd=40, n_ctx=33, vocab_size=130),
    "untied": GPTConfig(n_layer=2, n_head=2, n_embd=24, n_ctx=40, vocab_size=59, tied_head=False),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a device are skipped, not failed, where there is none."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def shorter_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's run of a thousand steps takes longer than all its other checks of a tiny model."""
    monkeypatch.setattr(checks, "LONG_RUN", 32)


@pytest.fixture(scope="session", params=list(CONFIGS))
def model(request: pytest.FixtureRequest) -> GPT:
    """Each odd configuration in turn, float32."""
    return random_model(CONFIGS[request.param], seed=1)


@pytest.fixture(scope="session")
def tiny() -> GPT:
    return random_model(PRESETS["tiny"], seed=1)


@pytest.fixture
def mask_turned_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rung with fused attention sees exactly what it must not see."""

    def build() -> Attention:
        fused = FUSED.build()
        return lambda q, k, v, visible: fused(q, k, v, ~visible)

    monkeypatch.setattr("variants.ladder.FUSED", replace(FUSED, build=build))
