"""Narrow caches store what they say, pass the gate at every precision, and a wrong one does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from profiling.gate import Gate
from profiling.measure.expect import floor_bytes
from profiling.measure.memory import decoder_bytes, storage_bytes
from tests.conftest import CONFIGS
from variants.backends.backend import FUSED_TRITON, ONE_LAUNCH
from variants.config import GPTConfig
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import random_model
from variants.slots.cache import CONCAT, PAGED, STATIC
from variants.slots.kv import KV_BFLOAT16, KV_INT8, KvOption
from variants.slots.narrow_cache import NarrowCache, as_stored
from variants.spec import Variant

NARROW = ["kv-bf16", "kv-int8", "onelaunch-kv16", "onelaunch-kv8", "onelaunch-int4-kv8"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ["paged", *NARROW])
@pytest.mark.parametrize("config", list(CONFIGS))
def test_the_rungs_pass_the_gate_at_every_precision(name: str, precision: str, config: str) -> None:
    if name not in ladder(precision):
        pytest.skip("stored so at this precision anyway, or no kernel is written for it")
    if reason := ladder(precision)[name].why_not("cpu"):
        pytest.skip(reason)
    model = random_model(CONFIGS[config], 1, getattr(torch, precision))
    result = Gate(model, precision, steps=12, forced=16).check(Decoder.of(ladder(precision)[name], model))
    assert (result.status, result.reason) == ("pass", "")
    assert (result.drift is not None) == (name != "paged")


@pytest.mark.parametrize("kv", [KV_BFLOAT16, KV_INT8], ids=lambda kv: kv.name)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_what_is_stored_comes_back_within_its_rounding(kv: KvOption, scale: float) -> None:
    x = scale * torch.randn(2, 3, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    error = (as_stored(x, kv) - x).abs()
    largest = x.abs().amax(dim=-1, keepdim=True)
    assert (error <= (largest / 253 if kv is KV_INT8 else x.abs() * 2.0**-8)).all()


def test_every_head_and_token_has_its_own_scale() -> None:
    """A loud head or token must not cost a quiet one its digits."""
    x = torch.randn(1, 3, 4, 8, generator=torch.Generator().manual_seed(0))
    loudness = (
        torch.tensor([1e-3, 1.0, 1e3])[None, :, None, None] * torch.tensor([1.0, 50.0, 1.0, 1e4])[:, None]
    )
    back = as_stored(x * loudness, KV_INT8) / loudness
    assert (back - x).abs().max() < x.abs().max() / 250
    assert (as_stored(torch.zeros(1, 1, 1, 8), KV_INT8) == 0).all()


@pytest.mark.parametrize("name", [*NARROW[:-1], "sdpa", "paged"])
def test_bytes_by_formula_are_those_of_the_tensors(tiny, name: str) -> None:
    decoder = Decoder.of(ladder()[name], tiny, batch=2, capacity=48)
    decoder.prefill(torch.zeros(2, 48, dtype=torch.int64))
    held = decoder_bytes(decoder)
    table = decoder.cache.buffers()[-1].nbytes if name == "paged" else 0
    scratch = 2 * 2 * 16 * 48 * 4 if name == "paged" else 0  # layers, K and V, a block, width, float32
    assert held.cache_bytes - table - scratch == held.cache_formula_bytes
    narrow, wide = (floor_bytes(decoder, n) for n in (0, 10))
    per_value = decoder.variant.kv.element_bytes(tiny.config, 4)
    assert wide - narrow == 10 * 2 * 2 * 2 * 48 * per_value


@pytest.mark.parametrize("name", ["sdpa", "bf16", "int8"])
@pytest.mark.parametrize("config", list(CONFIGS))
def test_the_floor_at_no_context_is_what_the_step_reads_of_the_weights(config: str, name: str) -> None:
    """Every parameter and scale, of the position table one row, of an unshared token table a row each."""
    model = random_model(CONFIGS[config], 1)
    decoder = Decoder.of(ladder()[name], model, batch=2)
    converted = decoder.model
    tensors = [*converted.parameters(), *converted.buffers()]
    row = converted.wpe.weight[0].nbytes
    read = storage_bytes(tensors) - converted.wpe.weight.nbytes + row
    if converted.lm_head.weight is not converted.wte.weight:
        read += 2 * row - converted.wte.weight.nbytes
    assert floor_bytes(decoder, 0) == read


@pytest.mark.parametrize("name", [*NARROW, "paged", "onelaunch-paged"])
def test_narrow_and_paged_caches_in_one_launch_are_the_cpus(name: str) -> None:
    reason = ladder()[name].why_not("cuda")
    assert (reason is None) == (not name.startswith("onelaunch"))
    assert reason is None or "written for the CPU" in reason


def test_values_that_fell_the_other_way_are_no_fault() -> None:
    """Near the middle between two steps either is right, and all later layers may differ by it."""
    model = random_model(GPTConfig(n_layer=12, n_head=2, n_embd=64, n_ctx=64, vocab_size=101), 2)
    for block in model.blocks:  # as large as in a width of 768: there attention counts against the residual
        for linear in (block.qkv, block.out, block.up, block.down):
            linear.weight *= 12**0.5
    decoder = Decoder.of(ladder()["kv-int8"], model)
    cache = decoder.cache
    assert isinstance(cache, NarrowCache)
    append = cache.append

    def other_way(layer, k, v, where):
        append(layer, k, v, where)
        for (q, scale), new in zip(cache.stored()[layer], (k, v), strict=True):
            if layer < 2 and new.size(2) == 1:
                at = int(where[0])
                exact, stored = new[:, :, 0] / scale[:, :, at], q[:, :, at].clone()
                near = (exact.frac().abs() - 0.5).abs().argmin(dim=-1, keepdim=True)
                up = (exact > stored).to(torch.int8) * 2 - 1
                q[:, :, at] = stored.scatter_add(-1, near, up.gather(-1, near))
        return cache.contents(layer, cache.slots)

    cache.append = other_way  # type: ignore[method-assign]
    result = Gate(model, "float32", steps=8, forced=14, contexts=(10,)).check(decoder)
    assert (result.status, result.reason) == ("pass", "")


def test_a_scale_of_another_token_is_caught(tiny) -> None:
    decoder = Decoder.of(ladder()["kv-int8"], tiny)
    cache = decoder.cache
    assert isinstance(cache, NarrowCache)
    append = cache.append

    def shifted(layer, k, v, where):
        append(layer, k, v, where)
        for _, scale in cache.stored()[layer]:
            scale[:, :, 1:] = scale[:, :, :-1].clone()
        return cache.contents(layer, cache.slots)

    cache.append = shifted  # type: ignore[method-assign]
    result = Gate(tiny, "float32", steps=8, forced=14).check_only(decoder, "forced")
    assert result.status == "fail"


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ({"cache": PAGED, "kv": KV_INT8}, "kv 'int8' is written for cache 'static'"),
        ({"cache": CONCAT, "kv": KV_INT8}, "kv 'int8' is written for cache 'static'"),
        (
            {"cache": CONCAT, "backend": ONE_LAUNCH},
            "backend 'one launch' reads cache 'static' or 'paged' stored 'as precision' or 'bfloat16'",
        ),
        (
            {"cache": STATIC, "kv": KV_INT8, "backend": FUSED_TRITON},
            "backend 'fused Triton' reads cache 'static' stored 'as precision'",
        ),
    ],
)
def test_pairs_that_are_not_written_are_refused(slots: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Variant("impossible", "nothing", **slots)
