"""How do checkpoints name their tensors, and which pieces make one matrix of ours? No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple


class Piece(NamedTuple):
    """A stored tensor as rows of one of ours: those of these `parts`, or all that it has."""

    ours: str
    parts: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Names:
    """How checkpoints of a type name their modules; those of `block` stand behind `layers` and a number."""

    prefix: str
    layers: str
    block: Mapping[str, Piece]
    outer: Mapping[str, str]
    transposed: bool = False  # GPT-2's Conv1D stores its matrices [in, out]
    centred: bool = False  # gains of norms are stored less 1
    constant: str = "$^"  # pattern of buffers that are no weights


_QKV = ("q", "k", "v")
GPT2_NAMES = Names(
    prefix="transformer.",
    layers="h",
    block={
        "ln_1": Piece("ln_1"),
        "attn.c_attn": Piece("qkv", _QKV),
        "attn.c_proj": Piece("out"),
        "ln_2": Piece("ln_2"),
        "mlp.c_fc": Piece("up", ("up",)),
        "mlp.c_proj": Piece("down"),
    },
    outer={"wte": "wte", "wpe": "wpe", "ln_f": "ln_f", "lm_head": "lm_head"},
    transposed=True,
    constant=r"h\.\d+\.attn\.(bias|masked_bias)",
)
LLAMA_NAMES = Names(
    prefix="model.",
    layers="layers",
    block={
        "input_layernorm": Piece("ln_1"),
        **{f"self_attn.{part}_proj": Piece("qkv", (part,)) for part in _QKV},
        "self_attn.qkv_proj": Piece("qkv", _QKV),  # of Phi-3, as gate_up_proj
        "self_attn.q_norm": Piece("q_norm"),
        "self_attn.k_norm": Piece("k_norm"),
        "self_attn.o_proj": Piece("out"),
        "post_attention_layernorm": Piece("ln_2"),
        "mlp.gate_proj": Piece("up", ("gate",)),
        "mlp.up_proj": Piece("up", ("up",)),
        "mlp.gate_up_proj": Piece("up", ("gate", "up")),
        "mlp.down_proj": Piece("down"),
    },
    outer={"embed_tokens": "wte", "norm": "ln_f", "lm_head": "lm_head"},
    constant=r".*rotary_emb\.inv_freq",
)
GEMMA3_NAMES = replace(
    LLAMA_NAMES,
    block={
        **LLAMA_NAMES.block,
        "post_attention_layernorm": Piece("out_norm"),
        "pre_feedforward_layernorm": Piece("ln_2"),
        "post_feedforward_layernorm": Piece("down_norm"),
    },
    centred=True,
)
