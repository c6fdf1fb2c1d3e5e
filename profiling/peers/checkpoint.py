"""One model in the formats that other engines read, converted once per folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from variants.model import GPT

RENAMED = {"qkv": "attn.c_attn", "out": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"}
GGUF_NAMES = {
    "ln_1": "attn_norm",
    "qkv": "attn_qkv",
    "out": "attn_output",
    "ln_2": "ffn_norm",
    "up": "ffn_up",
    "down": "ffn_down",
}


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made under another name and moved where it does not exist yet."""
    if not path.exists():
        part = path.with_name("part-" + path.name)
        make(part)
        part.replace(path)
    return path


def hugging_face(model: GPT, folder: Path) -> None:
    """The layout of `GPT2LMHeadModel`, with a tokenizer whose words are t0, t1, ..."""
    config, tensors = model.config, {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            if not config.tied_head:
                tensors[name] = tensor
            continue
        parts = name.replace("blocks.", "h.").split(".")
        parts = [RENAMED.get(part, part) for part in parts]
        linear = any(part in RENAMED.values() for part in parts) and parts[-1] == "weight"
        tensors[".".join(["transformer", *parts])] = (tensor.t() if linear else tensor).contiguous()
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "architectures": ["GPT2LMHeadModel"],
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
    words = {f"t{i}": i for i in range(config.vocab_size)}
    model_of_words = {"type": "WordLevel", "vocab": words, "unk_token": "t0"}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model_of_words}
    special = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "t0",
        "eos_token": "t0",
        "bos_token": "t0",
    }
    for name, content in (
        ("config.json", settings),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", special),
    ):
        (folder / name).write_text(json.dumps(content))


def gguf(model: GPT, path: Path, kind: str) -> None:
    """llama.cpp's format; `kind` F32, BF16, Q8_0 or Q4_0 for the matrices, float32 for the rest."""
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    config = model.config
    writer = GGUFWriter(path, "gpt2")
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.n_inner)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")

    def add(name: str, tensor: Tensor) -> None:
        stored = GGMLQuantizationType[kind if tensor.dim() == 2 and "position" not in name else "F32"]
        writer.add_tensor(name, quants.quantize(tensor.numpy(), stored), raw_dtype=stored)

    add("token_embd.weight", model.wte.weight)
    add("position_embd.weight", model.wpe.weight)
    add("output.weight", model.lm_head.weight)
    for name, tensor in model.ln_f.state_dict().items():
        add(f"output_norm.{name}", tensor)
    for layer, block in enumerate(model.blocks):
        for name, tensor in block.state_dict().items():
            part, _, last = name.partition(".")
            add(f"blk.{layer}.{GGUF_NAMES[part]}.{last}", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class GrowingStep(nn.Module):
    """A step with the cache as input and output, which is what graph formats can express."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """tokens int64 [1,T], past: per layer k and v [1,H,n,D] -> logits [1,V], then k and v [1,H,n+T,D]."""
        present: list[Tensor] = []
        n = past[0].size(2)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = torch.cat([past[2 * layer], k], dim=2), torch.cat([past[2 * layer + 1], v], dim=2)
            present.extend((k, v))
            visible = torch.arange(k.size(2))[None, :] <= positions[:, None]
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible[None, None])

        positions = torch.arange(n, n + tokens.size(1))
        logits = self.model(tokens, positions, attend, lambda head, hidden: head(hidden[:, -1:]))
        return logits[:, 0], *present


def empty_past(model: GPT, n: int = 0) -> list[Tensor]:
    """Keys and values of n tokens, zeros [1,H,n,D] for each layer, k and v in turn."""
    config = model.config
    return [torch.zeros(1, config.n_head, n, config.head_dim) for _ in range(2 * config.n_layer)]


def past_names(model: GPT) -> list[str]:
    return [f"{part}{layer}" for layer in range(model.config.n_layer) for part in "kv"]


def onnx(model: GPT, path: Path) -> None:
    """`GrowingStep` as ONNX with inputs `tokens`, `past_*` and outputs `logits`, `present_*`."""
    names = past_names(model)
    grows: dict[str, Any] = {"tokens": {1: "T"}}
    grows |= {f"past_{name}": {2: "n"} for name in names} | {f"present_{name}": {2: "m"} for name in names}
    torch.onnx.export(
        GrowingStep(model),
        (torch.zeros(1, 2, dtype=torch.int64), *empty_past(model, 3)),
        str(path),
        input_names=["tokens", *(f"past_{name}" for name in names)],
        output_names=["logits", *(f"present_{name}" for name in names)],
        dynamic_axes=grows,
        opset_version=18,
        dynamo=False,
    )
