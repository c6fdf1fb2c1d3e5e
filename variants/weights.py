"""Real weights from a folder in the Hugging Face layout: `config.json` and safetensors.

Only safetensors are read: a pickle checkpoint can execute code. Every tensor in the file must be one that
the model has, or one of GPT-2's two constant mask buffers; a missing or unknown one is refused by name.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from variants.config import GPTConfig
from variants.errors import UserError
from variants.model import GPT

# GPT-2's names for our modules; its Conv1D stores weights [in, out], so they are transposed on reading
RENAMED = {
    "h": "blocks",
    "attn.c_attn": "qkv",
    "attn.c_proj": "out",
    "mlp.c_fc": "up",
    "mlp.c_proj": "down",
}
TRANSPOSED = re.compile(r"\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight$")
MASK_BUFFERS = re.compile(r"^h\.\d+\.attn\.(bias|masked_bias)$")


def load_model(folder: Path, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu") -> GPT:
    """The model stored in `folder`. Raises UserError naming the file, tensor or setting that is wrong."""
    config = read_config(folder)
    with torch.device("meta"):
        model = GPT(config)
    wanted = dict(model.named_parameters(remove_duplicate=False))
    if config.tied_head:
        del wanted["lm_head.weight"]
    found: dict[str, Tensor] = {}
    for file, stored, theirs in _tensors(folder):
        name, tensor = _ours(stored, theirs)
        if MASK_BUFFERS.match(name) or (config.tied_head and name == "lm_head.weight"):
            continue
        if name not in wanted:
            raise UserError(f"{file}: unknown tensor {stored}; this is not a GPT-2 style checkpoint")
        if tensor.shape != wanted[name].shape:
            expected, got = tuple(wanted[name].shape), tuple(tensor.shape)
            raise UserError(f"{file}: {stored} has shape {got}, config.json asks for {expected}")
        found[name] = tensor.to(dtype=dtype, device=device).contiguous()
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise UserError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
    if config.tied_head:
        found["lm_head.weight"] = found["wte.weight"]
    model.load_state_dict(found, assign=True)
    if config.tied_head:
        model.lm_head.weight = model.wte.weight
    return model.requires_grad_(False).eval()


def read_config(folder: Path) -> GPTConfig:
    """`config.json` of a GPT-2 style model. Raises UserError for what this decoder would compute wrongly."""
    file = folder / "config.json"
    try:
        raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; expected a folder in the Hugging Face layout") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid JSON: {error}") from None
    fixed = {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
    }
    for key, value in fixed.items():
        if raw.get(key, value) != value:
            raise UserError(f"{file}: {key} = {raw[key]!r} is not supported, only {value!r}")
    try:
        return GPTConfig(
            n_layer=raw["n_layer"],
            n_head=raw["n_head"],
            n_embd=raw["n_embd"],
            n_kv_head=raw.get("n_kv_head") or 0,
            n_ctx=raw.get("n_positions") or raw["n_ctx"],
            vocab_size=raw["vocab_size"],
            n_inner=raw.get("n_inner") or 0,
            tied_head=raw.get("tie_word_embeddings", True),
            layer_norm_epsilon=raw.get("layer_norm_epsilon", 1e-5),
        )
    except KeyError as error:
        raise UserError(f"{file}: {error.args[0]} is missing") from None
    except (TypeError, ValueError) as error:
        raise UserError(f"{file}: {error}") from None


def _ours(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Their tensor under our name, [out, in]."""
    name = name.removeprefix("transformer.")
    if TRANSPOSED.search(name):
        tensor = tensor.t()
    if not MASK_BUFFERS.match(name):
        for theirs, ours in RENAMED.items():
            name = re.sub(rf"(^|\.){re.escape(theirs)}\.", rf"\1{ours}.", name)
    return name, tensor


def _tensors(folder: Path) -> list[tuple[Path, str, Tensor]]:
    """Every tensor of the checkpoint with the file that holds it."""
    tensors = []
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                tensors += [(file, name, opened.get_tensor(name)) for name in opened.keys()]  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} cannot be read: {error}") from None
    return tensors


def _files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, AttributeError, TypeError):
            raise UserError(f"{index} is not a safetensors index") from None
        if any(Path(name).name != name for name in names):
            raise UserError(f"{index} names files outside {folder}")
        return [folder / name for name in names]
    pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickles:
        raise UserError(
            f"{pickles[0]} is a pickle, which can execute code, and is not read; convert it with "
            "transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(folder)"
        )
    raise UserError(f"{folder} holds no model.safetensors")
