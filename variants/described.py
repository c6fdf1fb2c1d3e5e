"""From a config.json to the facts of our decoder, or a refusal that names what it would compute wrongly.

No torch here.
"""

from __future__ import annotations

from reprlib import repr as shortened
from typing import Any

from variants.config import GPTConfig, Rope
from variants.errors import UserError
from variants.families import FAMILIES
from variants.hf_config import FULL, LAYER_TYPES, HfConfig, positive_number, predicate, whole_number

ROPES = ("default", "linear", "llama3", "yarn")
PLAIN_THETA = 10000.0  # the base that a config.json may leave out


def gpt2_settings(config: GPTConfig) -> dict[str, Any]:
    """The config.json of one of our GPT-2 shapes."""
    return {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": config.n_inner,
        "n_positions": config.n_ctx,
        "vocab_size": config.vocab_size,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def gpt_config(config: HfConfig, positions: int | None = None) -> GPTConfig:
    """The decoder that a config describes, for its limit of positions or for the first `positions` of them.

    Raises UserError for what our decoder would compute wrongly or does not compute.
    """
    family, where = config.family, config.where
    _refuse_what_is_not_ours(config)
    limit = config.whole("max_position_embeddings", config.get("n_ctx"))
    full, local = (None, None) if family.positions else _ropes(config, limit)
    try:
        return GPTConfig(
            n_layer=config.n_layer,
            n_head=config.whole("num_attention_heads"),
            n_embd=config.whole("hidden_size"),
            n_kv_head=config.n_kv_head,
            n_ctx=min(positions or limit, limit),
            vocab_size=config.whole("vocab_size"),
            n_inner=config.whole("intermediate_size", 4 * config.whole("hidden_size")),
            tied_head=config.flag("tie_word_embeddings", family.tied),
            layer_norm_epsilon=config.number("rms_norm_eps", 1e-5 if family.norm_bias else 1e-6),
            head_width=None if config.get("head_dim") is None else config.head_dim,
            norm="layer" if family.norm_bias else "rms",
            activation=family.activation,
            gated=family.gated,
            qkv_bias=config.flag(family.qkv_bias),
            out_bias=config.flag(family.out_bias),
            mlp_bias=config.flag(family.mlp_bias),
            qk_norm=family.qk_norm == "per head",
            rope=full,
            local_rope=local,
            windows=config.windows if any(config.windows) else (),
            unturned=config.unturned if any(config.unturned) else (),
            out_norms=family.norms == 4,
            embed_scale=config.whole("hidden_size") ** 0.5 if family.scaled_embedding else 1.0,
        )
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _refuse_what_is_not_ours(config: HfConfig) -> None:
    family, where = config.family, config.where
    if family.names is None:
        runs = ", ".join(name for name, known in FAMILIES.items() if known.names)
        raise UserError(
            f"{where}: our decoder does not run model_type {config.model_type!r}, only {runs}; "
            "any causal model of transformers runs in its own code: --variant hf,hf-static,hf-tape"
        )
    for key, value in family.required.items():
        if config.get(key, value) != value:
            setting = f"{config.spelling(key)} = {shortened(config.get(key))}"
            raise UserError(f"{where}: {setting} is not supported, only {value!r}")
    scalar = config.get("query_pre_attn_scalar")
    if scalar is not None and scalar != config.head_dim:
        raise UserError(
            f"{where}: query_pre_attn_scalar = {shortened(scalar)} is not supported, only the width "
            f"of a head, {config.head_dim}: --variant hf,hf-static,hf-tape"
        )


def _ropes(config: HfConfig, limit: int) -> tuple[Rope, Rope | None]:
    """Rotary positions of a model, and those of its layers with a window where they have others."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    by_layer = given if isinstance(given, dict) and given.keys() <= set(LAYER_TYPES) else {FULL: given}
    full, local = (by_layer.get(name) or {} for name in LAYER_TYPES)
    theta, local_theta = config.get("rope_theta", PLAIN_THETA), config.get("rope_local_base_freq")
    if not local and local_theta is None:
        return _rope(config, full, theta, limit), None
    return _rope(config, full, theta, limit), _rope(config, local, local_theta or PLAIN_THETA, limit)


def _rope(config: HfConfig, parameters: Any, base: Any, limit: int) -> Rope:
    if not isinstance(parameters, dict):
        raise UserError(f"{config.where}: rope parameters {predicate(parameters)}; an object is needed")
    where, kind = config.where, str(parameters.get("rope_type", parameters.get("type", "default")))
    if kind not in ROPES:
        raise UserError(f"{where}: rope_type {shortened(kind)} is not supported, only {', '.join(ROPES)}")
    for key, plain in (("partial_rotary_factor", 1.0), ("mscale", None), ("truncate", True)):
        if (value := parameters.get(key, config.get(key, plain))) not in (plain, None):
            raise UserError(f"{where}: {key} = {shortened(value)} is not supported")

    def number(key: str, default: float | None = None) -> float:
        value = parameters.get(key)
        return positive_number(default if value is None else value, key, where)

    theta = number("rope_theta", base)
    if theta <= 1:
        raise UserError(f"{where}: rope_theta is {theta}; a base above 1 is needed")
    if kind == "default":
        return Rope(theta)
    factor = number("factor")
    if factor < 1:
        raise UserError(f"{where}: factor is {factor}; at least 1 is needed, positions are stretched")
    if kind == "linear":
        return Rope(theta, "linear", factor)
    longest = parameters.get("original_max_position_embeddings")
    trained = whole_number(limit if longest is None else longest, "original_max_position_embeddings", where)
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise UserError(f"{where}: low_freq_factor {low} is not below high_freq_factor {high}")
        return Rope(theta, "llama3", factor, trained, low_freq_factor=low, high_freq_factor=high)
    fixed = parameters.get("attention_factor")
    return Rope(
        theta,
        "yarn",
        factor,
        trained,
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
        attention_factor=None if fixed is None else number("attention_factor"),
    )
