"""Sizing: real configs against their published sizes and against transformers, plans, refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from experiments import sizing
from experiments.shared.cli import run
from experiments.shared.published import PUBLISHED, Check
from experiments.shared.reproduced import sizing_checks
from profiling.results.record import ModelShape
from profiling.sizing.capacity import (
    BLOCK_TOKENS,
    GIB,
    DeviceMemory,
    devices_for,
    doubling,
    plan,
    read_requests,
)
from profiling.sizing.model_shape import (
    KV_FORMATS,
    KvFormat,
    attention_pairs,
    kv_bytes,
    kv_token_bytes,
    longest_context,
    shape_of_gpt,
)
from profiling.sizing.read_shape import read_shape, shape_from_config
from variants.config import PRESETS
from variants.errors import UserError
from variants.families import FAMILIES
from variants.known_configs import KNOWN_CONFIGS

BF16 = KV_FORMATS["bfloat16"]


def config(
    model_type: str, hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "torch_dtype": "bfloat16",
        **more,
    }


TIED = {"tie_word_embeddings": True}
GPT2_XL = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024}
QWEN_MOE = {"num_experts": 128, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "mlp_only_layers": []}
OSS = {"num_local_experts": 32, "layer_types": ["sliding_attention", "full_attention"] * 12}

# config.json as published; parameters as published; bf16 cache of one token; layers with a window
REAL: dict[str, tuple[dict[str, Any], int, int, int]] = {
    "Llama-2-7b": (KNOWN_CONFIGS["llama-2-7b"], 6_738_415_616, 524_288, 0),
    "Llama-2-70b": (KNOWN_CONFIGS["llama-2-70b"], 68_976_648_192, 327_680, 0),
    "Llama-3.1-8B": (config("llama", 4096, 32, 32, 8, 14336, 128256), 8_030_261_248, 131_072, 0),
    "Llama-3.2-1B": (
        config("llama", 2048, 16, 32, 8, 8192, 128256, head_dim=64, **TIED), 1_235_814_400, 32_768, 0
    ),
    "Mistral-7B-v0.1": (
        config("mistral", 4096, 32, 32, 8, 14336, 32000, sliding_window=4096), 7_241_732_096, 131_072, 32
    ),
    "Mistral-7B-v0.3": (
        config("mistral", 4096, 32, 32, 8, 14336, 32768, sliding_window=None), 7_248_023_552, 131_072, 0
    ),
    "Mixtral-8x7B": (
        config("mixtral", 4096, 32, 32, 8, 14336, 32000, num_local_experts=8), 46_702_792_704, 131_072, 0
    ),
    "Qwen2.5-7B": (  # names a window that is switched off
        config("qwen2", 3584, 28, 28, 4, 18944, 152064, sliding_window=131072, use_sliding_window=False),
        7_615_616_512, 57_344, 0,
    ),
    "Qwen3-0.6B": (  # head_dim is not hidden / heads
        config("qwen3", 1024, 28, 16, 8, 3072, 151936, head_dim=128, **TIED), 596_049_920, 114_688, 0
    ),
    "Qwen3-30B-A3B": (
        config("qwen3_moe", 2048, 48, 32, 4, 6144, 151936, head_dim=128, **QWEN_MOE),
        30_532_122_624, 98_304, 0,
    ),
    "Gemma-7b": (config("gemma", 3072, 28, 16, 16, 24576, 256000, head_dim=256), 8_537_680_896, 458_752, 0),
    "Gemma-2-9b": (
        config("gemma2", 3584, 42, 16, 8, 14336, 256000, head_dim=256, sliding_window=4096),
        9_241_705_984, 344_064, 21,
    ),
    "Gemma-3-1b": (
        config("gemma3_text", 1152, 26, 4, 1, 6912, 262144, sliding_window=512, sliding_window_pattern=6),
        999_885_952, 26_624, 22,
    ),
    "Phi-3-mini-4k": (
        config("phi3", 3072, 32, 32, 32, 8192, 32064, sliding_window=2047), 3_821_079_552, 393_216, 32
    ),
    "StarCoder2-3b": (
        config("starcoder2", 3072, 30, 24, 2, 12288, 49152, sliding_window=4096), 3_030_371_328, 30_720, 30
    ),
    "gpt-oss-20b": (
        config("gpt_oss", 2880, 24, 64, 8, 2880, 201088, sliding_window=128, **OSS),
        20_914_757_184, 49_152, 12,
    ),
    "Pythia-6.9b": (config("gpt_neox", 4096, 32, 32, 32, 16384, 50432), 6_857_302_016, 524_288, 0),
    "OLMo-2-7B": (config("olmo2", 4096, 32, 32, 32, 11008, 100352), 7_298_617_344, 524_288, 0),
    "SmolLM3-3B": (config("smollm3", 2048, 36, 16, 4, 11008, 128256), 3_075_098_624, 73_728, 0),
    "gpt2-xl": (GPT2_XL | {"vocab_size": 50257}, 1_557_611_200, 307_200, 0),
}  # fmt: skip


@pytest.mark.parametrize("check", sizing_checks(), ids=lambda check: check.key)
def test_published_figures_are_reproduced_as_printed(check: Check) -> None:
    assert check.here == PUBLISHED[check.key].value


@pytest.mark.parametrize("name", REAL)
def test_real_models_have_their_published_size(name: str) -> None:
    raw, parameters, token_bytes, windowed = REAL[name]
    shape = shape_from_config(raw, name)
    assert shape.parameters == parameters
    assert kv_token_bytes(shape, BF16) == token_bytes
    assert sum(window is not None for window in shape.windows) == windowed


def tiny_config(model_type: str) -> Any:
    """A small model of this type with odd sizes, through transformers' own config class."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    sizes = {"num_hidden_layers": 6, "hidden_size": 48, "num_attention_heads": 4, "vocab_size": 61}
    if model_type in ("gpt2", "gpt_bigcode"):
        sizes |= {"n_inner": 36, "n_positions": 64}
    else:
        kv_heads = 4 if model_type == "gpt_neox" else 2  # it has no grouped attention
        sizes |= {"intermediate_size": 36, "max_position_embeddings": 64, "num_key_value_heads": kv_heads}
    sizes |= {key: 3 for key in ("num_local_experts", "num_experts") if FAMILIES[model_type].experts}
    sizes |= {"num_experts_per_tok": 2, "moe_intermediate_size": 12} if FAMILIES[model_type].experts else {}
    if FAMILIES[model_type].windows != "none":
        sizes |= {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 4}
    if "head_dim" in FAMILIES[model_type].defaults or model_type in ("qwen3", "qwen3_moe"):
        sizes |= {"head_dim": 20}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return transformers.AutoConfig.for_model(model_type, **sizes, **tokens)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # the cache argument is being renamed
@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_is_what_transformers_builds(model_type: str) -> None:
    """Parameters, and the cache that a forward pass really leaves behind, layer by layer."""
    hugging = tiny_config(model_type)
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_config(hugging, dtype=torch.float32).eval()
    shape = shape_from_config(json.loads(hugging.to_json_string()), model_type)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())

    cache = DynamicCache(config=hugging)
    with torch.no_grad():
        model(torch.arange(11)[None], past_key_values=cache)
    for layer, window in zip(cache.layers, shape.windows, strict=True):
        # transformers drops the row that the next token will push out; with it a window is full
        tokens = 11 if window is None else window - 1
        assert layer.keys.shape == (1, shape.n_kv_head, tokens, shape.head_dim)
    assert any(shape.windows) == (FAMILIES[model_type].windows != "none")


@pytest.mark.parametrize("model_type", [name for name, family in FAMILIES.items() if family.defaults])
def test_what_a_config_leaves_out_is_what_transformers_fills_in(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    hugging = transformers.AutoConfig.for_model(model_type)
    rope = getattr(hugging, "rope_parameters", None) or {}  # by kind of layer where these differ
    bases = {
        "rope_theta": rope.get("full_attention", rope).get("rope_theta"),
        "rope_local_base_freq": rope.get("sliding_attention", rope).get("rope_theta"),
    }
    for key, value in FAMILIES[model_type].defaults.items():
        assert (bases[key] if key in bases else getattr(hugging, key)) == value


def test_an_explicit_null_undoes_a_default() -> None:
    raw = config("mistral", 64, 2, 4, 2, 64, 99)
    assert shape_from_config(raw, "x").windows == (4096, 4096)
    assert shape_from_config(raw | {"sliding_window": None}, "x").windows == (None, None)
    assert shape_from_config(raw | {"head_dim": None}, "x").head_dim == 16


def test_layer_types_win_over_the_rule_of_the_family() -> None:
    raw = config("gemma2", 64, 3, 4, 4, 64, 99, sliding_window=7)
    named = raw | {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}
    assert shape_from_config(raw, "x").windows == (7, None, 7)
    assert shape_from_config(named, "x").windows == (None, None, 7)


def test_a_text_model_inside_another_is_sized_without_guessing_the_rest() -> None:
    inner = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
    }
    outer = {
        "model_type": "gemma3",
        "text_config": inner | {"sliding_window": 1024},
        "torch_dtype": "bfloat16",
    }
    shape = shape_from_config(outer, "gemma-3-4b")
    assert (shape.n_head, shape.n_kv_head, shape.head_dim) == (8, 4, 256)
    assert shape.windows.count(1024) == 29 and shape.windows[5] is None
    assert shape.parameters is None and shape.weights_bytes is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "minicpm3", "kv_lora_rank": 256}, "MLA"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "qk_rope_head_dim is missing"),
        ({"kv_lora_rank": 64}, "MLA"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "mamba", "state_size": 16}, "recurrent state"),
        ({"model_type": "jamba", "attn_layer_period": 8}, "not every layer"),
        ({"model_type": "gemma3n_text", "num_kv_shared_layers": 10}, "reuse"),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, "chunked"),
        ({"model_type": "brand_new"}, "not known here"),
        ({"model_type": None}, "not known here"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ({"layer_types": ["full_attention"]}, "1 entries for 2 layers"),
        ({"sliding_window": 512}, "not guessed"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"hidden_size": 66}, "head_dim is needed"),
        ({"model_type": "gemma2", "sliding_window": 8, "sliding_window_pattern": "LLLG"}, "LLLG"),
        (
            {
                "model_type": "qwen3_moe",
                "num_experts": 4,
                "moe_intermediate_size": 8,
                "mlp_only_layers": ["0"],
            },
            "a list of layers",
        ),
    ],
    ids=str,
)
def test_what_is_not_known_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    raw = config("llama", 64, 2, 4, 4, 64, 99) | change
    with pytest.raises(UserError, match=reason) as refusal:
        shape_from_config(raw, "some/config.json")
    assert "some/config.json" in str(refusal.value) and "\n" not in str(refusal.value)


def test_weights_come_from_the_files_where_there_are_any(tmp_path: Path) -> None:
    raw = config("llama", 64, 2, 4, 4, 64, 99)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    by_formula = read_shape(str(tmp_path))
    assert by_formula.parameters is not None and by_formula.weights_bytes == 2 * by_formula.parameters
    save_file({"a": torch.zeros(1000, dtype=torch.int8)}, tmp_path / "model.safetensors")
    assert read_shape(str(tmp_path)).weights_bytes == 1000
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 123}}))
    assert read_shape(str(tmp_path)).weights_bytes == 123
    index.write_text("{}")
    with pytest.raises(UserError, match="total_size: expected a number of bytes, got None"):
        read_shape(str(tmp_path))


def test_quantised_weights_are_not_sized_by_their_nominal_dtype() -> None:
    raw = config("llama", 64, 2, 4, 4, 64, 99) | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    assert shape_from_config(raw, "x").weights_bytes is None
    assert shape_from_config(raw, "x", stored_bytes=17).weights_bytes == 17


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_their_own_hugging_face_config(name: str) -> None:
    preset = PRESETS[name]
    raw = {"model_type": "gpt2", "n_embd": preset.n_embd, "n_layer": preset.n_layer, "n_head": preset.n_head}
    raw |= {"n_positions": preset.n_ctx, "vocab_size": preset.vocab_size, "dtype": "float32"}
    assert shape_from_config(raw, name) == shape_of_gpt(name, preset) == read_shape(name)


shapes = st.builds(
    lambda kv, group, dim, windows, weights: ModelShape(
        "m", kv * group, kv, dim, tuple(windows), None, None, weights, None
    ),
    *[st.integers(1, 4), st.integers(1, 4), st.integers(1, 16)],
    st.lists(st.none() | st.integers(1, 40), min_size=1, max_size=6),
    st.integers(1, 10**6),
)
formats = st.sampled_from(list(KV_FORMATS.values()))


@settings(max_examples=80)
@given(shapes, formats, st.integers(0, 100), st.integers(1, 5))
def test_cache_bytes_by_brute_force(shape: ModelShape, kv: KvFormat, tokens: int, batch: int) -> None:
    expected = 0
    for window in shape.windows:
        for _ in range(batch):
            rows = [n for n in range(tokens) if window is None or n >= tokens - window]
            expected += 2 * len(rows) * shape.n_kv_head * (shape.head_dim * kv.element_bytes + kv.scale_bytes)
    assert kv_bytes(shape, tokens, kv, batch) == expected


@settings(max_examples=80)
@given(shapes, formats, st.integers(0, 300_000))
def test_the_longest_context_fits_and_one_more_does_not(shape: ModelShape, kv: KvFormat, budget: int) -> None:
    longest = longest_context(shape, budget, kv)
    if longest is None:
        assert kv_bytes(shape, 10**9, kv) <= budget
    else:
        assert (longest == 0 or kv_bytes(shape, longest, kv) <= budget) and kv_bytes(
            shape, longest + 1, kv
        ) > budget


@settings(max_examples=40)
@given(shapes, st.integers(1, 60))
def test_prefill_pairs_by_brute_force(shape: ModelShape, tokens: int) -> None:
    expected = sum(min(query + 1, window or tokens) for window in shape.windows for query in range(tokens))
    assert attention_pairs(shape, tokens) == expected


def test_what_doubles() -> None:
    full = read_shape("llama-2-7b")
    times = doubling(full, BF16, 4096)
    assert times["cache of a request"] == 2 and times["prefill, attention"] == pytest.approx(4, abs=1e-3)
    windowed = shape_from_config(REAL["Mistral-7B-v0.1"][0], "m")
    times = doubling(windowed, BF16, 8192)
    assert times["cache of a request"] == 1 and times["prefill, attention"] < 2.5


@settings(max_examples=60)
@given(st.floats(20, 200), st.floats(0.5, 1), st.floats(0, 2), st.integers(1, 200_000), formats)
def test_a_plan_fills_memory_and_not_more(
    device_gib: float, share: float, other_gib: float, context: int, kv: KvFormat
) -> None:
    shape = shape_from_config(REAL["Llama-3.1-8B"][0], "m")
    assert shape.weights_bytes is not None
    if device_gib * share * GIB - shape.weights_bytes - other_gib * GIB < GIB:
        return
    fits = plan(shape, kv, [context], DeviceMemory(device_gib, share, other_gib))
    used = shape.weights_bytes + other_gib * GIB
    assert fits.request_bytes == kv_bytes(shape, -(-context // BLOCK_TOKENS) * BLOCK_TOKENS, kv)
    assert used + fits.requests * fits.request_bytes <= device_gib * share * GIB + 2
    assert used + (fits.requests + 1) * fits.request_bytes > device_gib * share * GIB - 2
    assert fits.tokens == fits.free_bytes // kv_token_bytes(shape, kv) == fits.longest


def test_the_articles_division() -> None:
    """Free memory over 2 L Hkv d b is the number of tokens that fit (article 4)."""
    shape = read_shape("llama-2-7b")
    fits = plan(shape, BF16, [4096], DeviceMemory(80, 0.9))
    assert shape.weights_bytes is not None
    assert fits.tokens == (int(72 * GIB) - shape.weights_bytes) // (2 * 32 * 32 * 128 * 2)
    assert fits.requests == 29


@pytest.mark.parametrize(
    "arguments",
    [
        {"gib": 0.0},
        {"gib": -1.0},
        {"gib": float("nan")},
        {"gib": float("inf")},
        {"gib": 1e300},
        {"other_gib": 1e300},
        {"other_gib": float("inf")},
        {"utilisation": 0.0},
        {"utilisation": 1.1},
        {"other_gib": -1.0},
    ],
    ids=str,
)
def test_an_impossible_device_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="cannot plan on"):
        DeviceMemory(**{"gib": 80.0} | arguments)


def test_what_does_not_fit_says_how_many_devices_do() -> None:
    """Llama-2-70B: 128.5 GiB of weights, by arithmetic on the published parameters."""
    shape, memory = read_shape("llama-2-70b"), DeviceMemory(80, 0.9)
    fits = plan(shape, BF16, [4096], memory)
    assert fits.free_bytes < 0 and (fits.requests, fits.tokens, fits.longest) == (0, 0, 0)
    assert fits.devices == 2  # 2 x 72 GiB
    assert plan(shape, BF16, [4096], DeviceMemory(48, 0.9)).devices == 4  # 64 heads are not split in three
    assert (
        plan(shape, BF16, [4096], DeviceMemory(1, 0.9)).devices is None
    )  # beyond 8 of them heads are copied


@settings(max_examples=80)
@given(shapes, st.integers(1, 2**20), st.floats(1e-6, 1e-2))
def test_the_fewest_devices_by_brute_force(shape: ModelShape, request_bytes: int, gib: float) -> None:
    assert shape.weights_bytes is not None
    memory = DeviceMemory(gib, 1.0)

    def heads_on_the_fullest(devices: int) -> int | None:
        """KV heads of the device that has most, where query heads are dealt evenly, in order."""
        if shape.n_head % devices:
            return None
        each = shape.n_head // devices
        group = shape.n_head // shape.n_kv_head
        held = [{h // group for h in range(d * each, (d + 1) * each)} for d in range(devices)]
        even = len({len(heads) for heads in held}) == 1 and (
            shape.n_kv_head % devices == 0 or devices % shape.n_kv_head == 0
        )
        return len(held[0]) if even else None

    fitting = [
        n
        for n in range(1, shape.n_head + 1)
        if (heads := heads_on_the_fullest(n))
        and shape.weights_bytes / n + request_bytes * heads / shape.n_kv_head <= memory.usable_bytes
    ]
    assert devices_for(shape, request_bytes, memory) == min(fitting, default=None)


def test_no_single_request_is_longer_than_the_models_limit() -> None:
    assert plan(read_shape("llama-2-7b"), BF16, [100], DeviceMemory(80)).longest == 4096
    windowed = shape_from_config(REAL["Mistral-7B-v0.1"][0] | {"max_position_embeddings": 32768}, "m")
    assert plan(windowed, BF16, [100], DeviceMemory(80)).longest == 32768  # by its windows any length fits


def test_a_latent_cache_has_its_published_size() -> None:
    """DeepSeek-V3 keeps 70.272 KB a token in 16 bits (arXiv 2505.09343, table 1)."""
    raw = {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "max_position_embeddings": 163840, "torch_dtype": "bfloat16",
    }  # fmt: skip
    shape = shape_from_config(raw, "DeepSeek-V3", stored_bytes=700 * GIB)
    assert kv_token_bytes(shape, BF16) == 70_272
    # on eight devices every one keeps the whole vector
    one = kv_bytes(shape, 4096, BF16)
    assert devices_for(shape, one, DeviceMemory(700 / 8 + one / GIB, 1.0)) == 8
    assert devices_for(shape, one, DeviceMemory(700 / 8 + one / GIB / 2, 1.0)) == 16
    with pytest.raises(UserError, match=r"kv_lora_rank is 0\.5"):
        shape_from_config(raw | {"kv_lora_rank": 0.5}, "x")
    with pytest.raises(UserError, match="qk_rope_head_dim is missing"):
        shape_from_config(raw | {"qk_rope_head_dim": None}, "x")


@settings(max_examples=60)
@given(st.lists(st.integers(40, 4000), min_size=1, max_size=30), st.integers(0, 39))
def test_a_mix_fills_memory_on_average(lengths: list[int], shared: int) -> None:
    shape, memory = read_shape("llama-2-7b"), DeviceMemory(40)
    fits = plan(shape, BF16, lengths, memory, shared)
    blocks = [-(-n // BLOCK_TOKENS) - shared // BLOCK_TOKENS for n in lengths]
    token = 2 * 32 * 32 * 128 * 2
    mean = sum(blocks) / len(blocks) * BLOCK_TOKENS * token
    common = shared // BLOCK_TOKENS * BLOCK_TOKENS * token
    assert fits.requests == pytest.approx((fits.free_bytes - common) / mean, abs=1)
    assert fits.requests * mean + common <= fits.free_bytes


@pytest.mark.parametrize("shared", [-1, 100, 101])
def test_a_prefix_is_shorter_than_every_request(shared: int) -> None:
    with pytest.raises(UserError, match="shared prefix"):
        plan(read_shape("llama-2-7b"), BF16, [100, 200], DeviceMemory(80), shared)


def test_lengths_are_read_as_tokens_of_a_request(tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    for encoding in ("utf-8", "utf-8-sig"):  # as a table of Windows begins
        file.write_text("100, 20\n\n7\n30 5  # chat\n9;1\n# prompt, new\n", encoding=encoding)
        assert list(map(sum, read_requests(file))) == [120, 7, 35, 10]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at least 1 token"),
        ("0\n", "at least 1 token"),
        ("5\n1,2,3\n", "line 2"),
        ("prompt,new\n1,2\n", "line 1"),
        ("-4\n", "line 1"),
        ("1.5\n", "line 1"),
        ("9" * 50, "line 1"),
    ],
)
def test_a_bad_line_of_lengths_is_named(text: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "lengths.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=reason):
        read_requests(file)
    with pytest.raises(UserError, match="not a readable text file"):
        read_requests(tmp_path / "none")


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    printed: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return printed


def test_the_command_prints_writes_and_ends_with_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizing.main(["--out", str(tmp_path), "--device-gib", "80"])
    printed = capsys.readouterr().out
    assert "The articles' figures" in printed and "Claim holds here" in printed.splitlines()[-1]
    assert "--max-model-len 4096 --max-num-seqs 29 --gpu-memory-utilization 0.9 --dtype float16" in printed
    (folder,) = tmp_path.iterdir()
    record = json.loads((folder / "run.json").read_bytes())
    assert record["status"] == "complete" and all(claim["holds"] for claim in record["claims"])


def test_the_command_on_a_config_with_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(REAL["Gemma-2-9b"][0]))
    arguments = [
        "--model",
        str(tmp_path),
        "--kv-dtype",
        "fp8",
        "--device-gib",
        "24",
        "--context",
        "2048,8192",
    ]
    sizing.main([*arguments, "--batch", "1,4", "--json", "--out", str(tmp_path / "runs")])
    printed = last_json(capsys)
    half = 2 * 8 * 256 * 21  # bytes of one token in the full (or the windowed) layers, fp8
    assert printed["cache_bytes"]["8192"] == {"1": half * (8192 + 4096), "4": 4 * half * (8192 + 4096)}
    assert printed["plan"]["8192"]["tokens"] is None
    assert printed["vllm"].startswith(f"vllm serve {tmp_path} --max-model-len 8192 --max-num-seqs ")
    assert "--kv-cache-dtype fp8" in printed["vllm"]
    assert all(row["holds"] for row in printed["claims"])


def test_the_command_on_a_shape_in_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--layers", "32", "--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--kv-dtype", "int8"]
    sizing.main([*flags, "--weights-gib", "15", "--device-gib", "24", "--json", "--out", str(tmp_path)])
    printed = last_json(capsys)
    assert printed["kv_bytes_per_token"] == 2 * 32 * 8 * (128 + 4)
    assert "int8_per_token_head" in printed["vllm"]
    assert printed["overtakes_weights_at_tokens"]["1"] == 15 * GIB // printed["kv_bytes_per_token"] + 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "no-such-model"],
        ["--context", "0"],
        ["--batch", "0,4"],
        ["--layers", "32"],
        ["--layers", "32", "--heads", "6", "--kv-heads", "4", "--head-dim", "8", "--kv-dtype", "fp8"],
        ["--layers", "32", "--heads", "8", "--kv-heads", "4", "--head-dim", "8"],  # auto, of what?
        [
            "--layers",
            "2",
            "--heads",
            "8",
            "--kv-heads",
            "4",
            "--head-dim",
            "8",
            "--kv-dtype",
            "fp8",
            "--device-gib",
            "9",
        ],
        ["--weights-gib", "-3"],
        ["--weights-gib", "1e9"],
        ["--context", "9" * 30],
        ["--batch", "9" * 30],
        ["--layers", "9" * 9, "--heads", "1", "--kv-heads", "1", "--head-dim", "1", "--kv-dtype", "fp8"],
        ["--layers", "1", "--heads", "1", "--kv-heads", "1", "--head-dim", "9" * 30, "--kv-dtype", "fp8"],
        ["--device", ""],
        ["--lengths", "no-such-file", "--device-gib", "80"],
        ["--shared-prefix", "16"],  # of which plan?
        ["--shared-prefix", "5000", "--device-gib", "80"],
        ["--device", "H1000"],
        ["--utilisation", "1.5", "--device-gib", "80"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(lambda argv: sizing.main(argv), [*arguments, "--out", str(tmp_path / "runs")])
    printed = capsys.readouterr()
    assert exit_.value.code == 2 and printed.out == ""
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


# what vllm takes: --kv-cache-dtype has no float32 in any version, and `auto` follows --dtype
@pytest.mark.parametrize(
    ("kv_dtype", "flag"),
    [
        ("auto", "--dtype float16"),
        ("fp8", "--kv-cache-dtype fp8"),
        ("int8", "--kv-cache-dtype int8_per_token_head"),
        ("float32", None),
        ("bfloat16", None),
    ],
)
def test_no_flag_is_printed_that_vllm_refuses(
    kv_dtype: str, flag: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizing.main(["--kv-dtype", kv_dtype, "--device-gib", "80", "--json", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    command = json.loads(printed.splitlines()[-1])["vllm"]
    if flag is None:
        assert command is None and f"it keeps no {kv_dtype} cache beside float16 weights" in printed
    else:
        assert flag in command


def test_a_plan_of_a_mix_on_a_named_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lengths.csv").write_text("600,40\n" * 9 + "4000,96\n")
    flags = ["--lengths", str(tmp_path / "lengths.csv"), "--shared-prefix", "512", "--device", "H100"]
    sizing.main([*flags, "--device-gib", "80", "--context", "1024,4096", "--json", "--out", str(tmp_path)])
    result = last_json(capsys)
    mix = result["mix"]
    assert (mix["requests"], mix["mean"], mix["longest"]) == (10, 985.6, 4096)
    assert f"--max-num-seqs {mix['plan']['requests']} " in result["vllm"]
    assert result["vllm"].endswith("--enable-prefix-caching")
    alone = result["latency"]["4096"]
    weights_ms = 6_607_343_616 * 2 / 3.35e9  # all but the table of tokens, at the stated bandwidth
    assert alone["token"][0] > weights_ms
    assert alone["first"] == pytest.approx(
        (2 * 6_607_343_616 * 4096 + 4 * 32 * 4096**2 / 2 * 4096) / 989e9, rel=1e-3
    )
    assert alone["loaded"] > alone["token"][1]  # all that fit at once read more than one alone


def test_where_nothing_fits_the_page_says_what_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizing.main(["--model", "llama-2-70b", "--device-gib", "80", "--context", "4096", "--out", str(tmp_path)])
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "No request of these contexts fits into one device of 80 GiB; 2 of them hold one of 4,096" in printed
    )


@pytest.mark.parametrize("content", ["", "[1]", "{", "\xff\xfe", "nul\x00l"])
def test_a_broken_config_is_named(content: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match=r"config\.json"):
        read_shape(str(file))


@pytest.mark.parametrize(
    "flags", [["--model", "gpt2-medium"], ["--layers", "3", "--heads", "4"]], ids=" ".join
)
def test_the_articles_figures_stand_beside_their_own_models_only(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--layers" in flags:
        flags = [*flags, "--kv-heads", "4", "--head-dim", "8", "--kv-dtype", "fp8"]
    sizing.main([*flags, "--json", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "The articles" not in printed and "Claim " not in printed
    assert json.loads(printed.splitlines()[-1])["claims"] == []
    (folder,) = tmp_path.iterdir()
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "The articles' figures" not in text and "**The cache outgrows the weights at batch 32: " in text


def test_sizing_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from experiments import sizing; "
        f"sizing.main(['--quiet', '--out', {str(tmp_path)!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
