"""The model equals Hugging Face's GPT-2 on the same weights, and weights load in every published layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from profiling.gate.oracle import random_stream
from profiling.sizing.read_shape import shape_from_config
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.described import gpt_config
from variants.errors import UserError
from variants.families import FAMILIES
from variants.hf_config import HfConfig
from variants.ladder import ladder
from variants.model import empty_model, random_model
from variants.rope import rope_tables
from variants.weights import load_model

Damage = Callable[[Path], None]

# (layers, heads, width, context, vocabulary): heads != layers, 3 heads, vocabularies no multiple of 64
SHAPES = {
    "odd": (2, 3, 48, 40, 101),
    "wide": (3, 4, 64, 33, 131),
    "one-head": (1, 1, 16, 24, 50),
}


def checkpoint(folder: Path, shape: str, tied: bool = True, **save: object) -> GPT2LMHeadModel:
    """A seeded Hugging Face GPT-2 with biases and norms that are not 0 and 1, saved to `folder`."""
    layers, heads, width, context, vocabulary = SHAPES[shape]
    torch.manual_seed(3)
    config = GPT2Config(
        n_layer=layers,
        n_head=heads,
        n_embd=width,
        n_positions=context,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    theirs = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(folder, **save)
    return theirs


def our_logits(model, tokens):
    return Decoder.of(
        ladder(str(model.dtype).removeprefix("torch."))["naive"], model, batch=tokens.size(0)
    ).extend(tokens)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_float64_logits_equal_hugging_face(tmp_path: Path, shape: str, tied: bool) -> None:
    theirs = checkpoint(tmp_path, shape, tied).double()
    model = load_model(tmp_path, torch.float64)
    tokens = random_stream(model.config.vocab_size, 3, 20, seed=5)
    with torch.no_grad():
        expected = theirs(tokens).logits
    assert (our_logits(model, tokens) - expected).abs().max() < 1e-10


@pytest.mark.parametrize("shape", list(SHAPES))
def test_float32_error_is_within_twice_hugging_faces_own(tmp_path: Path, shape: str) -> None:
    theirs = checkpoint(tmp_path, shape)
    model = load_model(tmp_path)
    tokens = random_stream(model.config.vocab_size, 2, 24, seed=6)
    with torch.no_grad():
        their_logits = theirs(tokens).logits.double()
        truth = theirs.double()(tokens).logits
    ours = our_logits(model, tokens).double()
    assert (ours - truth).abs().max() <= 2 * (their_logits - truth).abs().max()


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_grouped_heads_equal_full_heads_with_repeated_weights(kv_heads: int) -> None:
    from dataclasses import replace

    config = replace(PRESETS["tiny"], n_head=4, n_kv_head=kv_heads)
    grouped = random_model(config, dtype=torch.float64)
    full = random_model(replace(config, n_kv_head=4), dtype=torch.float64)
    full.load_state_dict(
        {**full.state_dict(), **{k: v for k, v in grouped.state_dict().items() if "qkv" not in k}}
    )
    D, C = config.head_dim, config.n_embd
    for ours, theirs in zip(grouped.blocks, full.blocks, strict=True):
        for name in ("weight", "bias"):
            q, k, v = getattr(ours.qkv, name).split([C, kv_heads * D, kv_heads * D])
            wide = [
                x.unflatten(0, (kv_heads, D)).repeat_interleave(4 // kv_heads, 0).flatten(0, 1)
                for x in (k, v)
            ]
            getattr(theirs.qkv, name).copy_(torch.cat([q, *wide]))
    tokens = random_stream(config.vocab_size, 2, 17, seed=2)
    assert (our_logits(grouped, tokens) - our_logits(full, tokens)).abs().max() < 1e-12


def test_appending_a_token_leaves_earlier_logits_unchanged(model) -> None:
    tokens = random_stream(model.config.vocab_size, 2, 12, seed=4)
    whole = our_logits(model.double() if model.dtype == torch.float64 else model, tokens)
    assert (our_logits(model, tokens[:, :-1]) - whole[:, :-1]).abs().max() < 1e-5


def test_sharded_checkpoint_and_prefix_and_mask_buffers_load_alike(tmp_path: Path) -> None:
    checkpoint(tmp_path / "whole", "odd")
    checkpoint(tmp_path / "shards", "odd", max_shard_size="20KB")
    assert (tmp_path / "shards" / "model.safetensors.index.json").exists()
    stored = load_file(tmp_path / "whole" / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in stored.items()}
    bare["h.0.attn.bias"], bare["h.0.attn.masked_bias"] = torch.ones(1, 1, 40, 40), torch.tensor(-1e4)
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_bytes((tmp_path / "whole" / "config.json").read_bytes())
    save_file({k: v.contiguous() for k, v in bare.items()}, tmp_path / "bare" / "model.safetensors")
    expected = load_model(tmp_path / "whole").state_dict()
    for folder in ("shards", "bare"):
        for name, tensor in load_model(tmp_path / folder).state_dict().items():
            assert torch.equal(tensor, expected[name]), (folder, name)


def damage_unknown(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    save_file({**stored, "transformer.h.0.attn.rotary": torch.ones(2)}, folder / "model.safetensors")


def damage_missing(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    del stored["transformer.ln_f.bias"]
    save_file(stored, folder / "model.safetensors")


def damage_shape(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 99}))


def damage_cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def damage_pickle(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def damage_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def damage_activation(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "activation_function": "relu"}))


def damage_zeros(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    save_file(
        {name: torch.zeros_like(tensor) for name, tensor in stored.items()}, folder / "model.safetensors"
    )


def damage_integers(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    save_file({name: tensor.to(torch.int64) for name, tensor in stored.items()}, folder / "model.safetensors")


def damage_twice(folder: Path) -> None:
    stored = load_file(folder / "model.safetensors")
    save_file({**stored, "ln_f.bias": torch.ones(48)}, folder / "model.safetensors")


def header(value: object) -> Damage:
    """A safetensors file whose header is this."""

    def damage(folder: Path) -> None:
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)

    return damage


def damage_long_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((2**63).to_bytes(8, "little") + b"{}")


def damage_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def index(value: object) -> Damage:
    """An index with this content in place of the weights."""

    def damage(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        (folder / "model.safetensors.index.json").write_bytes(text)

    return damage


def config_is(value: object) -> Damage:
    """A config.json with this content."""

    def damage(folder: Path) -> None:
        (folder / "config.json").write_bytes(
            value if isinstance(value, bytes) else json.dumps(value).encode()
        )

    return damage


def setting(**changes: object) -> Damage:
    """A config.json with these settings."""

    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return damage


def damage_config_folder(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()


TENSOR = {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 0]}


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_zeros, "holds zeros only"),
        (damage_integers, "holds torch.int64; floating-point"),
        (damage_twice, "ln_f.bias is there twice"),
        (header([1]), "model.safetensors cannot be read"),
        (header(b"["), "model.safetensors cannot be read"),
        (header(b"\xff\xfe"), "model.safetensors cannot be read"),
        (header(b"[" * 10_000), "model.safetensors cannot be read"),
        (header({"transformer.wte.weight": TENSOR}), "model.safetensors cannot be read"),
        (header({"transformer.wte.weight": {**TENSOR, "dtype": "F4"}}), "model.safetensors cannot be read"),
        (header({}), "tensors are missing"),
        (damage_long_header, "model.safetensors cannot be read"),
        (damage_folder, "model.safetensors cannot be read"),
        (index([]), "a JSON object is expected"),
        (index({}), "weight_map"),
        (index({"weight_map": {"a": 3}}), "weight_map"),
        (index({"weight_map": {"a": ".."}}), "outside"),
        (index({"weight_map": {"a": "../x.safetensors"}}), "outside"),
        (index({"weight_map": {"a": "none.safetensors"}}), "none.safetensors cannot be read"),
        (index({"weight_map": {"a": ""}}), "cannot be read"),
        (index(b"{" * 10_000), "not valid JSON"),
        (config_is([]), "a JSON object is expected"),
        (config_is("gpt2"), "a JSON object is expected"),
        (config_is(None), "a JSON object is expected"),
        (config_is(b"[" * 10_000), "not valid JSON"),
        (config_is(b'{"a":' * 10_000), "not valid JSON"),
        (config_is(b'{"n_head": ' + b"9" * 5000 + b"}"), "not valid JSON"),
        (damage_config_folder, "config.json is not a config.json"),
        (setting(n_head=0), "num_attention_heads is 0"),
        (setting(n_head=-3), "num_attention_heads is -3"),
        (setting(n_head=3.0), "num_attention_heads is 3.0"),
        (setting(n_head=[3]), "num_attention_heads is [3]"),
        (setting(n_layer=10**9), "num_hidden_layers is 1000000000; at most 1,000"),
        (setting(vocab_size=True), "vocab_size is True"),
        (setting(vocab_size=2**40), "vocab_size is 1099511627776; at most"),
        (setting(layer_norm_epsilon=float("nan")), "rms_norm_eps is nan"),
        (setting(layer_norm_epsilon=None), "rms_norm_eps is missing"),
        (setting(layer_norm_epsilon="1e-5"), "rms_norm_eps is '1e-5'"),
        (setting(layer_norm_epsilon=10**400), "a positive number is needed"),
        (setting(tie_word_embeddings="no"), "tie_word_embeddings is 'no'"),
        (setting(layer_types=7), "layer_types is 7"),
        (setting(layer_types=[[]]), "layer_types is [[]]"),
        (setting(head_dim=0), "head_dim is 0"),
        (setting(model_type="x" * 10**6), "model_type 'xxxxxxxxxxxx...xxxxxxxxxxxxx' is not known"),
        (damage_unknown, "unknown tensor transformer.h.0.attn.rotary"),
        (damage_missing, "ln_f.bias"),
        (damage_shape, "wte.weight has shape (101, 48)"),
        (damage_cut, "cannot be read"),
        (damage_pickle, "convert it"),
        (damage_config, "not valid JSON"),
        (damage_activation, "activation_function"),
    ],
)
def test_a_bad_checkpoint_is_refused_by_name(tmp_path: Path, damage, said: str) -> None:
    checkpoint(tmp_path, "odd")
    damage(tmp_path)
    with pytest.raises(UserError) as refused:
        load_model(tmp_path)
    assert said in str(refused.value) and "\n" not in str(refused.value)
    assert len(str(refused.value)) < 800


BASE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "vocab_size": 99,
    "tie_word_embeddings": True,
    "sliding_window": None,
}
ROPES = st.sampled_from(
    [
        {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1e12, "beta_slow": 1e-300},
        {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 0.5},
        {"rope_type": "yarn", "factor": 1e12, "rope_theta": 1},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0 + 1e-15},
        {"rope_type": "linear", "factor": 1e-300},
        {"rope_type": "linear", "factor": 1e12, "rope_theta": 1e12},
        {"rope_type": []},
        {"rope_type": "default", "rope_theta": 1e-300},
    ]
)
ODD = st.sampled_from([None, True, 0, -1, 3.0, 1e300, float("nan"), 2**70, "", "x", [], [[]], {}, {"a": 1}])


@pytest.mark.parametrize(
    "model_type", ["gpt2", "llama", "qwen3", "mixtral", "gpt_bigcode", "gemma3_text", "smollm3"]
)
@given(data=st.data())
@settings(max_examples=60)
def test_a_config_with_two_things_wrong_is_read_or_refused(model_type: str, data: st.DataObject) -> None:
    """What is read is a shape of numbers, and where our decoder runs it, one that can be built."""
    keys = {**FAMILIES[model_type].defaults, **BASE}
    names = st.sampled_from(
        [*keys, "rope_scaling", "layer_types", "head_dim", "rope_theta", "mlp_only_layers"]
    )
    raw = {**BASE, "model_type": model_type, **data.draw(st.dictionaries(names, ODD | ROPES, max_size=2))}
    try:
        shape = shape_from_config(raw, "config.json")
        config = gpt_config(HfConfig.of(raw, "config.json"), 64)
    except UserError as error:
        assert len(str(error).splitlines()) == 1 and len(str(error)) < 800
        return
    assert shape.n_layer == config.n_layer == len(shape.windows)
    assert config.rope is None or rope_tables(config).isfinite().all()
    assert empty_model(config).config == config


def test_a_transposed_square_projection_changes_the_logits(tmp_path: Path) -> None:
    """CASES 37: attn.c_proj is square, so only the logits can tell that Conv1D stores it transposed."""
    theirs = checkpoint(tmp_path, "odd").double()
    model = load_model(tmp_path, torch.float64)
    model.blocks[0].out.weight.copy_(model.blocks[0].out.weight.t().clone())
    tokens = random_stream(101, 1, 10, seed=5)
    with torch.no_grad():
        assert (our_logits(model, tokens) - theirs(tokens).logits).abs().max() > 1e-3
