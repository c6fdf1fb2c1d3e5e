"""Which Hugging Face model types are known exactly, and how do they differ?

One entry per `model_type` whose every layer keeps plain keys and values; those with `names`, which say how
checkpoints name their modules, are also run by our decoder. What an entry says was taken from the model and
configuration classes of `transformers`; the tests build each model there and compare its parameters, its
cache and, where our decoder runs it, its logits. A type that is not listed is refused: many keep something
else (latent vectors, recurrent state), and a guess would be wrong by a factor, not by a percent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from variants.stored_names import GEMMA3_NAMES, GPT2_NAMES, LLAMA_NAMES, Names


@dataclass(frozen=True)
class Family:
    """How one model type reads its config. A str in place of a bool names the config key that decides."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # what a config.json may leave out
    # layers with a sliding window: none, all, all but every n-th, those from `max_window_layers` up, those
    # without rotary positions
    windows: Literal["none", "all", "pattern", "upper", "unturned"] = "none"
    full_every: int = 0
    unturned_every: int = 0  # layers without rotary positions; 0: none
    tied: bool = False
    gated: bool = True  # the MLP has a gate matrix beside up and down
    activation: Literal["gelu", "silu"] = "silu"
    scaled_embedding: bool = False  # a token's row times the root of its width
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
    names: Names | None = None  # None: our decoder does not run this type
    required: Mapping[str, Any] = field(default_factory=dict)  # settings that our decoder computes, no others


# names that older configs use for the same thing
ALIASES = {
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "n_kv_head": "num_key_value_heads",
    "layer_norm_epsilon": "rms_norm_eps",
    "activation_function": "hidden_act",
    "hidden_activation": "hidden_act",
    "num_experts": "num_local_experts",
}

_SILU = {"hidden_act": "silu"}
_GPT2 = Family(
    tied=True,
    gated=False,
    activation="gelu",
    positions=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    norm_bias=True,
)
_GEMMA = {"head_dim": 256}

FAMILIES: dict[str, Family] = {
    "gpt2": replace(
        _GPT2,
        names=GPT2_NAMES,
        required={
            "hidden_act": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": False,
            "add_cross_attention": False,
        },
    ),
    "gpt_bigcode": _GPT2,
    "gpt_neox": Family(
        defaults={"attention_bias": True},
        gated=False,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias=True,
        norm_bias=True,
    ),
    "llama": Family(
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        names=LLAMA_NAMES,
        required=_SILU,
    ),
    "granite": Family(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias"),
    "smollm3": Family(
        defaults={"use_sliding_window": False, "rope_theta": 2e6},
        windows="unturned",
        unturned_every=4,
        tied=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        mlp_bias="mlp_bias",
        names=LLAMA_NAMES,
        required=_SILU,
    ),
    "mistral": Family(
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
        windows="all",
        names=LLAMA_NAMES,
        required=_SILU,
    ),
    "mixtral": Family(
        defaults={"num_key_value_heads": 8, "num_local_experts": 8},
        windows="all",
        experts="num_local_experts",
    ),
    "qwen2": Family(windows="upper", qkv_bias=True, names=LLAMA_NAMES, required=_SILU),
    "qwen3": Family(
        windows="upper",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="per head",
        names=LLAMA_NAMES,
        required=_SILU,
    ),
    "qwen3_moe": Family(
        defaults={"use_sliding_window": False},
        windows="all",
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        qk_norm="per head",
        experts="num_local_experts",
        expert_width="moe_intermediate_size",
    ),
    "phi3": Family(windows="all", names=LLAMA_NAMES, required=_SILU),
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
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "query_pre_attn_scalar": 256,
        },
        windows="pattern",
        full_every=6,
        tied=True,
        activation="gelu",
        scaled_embedding=True,
        qkv_bias="attention_bias",
        out_bias="attention_bias",
        norms=4,
        qk_norm="per head",
        names=GEMMA3_NAMES,
        required={
            "hidden_act": "gelu_pytorch_tanh",
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "use_bidirectional_attention": False,
        },
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
