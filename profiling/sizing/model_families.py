"""Which Hugging Face model types can be sized exactly, and how do they differ?

One entry per `model_type` whose every layer keeps plain keys and values. What an entry says was taken from
the model and configuration classes of `transformers`; the tests build each model there and compare
its parameters and its cache. A type that is not listed is refused (`profiling.sizing.model_shape`): many keep
something else (latent vectors, recurrent state), and a guess would be wrong by a factor, not by a percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Family:
    """How one model type reads its config. A str in place of a bool names the config key that decides."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # what a config.json may leave out
    # layers with a sliding window: none, all, all but every n-th, those from `max_window_layers` up
    windows: Literal["none", "all", "pattern", "upper"] = "none"
    full_every: int = 0
    tied: bool = False
    gated: bool = True  # the MLP has a gate matrix beside up and down
    positions: bool = False  # a learned table of positions
    qkv_bias: bool | str = False
    out_bias: bool | str = False
    mlp_bias: bool | str = False
    norms: int = 2  # per layer, of the hidden width; one more at the end
    norm_bias: bool = False
    qk_norm: Literal["none", "per head", "all heads"] = "none"
    experts: str = ""  # the config key with their number
    expert_width: str = "intermediate_size"
    router_bias: bool = False
    sinks: bool = False  # one learned sink per query head


# names that older configs use for the same thing
ALIASES = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "num_experts": "num_local_experts",
}

_LLAMA = Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
_GPT2 = Family(
    tied=True, gated=False, positions=True, qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True
)
_QWEN3 = Family(windows="upper", qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="per head")
_GEMMA = {"head_dim": 256}

FAMILIES: dict[str, Family] = {
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gpt_neox": Family(
        defaults={"attention_bias": True},
        gated=False,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias=True,
        norm_bias=True,
    ),
    "llama": _LLAMA,
    "granite": _LLAMA,
    "smollm3": Family(
        windows="upper",
        tied=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "mistral": Family(defaults={"num_key_value_heads": 8, "sliding_window": 4096}, windows="all"),
    "mixtral": Family(
        defaults={"num_key_value_heads": 8, "num_local_experts": 8},
        windows="all",
        experts="num_local_experts",
    ),
    "qwen2": Family(windows="upper", qkv_bias=True),
    "qwen3": _QWEN3,
    "qwen3_moe": Family(
        defaults={"use_sliding_window": False},
        windows="all",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="per head",
        experts="num_local_experts",
        expert_width="moe_intermediate_size",
    ),
    "phi3": Family(windows="all"),
    "starcoder2": Family(
        defaults={"num_key_value_heads": 2, "use_bias": True},
        windows="all",
        tied=True,
        gated=False,
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        norm_bias=True,
    ),
    "gemma": Family(
        defaults=_GEMMA | {"num_key_value_heads": 16},
        tied=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
    ),
    "gemma2": Family(
        defaults=_GEMMA | {"num_key_value_heads": 4, "sliding_window": 4096},
        windows="pattern",
        full_every=2,
        tied=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norms=4,
    ),
    "gemma3_text": Family(
        defaults=_GEMMA
        | {
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 262208,
            "sliding_window": 4096,
            "max_position_embeddings": 131072,
        },
        windows="pattern",
        full_every=6,
        tied=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norms=4,
        qk_norm="per head",
    ),
    "olmo2": Family(qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="all heads"),
    "olmo3": Family(
        defaults={"sliding_window": 4096},
        windows="pattern",
        full_every=4,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="all heads",
    ),
    "cohere2": Family(
        defaults={"head_dim": 128, "sliding_window": 4096},
        windows="pattern",
        full_every=4,
        tied=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norms=1,
    ),
    "gpt_oss": Family(
        defaults={"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128, "attention_bias": True},
        windows="pattern",
        full_every=2,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias=True,
        experts="num_local_experts",
        router_bias=True,
        sinks=True,
    ),
}

# a key that is set means a cache of another kind, whatever the model type says
REFUSED_KEYS: dict[str, str] = {
    "kv_lora_rank": "latent attention (MLA) keeps one compressed vector per token, not keys and values",
    "is_encoder_decoder": "an encoder-decoder keeps a second cache for cross-attention",
    "cross_attention_layers": "cross-attention layers cache the image, not the text",
    "num_kv_shared_layers": "some layers reuse the cache of others",
    "attention_chunk_size": "chunked attention drops its cache at chunk borders",
    "block_configs": "every layer has its own attention",
    "ssm_cfg": "state-space layers keep a recurrent state",
    "state_size": "state-space layers keep a recurrent state",
    "mamba_d_state": "state-space layers keep a recurrent state",
    "ssm_state_size": "state-space layers keep a recurrent state",
    "linear_key_head_dim": "linear-attention layers keep a recurrent state",
    "hybrid_override_pattern": "not every layer is attention",
    "full_attn_idxs": "not every layer is attention",
    "attn_layer_period": "not every layer is attention",
    "index_topk": "sparse attention keeps an index beside keys and values",
}

# configs that the articles and their readers name; anything else comes as a config.json
KNOWN_CONFIGS: dict[str, dict[str, Any]] = {
    "llama-2-7b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "max_position_embeddings": 4096,
        "vocab_size": 32000,
        "torch_dtype": "float16",
    },
    "llama-2-70b": {
        "model_type": "llama",
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_hidden_layers": 80,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "vocab_size": 32000,
        "torch_dtype": "float16",
    },
}
