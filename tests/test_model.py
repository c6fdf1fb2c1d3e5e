"""The model equals Hugging Face's GPT-2 on the same weights, and weights load in every published layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from profiling.gate.oracle import random_stream
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import random_model
from variants.weights import load_model

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


@pytest.mark.parametrize(
    ("damage", "said"),
    [
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


def test_a_transposed_square_projection_changes_the_logits(tmp_path: Path) -> None:
    """CASES 37: attn.c_proj is square, so only the logits can tell that Conv1D stores it transposed."""
    theirs = checkpoint(tmp_path, "odd").double()
    model = load_model(tmp_path, torch.float64)
    model.blocks[0].out.weight.copy_(model.blocks[0].out.weight.t().clone())
    tokens = random_stream(101, 1, 10, seed=5)
    with torch.no_grad():
        assert (our_logits(model, tokens) - theirs(tokens).logits).abs().max() > 1e-3
