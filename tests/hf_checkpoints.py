"""Tiny checkpoints that transformers itself writes, one per thing that differs between model types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SHAPE = {
    "vocab_size": 199,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2_SHAPE = {"vocab_size": 199, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 256}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
TWO_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
BIASED = {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}

# name -> (model type, what differs from the shape above)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2_SHAPE),
    "llama": ("llama", SHAPE),
    "llama biased": ("llama", SHAPE | BIASED),
    "llama wide heads": ("llama", SHAPE | {"head_dim": 16}),
    "llama one kv head": ("llama", SHAPE | {"num_key_value_heads": 1}),
    "llama linear": ("llama", SHAPE | {"rope_parameters": LINEAR}),
    "llama3": ("llama", SHAPE | {"rope_parameters": LLAMA3}),
    "llama yarn": ("llama", SHAPE | {"rope_parameters": YARN}),
    "mistral": ("mistral", SHAPE | {"sliding_window": None}),
    "mistral windows": ("mistral", SHAPE | {"sliding_window": 16}),
    "qwen2": ("qwen2", SHAPE | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", SHAPE | {"head_dim": 16}),
    "qwen3 windows": (
        "qwen3",
        SHAPE | {"head_dim": 16, "use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1},
    ),
    "phi3": ("phi3", SHAPE),
    "phi3 windows": ("phi3", SHAPE | {"sliding_window": 100}),
    "smollm3": ("smollm3", SHAPE | {"num_hidden_layers": 4}),
    "smollm3 windows": (
        "smollm3",
        SHAPE
        | {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 16}
        | {"attention_bias": True, "mlp_bias": True},
    ),
    "gemma3": (
        "gemma3_text",
        SHAPE
        | {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "tie_word_embeddings": True}
        | {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": TWO_ROPES},
    ),
}

# what our decoder does not run, and transformers does
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3 windows": (
        "gemma3_text",
        SHAPE | {"head_dim": 16, "sliding_window": 16, "num_hidden_layers": 6, "tie_word_embeddings": True},
    ),
    "gpt_oss": (
        "gpt_oss",
        SHAPE | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    ),
    "gemma2": (
        "gemma2",
        SHAPE
        | {"head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    ),
    "qwen3_moe": (
        "qwen3_moe",
        SHAPE
        | {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"decoder_sparse_step": 1},
    ),
    "llama dynamic": ("llama", SHAPE | {"rope_parameters": DYNAMIC}),
    "mixtral": ("mixtral", SHAPE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


@torch.no_grad()
def checkpoint(folder: Path, name: str, **changed: Any) -> Any:
    """Write the case into the folder; returns the model of transformers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, settings = (CASES | OTHERS)[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **settings | changed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator) * 0.1
        if parameter.dim() == 1:  # norms and biases away from 1 and 0, so that a forgotten one shows
            parameter.add_(noise)
        else:
            parameter.copy_(noise)
    model.save_pretrained(folder)
    return model
