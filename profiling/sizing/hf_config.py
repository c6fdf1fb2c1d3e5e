"""Which shape does this config.json describe? Read exactly, or refused; never guessed.

No torch here. `read_shape("gpt2" | "llama-2-7b" | folder | config.json)`; what the config does not say,
or says in a way that is not known here, is a UserError. Known model types: `profiling.sizing.model_families`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiling.sizing.model_families import ALIASES, FAMILIES, KNOWN_CONFIGS, REFUSED_KEYS, Family
from profiling.sizing.model_shape import DTYPE_BYTES, ModelShape, shape_of_gpt
from variants.config import PRESETS
from variants.errors import UserError


def read_shape(model: str) -> ModelShape:
    """A preset's name, a known config's name, a folder with a config.json, or such a file.

    In a folder the weights' bytes come from the safetensors files, otherwise from the formula.
    """
    if model in PRESETS:
        return shape_of_gpt(model, PRESETS[model])
    if model in KNOWN_CONFIGS:
        return shape_from_config(KNOWN_CONFIGS[model], model)
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        names = ", ".join([*PRESETS, *KNOWN_CONFIGS])
        raise UserError(
            f"no model {model!r}: give a config.json, a folder with one, or one of {names}"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not a readable config.json ({error})") from None
    if not isinstance(config, dict):
        raise UserError(f"{file}: not a config.json (a JSON object is expected)")
    stored = _stored_weights_bytes(file.parent) if path.is_dir() else None
    return replace(shape_from_config(config, str(file), stored), name=str(file.parent))


def _stored_weights_bytes(folder: Path) -> int | None:
    """Tensor bytes by the folder's safetensors index or file header; None where there is neither."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        if index.exists():
            return int(json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"])
        if single.exists():
            with single.open("rb") as file:
                header = int.from_bytes(file.read(8), "little")
            return single.stat().st_size - 8 - header
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{folder}: cannot read the size of the weights ({error!r})") from None
    return None


class _Config:
    """A config.json with its aliases and its family's defaults resolved; every miss is a UserError."""

    def __init__(self, raw: Mapping[str, Any], where: str, family: Family) -> None:
        self.values = dict(family.defaults)
        # an explicit null stays: it undoes a family's default (Mistral without its window)
        self.values |= {ALIASES.get(key, key): value for key, value in raw.items()}
        self.where = where

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def whole(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            said = "is missing" if value is None else f"is {value!r}"
            raise UserError(f"{self.where}: {key} {said}; a whole number of at least 1 is needed")
        return value

    def flag(self, decides: bool | str) -> bool:
        return bool(self.get(decides, False)) if isinstance(decides, str) else decides


def shape_from_config(raw: Mapping[str, Any], where: str, stored_bytes: int | None = None) -> ModelShape:
    """A Hugging Face config (parsed) -> its shape. `stored_bytes`: the weights' bytes, where known."""
    text = raw.get("text_config")
    inner: Mapping[str, Any] = text if isinstance(text, dict) else raw
    for key, reason in REFUSED_KEYS.items():
        if inner.get(key) or raw.get(key):
            raise UserError(f"{where}: cannot size this model: {reason} ({key} is set)")
    model_type = inner.get("model_type")
    family = FAMILIES.get(str(model_type))
    if family is None:
        raise UserError(
            f"{where}: model_type {model_type!r} is not known here and its cache is not guessed; "
            f"known: {', '.join(FAMILIES)}; or give the shape by --layers, --heads, --kv-heads, --head-dim"
        )
    config = _Config(inner, where, family)
    n_head, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    if config.get("head_dim") is None and hidden % n_head:
        raise UserError(
            f"{where}: hidden_size {hidden} is not a multiple of {n_head} heads; head_dim is needed"
        )
    head_dim = config.whole("head_dim", hidden // n_head)
    n_kv_head = _kv_heads(config, str(model_type), n_head)
    windows = _windows(config, family, config.whole("num_hidden_layers"))
    # around a text model stands something else (a vision tower), whose parameters are not known here
    parameters = None if inner is not raw else _parameters(config, family, n_head, n_kv_head, head_dim)
    dtype = str(
        raw.get("dtype") or raw.get("torch_dtype") or inner.get("dtype") or inner.get("torch_dtype") or ""
    )
    weights = stored_bytes
    if (
        weights is None
        and parameters is not None
        and dtype in DTYPE_BYTES
        and not raw.get("quantization_config")
    ):
        weights = parameters * DTYPE_BYTES[dtype]
    limit = config.whole("max_position_embeddings") if config.get("max_position_embeddings") else None
    return ModelShape(where, n_head, n_kv_head, head_dim, windows, limit, parameters, weights, dtype or None)


def _kv_heads(config: _Config, model_type: str, n_head: int) -> int:
    if model_type == "gpt_bigcode":
        return 1 if config.get("multi_query", True) else n_head
    n_kv_head = config.whole("num_key_value_heads", n_head)
    if n_head % n_kv_head:
        raise UserError(f"{config.where}: {n_head} query heads cannot share {n_kv_head} KV heads evenly")
    return n_kv_head


def _windows(config: _Config, family: Family, n_layer: int) -> tuple[int | None, ...]:
    """Per layer the sliding window, or None. `layer_types` in the config wins over the family's rule."""
    if config.get("sliding_window") is None or not config.get(
        "use_sliding_window", family.windows != "upper"
    ):
        sliding = [False] * n_layer
    elif family.windows == "none":
        raise UserError(
            f"{config.where}: sliding_window is set, but this model type has none; "
            f"which layers it is for is not guessed"
        )
    else:
        sliding = [_slides(config, family, layer) for layer in range(n_layer)]
    named = config.get("layer_types")
    if named is not None:
        unknown = set(named) - {"full_attention", "sliding_attention"}
        if unknown or len(named) != n_layer:
            what = f"has {sorted(unknown)}" if unknown else f"has {len(named)} entries for {n_layer} layers"
            raise UserError(f"{config.where}: layer_types {what}: cannot size this cache")
        sliding = [name == "sliding_attention" for name in named]
    return tuple(config.whole("sliding_window") if slides else None for slides in sliding)


def _slides(config: _Config, family: Family, layer: int) -> bool:
    """The family's rule: does this layer (from 0) have the window?"""
    if family.windows == "upper":
        return layer >= int(config.get("max_window_layers", 28))
    every = config.get("sliding_window_pattern", family.full_every)
    if family.windows == "pattern" and not (isinstance(every, int) and every > 0):
        raise UserError(f"{config.where}: sliding_window_pattern {every!r} is not known here")
    return family.windows == "all" or (layer + 1) % every != 0


def _parameters(config: _Config, family: Family, n_head: int, n_kv_head: int, head_dim: int) -> int:
    """Every parameter, a tied lm_head counted once."""
    C, vocab, layers = (
        config.whole("hidden_size"),
        config.whole("vocab_size"),
        config.whole("num_hidden_layers"),
    )
    q, kv = n_head * head_dim, n_kv_head * head_dim
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
        every, without = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
        is_sparse = [(layer + 1) % every == 0 and layer not in without for layer in range(layers)]
        mlps = sum(sparse if yes else mlp(dense) for yes in is_sparse)
    else:
        mlps = layers * mlp(dense)
    tables = vocab * (1 if config.get("tie_word_embeddings", family.tied) else 2)
    tables += config.whole("max_position_embeddings") if family.positions else 0
    return layers * (attention + norms) + mlps + C * (1 + family.norm_bias) + C * tables
