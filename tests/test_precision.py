"""Reduced precisions: what is stored, the arithmetic that defines them, and the kernels against it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from profiling.gate.oracle import Oracle
from variants.backends.backend import why_no_one_launch
from variants.config import GPTConfig
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import GPT, random_model
from variants.option import declared
from variants.slots import exact as in_float64
from variants.slots.exact import Widened, exact_copy
from variants.slots.kv import AS_PRECISION
from variants.slots.precision import PrecisionOption
from variants.slots.quantised import BLOCK, GROUP, Int4Linear, Int8Linear, quantise_rows
from variants.spec import Variant

needs_kernels = pytest.mark.skipif(why_no_one_launch("cpu") is not None, reason=str(why_no_one_launch("cpu")))
PRECISIONS = declared(PrecisionOption)
QUANTISED = {"int8": Int8Linear, "int4": Int4Linear}
ODD = GPTConfig(n_layer=2, n_head=4, n_kv_head=2, n_embd=60, n_inner=100, n_ctx=140, vocab_size=131)


def linear(inputs: int, outputs: int, seed: int, bias: bool = True) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)


def modules_rung(precision: str) -> Variant:
    """The modules backend at this precision: plain PyTorch arithmetic."""
    return ladder()["sdpa"].then(f"modules {precision}", "", precision=PRECISIONS[precision])


@settings(max_examples=50)
@given(inputs=st.integers(1, 300), outputs=st.integers(1, 9), bias=st.booleans(), seed=st.integers(0, 9))
def test_a_weight_is_off_by_at_most_half_a_step(inputs: int, outputs: int, bias: bool, seed: int) -> None:
    plain = linear(inputs, outputs, seed, bias)
    for kind in QUANTISED.values():
        stored = kind(plain)
        scale = stored.scale
        if isinstance(stored, Int4Linear):
            scale = scale.repeat_interleave(GROUP, dim=1)[:, :inputs]
        else:
            scale = scale[:, None]
        error = (stored.dequantised() - plain.weight).abs()
        assert (error <= scale * 0.5001).all()


def test_int4_layout_by_hand() -> None:
    """64 bytes hold two groups of 64: low nibbles, then high nibbles; a nibble is the weight + 8."""
    plain = linear(130, 2, 0)
    plain.weight.copy_((torch.arange(260).view(2, 130) % 15 - 7) * 0.5)  # -3.5 .. 3.5 in steps of 0.5
    stored = Int4Linear(plain)
    assert stored.weight.shape == (2, 2 * BLOCK // 2)
    assert stored.scale[0, :2].tolist() == [0.5, 0.5]
    for row in range(2):
        for k in range(128):
            byte = int(stored.weight[row, k % GROUP])
            nibble = byte >> 4 if k >= GROUP else byte & 15
            assert nibble - 8 == round(float(plain.weight[row, k]) / float(stored.scale[row, k // GROUP]))
    assert stored.dequantised().shape == (2, 130)


@pytest.mark.parametrize("kind", QUANTISED.values())
@pytest.mark.parametrize("shape", [(7,), (3, 70), (2, 5, 129)])
def test_layers_compute_their_definition(kind: type[Int8Linear | Int4Linear], shape: tuple[int, ...]) -> None:
    """sum(q_x * q_w) as integers, then the scales: recomputed in float64."""
    stored = kind(linear(shape[-1], 11, 1))
    x = torch.randn(shape)
    q, scale = quantise_rows(x)
    expected = q.double() * scale.double() @ stored.dequantised().double().T + stored.bias.double()
    torch.testing.assert_close(stored(x), expected.float(), rtol=1e-5, atol=1e-6)


def test_quantising_is_deterministic_and_leaves_the_model_alone() -> None:
    model = random_model(ODD, seed=1)
    before = model.blocks[0].qkv.weight.clone()
    for precision in QUANTISED:
        first, second = (PRECISIONS[precision].build(model) for _ in range(2))
        for (name, a), (_, b) in zip(first.named_buffers(), second.named_buffers(), strict=True):
            assert a.equal(b), name
        assert isinstance(first.lm_head, QUANTISED[precision])
        assert first.wte.weight.equal(model.wte.weight)
    assert model.blocks[0].qkv.weight.equal(before)
    assert isinstance(model.lm_head, nn.Linear)


def test_zero_rows_survive() -> None:
    plain = linear(64, 2, 0)
    plain.weight[0] = 0
    for kind in QUANTISED.values():
        y = kind(plain)(torch.zeros(1, 64))
        torch.testing.assert_close(y, plain.bias[None])


@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_bytes_per_weight(precision: str) -> None:
    """What the byte counts assume is what the tensors take, at sizes that need no padding."""
    model = PRECISIONS[precision].build(
        random_model(GPTConfig(n_layer=1, n_head=2, n_embd=256, n_ctx=8), seed=1)
    )
    up = model.blocks[0].up
    stored = sum(t.nbytes for name, t in up.state_dict().items() if name != "bias")
    assert stored / (256 * 1024) == pytest.approx(PRECISIONS[precision].bytes_per_weight, rel=0.02)


@pytest.mark.parametrize("precision", QUANTISED)
def test_the_truth_has_the_stored_weights(precision: str) -> None:
    model = random_model(ODD, seed=1)
    exact = exact_copy(model, PRECISIONS[precision])
    stored = PRECISIONS[precision].build(model).blocks[1].down.dequantised()
    assert exact.blocks[1].down.weight.dtype == torch.float64
    assert exact.blocks[1].down.weight.float().equal(stored)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", *QUANTISED])
def test_a_truth_that_is_widened_pass_by_pass_is_the_same(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large model no float64 copy is kept."""
    model, tokens = random_model(ODD, seed=1), torch.arange(30).view(2, 15)
    whole = Oracle(model, PRECISIONS[precision], AS_PRECISION, batch=2).answer(tokens, 0, 0)
    monkeypatch.setattr(in_float64, "KEPT_BYTES", 0)
    monkeypatch.setattr(in_float64, "ROWS", 7)
    oracle = Oracle(model, PRECISIONS[precision], AS_PRECISION, batch=2)
    assert isinstance(oracle.head, Widened) and isinstance(oracle.decoder.model.blocks[0].up, Widened)
    again = oracle.answer(tokens, 0, 0)
    torch.testing.assert_close(again.logits, whole.logits, rtol=1e-12, atol=1e-13)
    for (k, v), (other_k, other_v) in zip(again.kv, whole.kv, strict=True):
        torch.testing.assert_close(k, other_k, rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(v, other_v, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("precision", QUANTISED)
def test_quantising_leaves_the_model_as_it_was(precision: str) -> None:
    model = random_model(ODD, seed=1, dtype=torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    smaller = PRECISIONS[precision].build(model)
    assert smaller.blocks[0].up.bias.dtype == torch.float32
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.bfloat16 and tensor.equal(before[name])


def steps(decoder: Decoder, tokens: Tensor) -> Tensor:
    """Logits [T-3,B,V] float32 of one-token steps."""
    decoder.prefill(tokens[:, :3])
    return torch.stack([decoder.step(token).float() for token in tokens[:, 3:].split(1, dim=1)])


@needs_kernels
@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("batch", [1, 3])
def test_kernels_do_the_same_arithmetic(precision: str, batch: int) -> None:
    """Equal to rounding in most steps. Where float32 noise tips an activation into the next of 255 steps,
    the difference stays within what quantising costs anyway."""
    model = random_model(ODD, seed=2)
    tokens = torch.randint(131, (batch, 140), generator=torch.Generator().manual_seed(0))
    plain = steps(Decoder.of(modules_rung(precision), model, batch=batch), tokens)
    mine = steps(Decoder.of(ladder()[f"onelaunch-{precision}"], model, batch=batch), tokens)
    full = steps(Decoder.of(ladder()["sdpa"], model, batch=batch), tokens)
    per_step = (mine - plain).abs().amax(dim=(1, 2))
    assert per_step.quantile(0.3) < 2e-6
    assert (mine - plain).square().mean() < 0.3 * (plain - full).square().mean()


@needs_kernels
@pytest.mark.parametrize("precision", QUANTISED)
def test_byte_products_do_not_saturate(precision: str) -> None:
    """All weights and all activations at the ends of their range, in the longest sums: 16-bit halves of a
    byte product overflow first."""
    config = GPTConfig(n_layer=1, n_head=2, n_embd=128, n_inner=1024, n_ctx=4, vocab_size=40)
    model = random_model(config, seed=2)
    block = model.blocks[0]
    for layer in (block.qkv, block.out, block.up, block.down):
        layer.weight.copy_(layer.weight.sign() * 0.02)
    block.up.weight.fill_(0.02)
    block.up.bias.fill_(3.0)
    for norm in (block.ln_1, block.ln_2, model.ln_f):
        norm.weight.zero_()
        norm.bias.copy_(torch.where(torch.arange(128) % 3 == 0, -1.0, 1.0))
    block.ln_2.bias.fill_(1.0)
    block.down.weight.copy_(0.02 * torch.where(torch.arange(128) % 2 == 0, 1.0, -1.0)[:, None])
    token = torch.zeros(1, 1, dtype=torch.int64)
    plain = Decoder.of(modules_rung(precision), model)
    mine = Decoder.of(ladder()[f"onelaunch-{precision}"], model)
    for decoder in (plain, mine):
        decoder.prefill(token)
    torch.testing.assert_close(mine.step(token), plain.step(token), rtol=1e-5, atol=1e-5)
    for kind in ("k", "v"):
        ours, theirs = getattr(mine.cache, kind)[0], getattr(plain.cache, kind)[0]
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@needs_kernels
def test_fewer_bits_do_more_damage(tiny: GPT) -> None:
    tokens = torch.randint(101, (1, 60), generator=torch.Generator().manual_seed(1))
    full = steps(Decoder.of(ladder()["sdpa"], tiny), tokens)
    damage = [
        float((steps(Decoder.of(ladder()[name], tiny), tokens) - full).square().mean().sqrt())
        for name in ("onelaunch", "onelaunch-bf16", "onelaunch-int8", "onelaunch-int4")
    ]
    assert damage == sorted(damage)
    assert damage[2] < 0.02 * float(full.square().mean().sqrt())


@pytest.mark.parametrize("root", ["float64", "float32", "bfloat16"])
def test_every_root_has_the_rungs_that_differ_from_it(root: str) -> None:
    names = set(ladder(root))
    assert ("bf16" in names) == (root != "bfloat16")
    assert ("onelaunch" in names) == (root != "float64")
    assert "int8" in names
