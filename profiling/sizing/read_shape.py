"""Which shape does this config.json describe? Read exactly, or refused; never guessed.

No torch here. `read_shape("gpt2" | "llama-2-7b" | folder | config.json)`; what the config does not say,
or says in a way that is not known here, is a UserError. Known model types: `variants.families`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from profiling.results.record import ModelShape, replaced
from profiling.sizing.model_shape import shape_of_gpt
from variants import hub
from variants.config import DTYPE_BYTES, PRESETS
from variants.errors import UserError
from variants.families import Family
from variants.hf_config import HfConfig, read_json
from variants.known_configs import KNOWN_CONFIGS

MAX_BYTES = 1 << 50
# types that keep one latent vector per token and layer in serving engines (vLLM, SGLang); transformers' own
# code keeps the keys and values that it expands to
LATENT_TYPES = ("deepseek_v2", "deepseek_v3")


def read_shape(model: str) -> ModelShape:
    """A preset's name, a known config's name, a folder with a config.json, such a file, or hub:ORG/NAME.

    In a folder the weights' bytes come from the safetensors files, otherwise from the formula.
    """
    if model in PRESETS:
        return shape_of_gpt(model, PRESETS[model])
    if model in KNOWN_CONFIGS:
        return shape_from_config(KNOWN_CONFIGS[model], model)
    path = hub.folder_of(hub.fetched(model, weights=False))
    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        names = ", ".join([*PRESETS, *hub.TRAINED, *KNOWN_CONFIGS])
        raise UserError(f"no model {model!r}: give a config.json, a folder with one, or one of {names}")
    config = read_json(file)
    stored = _stored_weights_bytes(file.parent) if path.is_dir() else None
    name = hub.repository(model) if model.startswith(hub.PREFIX) else str(file.parent)
    return replaced(shape_from_config(config, str(file), stored), name=name)


def _stored_weights_bytes(folder: Path) -> int | None:
    """Tensor bytes by the folder's safetensors index or file header; None where there is neither."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.exists():
        metadata = read_json(index, "a safetensors index").get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        return _bytes(total, f"{index}: metadata.total_size")
    if single.is_file():
        try:
            with single.open("rb") as file:
                header = int.from_bytes(file.read(8), "little")
        except OSError as error:
            raise UserError(f"{single} cannot be read ({error.strerror})") from None
        return _bytes(single.stat().st_size - 8 - header, f"{single}: the bytes after its header")
    return None


def _bytes(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_BYTES:
        raise UserError(f"{where}: expected a number of bytes, got {shortened(value)}")
    return int(value)


def shape_from_config(raw: Mapping[str, Any], where: str, stored_bytes: int | None = None) -> ModelShape:
    """A Hugging Face config (parsed) -> its shape. `stored_bytes`: the weights' bytes, where known."""
    if raw.get("model_type") in LATENT_TYPES and raw.get("kv_lora_rank"):
        return _latent_shape(raw, where, stored_bytes)
    config = HfConfig.of(raw, where)
    whole = not isinstance(raw.get("text_config"), dict)
    # around a text model stands something else (a vision tower), whose parameters are not known here
    parameters = _parameters(config) if whole else None
    dtype = _dtype(config, raw)
    weights = stored_bytes
    plain = dtype in DTYPE_BYTES and not raw.get("quantization_config")
    if weights is None and parameters is not None and plain:
        weights = parameters * DTYPE_BYTES[dtype]
    limit = None if config.get("max_position_embeddings") is None else config.whole("max_position_embeddings")
    return ModelShape(
        where,
        config.whole("num_attention_heads"),
        config.n_kv_head,
        config.head_dim,
        config.windows,
        limit,
        parameters,
        weights,
        dtype or None,
        config.model_type,
        None if parameters is None else _step_parameters(config, parameters),
    )


def _dtype(config: HfConfig, raw: Mapping[str, Any]) -> str:
    """Of the weights, as the file names it; empty where it does not."""
    named = (raw.get("dtype"), raw.get("torch_dtype"), config.get("dtype"), config.get("torch_dtype"))
    return str(next(filter(None, named), ""))


def _latent_shape(raw: Mapping[str, Any], where: str, stored_bytes: int | None) -> ModelShape:
    """DeepSeek's attention: per token and layer the compressed vector and the rotated part of the keys.

    The weights' size comes from the files, or is not known: its experts and shared experts are not counted.
    """
    config = HfConfig(raw, raw, where, str(raw["model_type"]), Family())
    rank, rotated = config.whole("kv_lora_rank"), config.whole("qk_rope_head_dim")
    heads, layers = config.whole("num_attention_heads"), config.n_layer
    limit = None if config.get("max_position_embeddings") is None else config.whole("max_position_embeddings")
    return ModelShape(
        where,
        heads,
        heads,
        config.whole("qk_nope_head_dim") + rotated,
        (None,) * layers,
        limit,
        None,
        stored_bytes,
        _dtype(config, raw) or None,
        config.model_type,
        latent=rank + rotated,
    )


def _step_parameters(config: HfConfig, parameters: int) -> int | None:
    """Of all parameters those that a step of one row reads: one row of a table that is not the head too."""
    family = config.family
    if family.experts:
        return None  # those of the experts that the token takes
    unread = 0 if config.flag("tie_word_embeddings", family.tied) else config.whole("vocab_size") - 1
    unread += config.whole("max_position_embeddings") - 1 if family.positions else 0
    return parameters - config.whole("hidden_size") * unread


def _parameters(config: HfConfig) -> int:
    """Every parameter, a tied lm_head counted once."""
    family, head_dim, n_head = config.family, config.head_dim, config.whole("num_attention_heads")
    C, vocab, layers = config.whole("hidden_size"), config.whole("vocab_size"), config.n_layer
    q, kv = n_head * head_dim, config.n_kv_head * head_dim
    attention = C * (q + 2 * kv) + q * C
    attention += (q + 2 * kv) * config.flag(family.qkv_bias) + C * config.flag(family.out_bias)
    attention += {"none": 0, "per head": 2 * head_dim, "all heads": q + kv}[family.qk_norm]
    attention += n_head * family.sinks
    norms = family.norms * C * (1 + family.norm_bias)

    def mlp(width: int) -> int:
        inward = 2 if family.gated else 1
        return (inward + 1) * C * width + (inward * width + C) * config.flag(family.mlp_bias)

    dense = config.whole("intermediate_size", 4 * C)
    if family.experts:
        experts = config.whole(family.experts)
        sparse = experts * mlp(config.whole(family.expert_width)) + experts * (C + family.router_bias)
        every, without = config.whole("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
        if not isinstance(without, list) or not all(isinstance(layer, int) for layer in without):
            raise UserError(
                f"{config.where}: mlp_only_layers is {shortened(without)}; a list of layers is due"
            )
        is_sparse = [(layer + 1) % every == 0 and layer not in without for layer in range(layers)]
        mlps = sum(sparse if yes else mlp(dense) for yes in is_sparse)
    else:
        mlps = layers * mlp(dense)
    tables = vocab * (1 if config.flag("tie_word_embeddings", family.tied) else 2)
    tables += config.whole("max_position_embeddings") if family.positions else 0
    return layers * (attention + norms) + mlps + C * (1 + family.norm_bias) + C * tables
