"""Sampling: the draws follow the exact distribution, and every filter has its edges where they should be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch._subclasses.fake_tensor import FakeTensorMode

from variants.errors import UserError
from variants.sampling import Sampler

LOGITS = [2.0, -1.0, 0.5, 3.0, 0.5, -4.0, 1.0, 0.0, 2.5, -0.5, 0.5]  # three tokens tie at 0.5
SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 5},  # cuts through the tie
    {"temperature": 1.0, "top_k": 999},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 0.93},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 0.7, "top_k": 6, "top_p": 0.9},
]


def expected(logits: list[float], temperature: float, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """The distribution by its definition: sorted in Python, float64."""
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    candidates = ranked[: top_k or None]
    weight = {token: math.exp((logits[token] - logits[ranked[0]]) / temperature) for token in candidates}
    mass, chosen = 0.0, []
    for token in candidates:
        if mass >= top_p and chosen:
            break
        chosen.append(token)
        mass += weight[token] / sum(weight.values())
    total = sum(weight[token] for token in chosen)
    return np.array([weight[t] / total if t in chosen else 0.0 for t in range(len(logits))])


def draws(sampler: Sampler, logits: torch.Tensor, n: int, seed: int = 1) -> np.ndarray:
    generator = torch.Generator().manual_seed(seed)
    tokens = sampler(logits.expand(n, -1), generator)
    assert tokens.shape == (n, 1) and tokens.dtype == torch.int64
    return np.bincount(tokens[:, 0].numpy(), minlength=logits.size(-1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_probabilities_are_the_definition(setting: dict[str, float], dtype: torch.dtype) -> None:
    probabilities = Sampler(**setting).probabilities(torch.tensor([LOGITS], dtype=dtype))[0]
    tolerance = 1e-14 if dtype == torch.float64 else 1e-6  # LOGITS are exact in bfloat16
    np.testing.assert_allclose(
        probabilities.double().numpy(), expected(LOGITS, **setting), atol=tolerance, rtol=0
    )


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_draws_follow_the_distribution(setting: dict[str, float]) -> None:
    n, exact = 100_000, expected(LOGITS, **setting)
    counts = draws(Sampler(**setting), torch.tensor([LOGITS]), n)
    assert counts[exact == 0].sum() == 0, "a token outside the filter was drawn"
    if (exact > 0).sum() > 1:
        assert chisquare(counts[exact > 0], n * exact[exact > 0]).pvalue > 1e-3


def test_the_chi_square_test_can_fail() -> None:
    n, slightly_off = 100_000, expected(LOGITS, temperature=1.05)
    counts = draws(Sampler(temperature=1.0), torch.tensor([LOGITS]), n)
    assert chisquare(counts, n * slightly_off).pvalue < 1e-6


def test_a_large_vocabulary_is_drawn_evenly() -> None:
    counts = draws(Sampler(temperature=1.0), torch.zeros(1, 2000), 5_000)
    assert chisquare(np.add.reduceat(counts, range(0, 2000, 50))).pvalue > 1e-3


def test_greedy_takes_the_first_of_equal_maxima_and_draws_nothing() -> None:
    logits = torch.tensor([[1.0, 7.0, 7.0], [-math.inf, -math.inf, -2.0]])
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    assert Sampler()(logits, generator).tolist() == [[1], [2]]
    assert torch.equal(generator.get_state(), before)
    assert Sampler().probabilities(logits).tolist() == [[0, 1, 0], [0, 0, 1]]


def test_top_k_keeps_exactly_k_of_equal_tokens() -> None:
    probabilities = Sampler(temperature=1.0, top_k=3).probabilities(torch.zeros(1, 8))[0]
    assert probabilities.nonzero()[:, 0].tolist() == [0, 1, 2]


def test_top_p_over_what_top_k_left_is_renormalised() -> None:
    # 0.5 0.3 0.2 after top-k 3 of (5, 3, 2, 90 tokens of 0.1): p = 0.75 keeps two there, everything without
    weights = torch.tensor([[5.0, 3.0, 2.0] + [0.1] * 90]).log()
    probabilities = Sampler(temperature=1.0, top_k=3, top_p=0.75).probabilities(weights)[0]
    torch.testing.assert_close(probabilities[:3], torch.tensor([5 / 8, 3 / 8, 0.0]))
    assert probabilities[3:].sum() == 0


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_minus_infinity_is_never_drawn(setting: dict[str, float]) -> None:
    logits = torch.full((1, 40), -math.inf)
    logits[0, [7, 21]] = torch.tensor([0.3, 0.2])
    counts = draws(Sampler(**setting), logits, 5_000)
    assert counts.sum() == counts[[7, 21]].sum()
    assert torch.isfinite(Sampler(**setting).probabilities(logits)).all()


@pytest.mark.parametrize("setting", [{}, *SETTINGS], ids=str)
def test_a_row_with_nothing_finite_gives_token_0(setting: dict[str, float]) -> None:
    logits = torch.stack([torch.full((9,), -math.inf), torch.arange(9.0)])
    tokens = Sampler(**setting)(logits, torch.Generator().manual_seed(0))
    assert tokens[0, 0] == 0 and 0 <= tokens[1, 0] < 9


def test_a_drawn_time_of_zero_cannot_choose_a_filtered_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, *_, **__: self.zero_())
    logits = torch.tensor([[-math.inf, 1.0, -math.inf]])
    assert Sampler(temperature=1.0)(logits).item() == 1


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-3])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([LOGITS]) * 1e30
    assert draws(Sampler(temperature=temperature), logits, 1_000)[3] == 1_000


def test_one_seed_gives_one_sequence_and_rows_are_independent() -> None:
    sampler, logits = Sampler(temperature=1.0, top_p=0.95), torch.tensor([LOGITS]).expand(64, -1)
    first = sampler(logits, torch.Generator().manual_seed(3))
    assert torch.equal(first, sampler(logits, torch.Generator().manual_seed(3)))
    assert not torch.equal(first, sampler(logits, torch.Generator().manual_seed(4)))
    assert len(first.unique()) > 1


@settings(max_examples=60)
@example([-2.1e-22, 0.0, 0.0, 1.0], 1.0, 0, 0.5)
@given(
    st.lists(st.floats(-30, 30, width=32) | st.just(-math.inf), min_size=1, max_size=30),
    st.floats(0.05, 5),
    st.integers(0, 40),
    st.floats(0.001, 1),
)
def test_what_every_filter_keeps(logits: list[float], temperature: float, top_k: int, top_p: float) -> None:
    if max(logits) == -math.inf:
        return
    sampler = Sampler(temperature, top_k, top_p)
    probabilities = sampler.probabilities(torch.tensor([logits], dtype=torch.float64))[0]
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-12)
    # below the maximum, as softmax sees them: two that differ by less than its rounding are equal there
    below = [max(logits) - logit for logit in logits]
    ranked = sorted(range(len(logits)), key=lambda token: (below[token], token))
    support = [token for token in ranked if probabilities[token] > 0]
    assert support == ranked[: len(support)], "the kept tokens are the most likely ones"
    assert 1 <= len(support) <= (top_k or len(logits))
    before = Sampler(temperature, top_k).probabilities(torch.tensor([logits], dtype=torch.float64))[0]
    assert before[support].sum() >= top_p - 1e-9, "their mass reaches p"
    assert before[support[:-1]].sum() < top_p + 1e-9, "and not without the last of them"


@pytest.mark.parametrize("setting", SETTINGS[:3] + SETTINGS[6:], ids=str)
def test_the_same_as_hugging_face(setting: dict[str, float]) -> None:
    process = pytest.importorskip("transformers.generation.logits_process")
    logits = torch.randn(50, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    scores = process.TemperatureLogitsWarper(float(setting["temperature"]))(None, logits)
    if setting.get("top_k"):
        scores = process.TopKLogitsWarper(int(setting["top_k"]))(None, scores)
    if setting.get("top_p", 1.0) < 1:
        scores = process.TopPLogitsWarper(setting["top_p"])(None, scores)
    torch.testing.assert_close(Sampler(**setting).probabilities(logits), scores.softmax(dim=-1))


@pytest.mark.parametrize("setting", [{}, *SETTINGS], ids=str)
def test_nothing_waits_for_the_device(setting: dict[str, float]) -> None:
    with FakeTensorMode():  # a value read on the host has no answer here and raises
        assert Sampler(**setting)(torch.empty(2, 50)).shape == (2, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("setting", [{}, *SETTINGS], ids=str)
def test_no_sync_on_cuda(setting: dict[str, float]) -> None:
    logits = torch.tensor([LOGITS], device="cuda").expand(20_000, -1)
    generator = torch.Generator("cuda").manual_seed(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        tokens = Sampler(**setting)(logits, generator)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    if setting:
        counts = np.bincount(tokens[:, 0].cpu().numpy(), minlength=len(LOGITS))
        exact = expected(LOGITS, **setting)
        assert counts[exact == 0].sum() == 0
        if (exact > 0).sum() > 1:
            assert chisquare(counts[exact > 0], 20_000 * exact[exact > 0]).pvalue > 1e-3


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": math.nan},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Sampler(**bad)
