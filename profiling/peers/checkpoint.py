"""One model in the formats that other engines read, converted once per folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from variants import build_cache
from variants.config import GPTConfig
from variants.described import gpt2_settings
from variants.errors import UserError
from variants.families import FAMILIES
from variants.model import GPT
from variants.stored_names import Names
from variants.weights import stored_as

LLAMA_TYPES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}
FUSED = ("qkv_proj", "gate_up_proj")  # Phi-3's spellings of what Llama's types keep apart


def conversions(model: GPT, parent: Path | None = None) -> Path:
    """The folder that keeps the conversions of this model between runs, in a folder per engine's version.

    Its name stands for config, weights and the code that converts; in `parent`, or in the cache.
    """
    digest = hashlib.blake2b(digest_size=8)
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy())
    sources = [Path(__file__).with_name(name).read_bytes() for name in ("checkpoint.py", "graphs.py")]
    folder = build_cache.folder("converted", repr(model.config), digest.hexdigest(), *sources)
    return folder if parent is None else parent / folder.name


def save(model: GPT, path: Path) -> None:
    """The state of the model, for the process of an engine."""
    tied = {"lm_head.weight"} if model.config.tied_head else set[str]()
    save_file({name: t.contiguous() for name, t in model.state_dict().items() if name not in tied}, path)


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made under another name and moved where it does not exist yet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name("part-" + path.name)
        make(part)
        part.replace(path)
    return path


def settings(config: GPTConfig) -> dict[str, Any]:
    """The config.json of a decoder of these facts. Raises UserError where no type known here is that."""
    if config.rope is None:
        return {"architectures": ["GPT2LMHeadModel"], **gpt2_settings(config)}
    kind = "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias > config.out_bias else "llama"
    layers_alike = not any((*config.windows, *config.unturned)) and not config.out_norms
    gated_silu = config.gated and config.activation == "silu" and config.embed_scale == 1.0
    biases_known = kind == "qwen2" or config.qkv_bias == config.out_bias
    like_llama = config.norm == "rms" and layers_alike and gated_silu and biases_known
    if not like_llama or (config.mlp_bias and kind != "llama"):
        raise UserError("no type of checkpoint that is written here is a decoder of these facts")
    rope = {key: value for key, value in asdict(config.rope).items() if key != "theta" and value is not None}
    rope |= {"rope_type": rope.pop("kind"), "original_max_position_embeddings": rope.pop("trained")}
    return {
        "architectures": [LLAMA_TYPES[kind]],
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_inner,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "num_key_value_heads": config.n_kv_head,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.n_ctx,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.layer_norm_epsilon,
        "rope_theta": config.rope.theta,
        **({} if config.rope.kind == "default" else {"rope_scaling": rope}),
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def tensors(model: GPT) -> Iterator[tuple[str, Tensor]]:
    """The weights as the type of `settings` keeps them, by its names."""
    names, config = _names(model.config), model.config
    inner = [module for module in names.block if module.rpartition(".")[2] not in FUSED]
    layers = [f"{names.layers}.{layer}.{module}" for layer in range(config.n_layer) for module in inner]
    for module in [*names.outer, *layers]:
        if module == "lm_head" and config.tied_head:
            continue
        for part in ("weight", "bias"):
            with suppress(UserError):  # most modules have no bias, most types no norm of queries
                name = f"{module}.{part}" if module == "lm_head" else f"{names.prefix}{module}.{part}"
                yield from stored_as(model, names, [name])


def _names(config: GPTConfig) -> Names:
    names = FAMILIES[settings(config)["model_type"]].names
    assert names is not None  # our decoder runs it
    return names


def hugging_face(model: GPT, folder: Path) -> None:
    """The layout of `settings`, with a tokenizer whose words are t0, t1, ..."""
    folder.mkdir(parents=True)
    stored = {name: tensor.contiguous() for name, tensor in tensors(model)}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    words = {f"t{i}": i for i in range(model.config.vocab_size)}
    model_of_words = {"type": "WordLevel", "vocab": words, "unk_token": "t0"}
    tokenizer = {"version": "1.0", "added_tokens": [], "model": model_of_words}
    special = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "t0",
        "eos_token": "t0",
        "bos_token": "t0",
    }
    for name, content in (
        ("config.json", settings(model.config)),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", special),
    ):
        (folder / name).write_text(json.dumps(content))


def gguf(model: GPT, path: Path, kind: str) -> None:
    """llama.cpp's format; `kind` F32, F16, BF16, Q8_0 or Q4_0 for the matrices, float32 for the rest.

    Raises UserError where llama.cpp's file would say something else than the model.
    """
    import gguf as lib

    config, arch = model.config, settings(model.config)["model_type"]
    if config.rope is not None and config.rope.kind != "default":
        raise UserError(f"rotary positions stretched as {config.rope.kind} are not written as GGUF here")
    of_names = lib.get_tensor_name_map(getattr(lib.MODEL_ARCH, arch.upper()), config.n_layer)
    writer = lib.GGUFWriter(path, arch)
    writer.add_context_length(config.n_ctx)
    writer.add_embedding_length(config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_feed_forward_length(config.n_inner)
    writer.add_head_count(config.n_head)
    if config.rope is None:
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_head_count_kv(config.n_kv_head)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_rope_freq_base(config.rope.theta)
        writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    written = list(tensors(model))
    if config.tied_head:
        written.append(("lm_head.weight", model.lm_head.weight))
    for name, tensor in written:
        named = of_names.get_name(name, try_suffixes=(".weight", ".bias"))
        matrix = tensor.dim() == 2 and "position" not in named
        stored = lib.GGMLQuantizationType[kind if matrix else "F32"]
        values = _as_llama_cpp(name, tensor, config).contiguous().numpy()
        writer.add_tensor(named, lib.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _as_llama_cpp(name: str, tensor: Tensor, config: GPTConfig) -> Tensor:
    """GPT-2's matrices [out, in] again; of Llama's queries and keys, whose channels llama.cpp turns in
    neighbouring pairs and transformers in two halves, the rows of each head in turn.
    """
    if _names(config).transposed and tensor.dim() == 2 and ".h." in name:
        return tensor.t()
    heads = {"q_proj": config.n_head, "k_proj": config.n_kv_head}.get(name.split(".")[-2])
    if heads is None or settings(config)["model_type"] != "llama":
        return tensor
    turned: Tensor = tensor.unflatten(0, (heads, 2, config.head_dim // 2)).transpose(1, 2).flatten(0, 2)
    return turned
