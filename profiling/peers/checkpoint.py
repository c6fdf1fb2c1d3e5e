"""One model in the formats that other engines read, converted once per folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from variants import build_cache
from variants.config import GPTConfig
from variants.hf_config import gpt2_settings
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


def conversions_folder(config: GPTConfig, seed: int) -> Path:
    """The folder that keeps the conversions of this model between runs, in a folder per engine's version."""
    sources = [Path(__file__).with_name(name).read_bytes() for name in ("checkpoint.py", "graphs.py")]
    return build_cache.folder("converted", repr(config), str(seed), *sources)


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
    settings = {"architectures": ["GPT2LMHeadModel"], **gpt2_settings(config)}
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
    """llama.cpp's format; `kind` F32, F16, BF16, Q8_0 or Q4_0 for the matrices, float32 for the rest."""
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
