"""A decoder of pre-norm blocks in plain PyTorch, with attention and head left open.

The modules hold weights and the order of operations; where keys and values come from, how they are
masked and which positions reach the head is passed in by the decoder. What differs between GPT-2 and the
Llama family are facts of the config, read here once when a module is built.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from variants.config import GPTConfig, Rope
from variants.rope import rope_tables, rotate

# (layer, q [B,H,T,D], k [B,Hkv,T,D], v [B,Hkv,T,D]) -> [B,H,T,D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
# (lm_head, hidden [B,T,C]) -> logits [B,T or 1,V]
Head = Callable[[nn.Module, Tensor], Tensor]


def norm(config: GPTConfig, width: int) -> nn.Module:
    """The config's norm over `width` channels."""
    kind = nn.RMSNorm if config.norm == "rms" else nn.LayerNorm
    return kind(width, eps=config.layer_norm_epsilon)


class Block(nn.Module):
    """Pre-norm transformer block, with norms behind attention and MLP where the config has them.

    `qkv` rows are all query heads, then key heads, then value heads. In `up` of a gated block the rows of
    gate and up alternate, so that whoever computes a range of rows holds both and the activation is local.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C, inner = config.n_embd, config.n_inner
        self.n_head, self.n_kv_head, self.head_dim = config.n_head, config.n_kv_head, config.head_dim
        self.gated, self.activation = config.gated, config.activation
        self.ln_1 = norm(config, C)
        self.qkv = nn.Linear(C, config.q_dim + 2 * config.kv_dim, bias=config.qkv_bias)
        self.q_norm = norm(config, self.head_dim) if config.qk_norm else None
        self.k_norm = norm(config, self.head_dim) if config.qk_norm else None
        self.out = nn.Linear(config.q_dim, C, bias=config.out_bias)
        self.out_norm = norm(config, C) if config.out_norms else nn.Identity()
        self.ln_2 = norm(config, C)
        self.up = nn.Linear(C, 2 * inner if config.gated else inner, bias=config.mlp_bias)
        self.down = nn.Linear(inner, C, bias=config.mlp_bias)
        self.down_norm = norm(config, C) if config.out_norms else nn.Identity()

    def heads(self, x: Tensor, turn: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """[B,T,C] -> q [B,H,T,D], k and v [B,Hkv,T,D], queries and keys normed and turned where asked."""
        B, T, _ = x.shape
        H, G, D = self.n_head, self.n_kv_head, self.head_dim
        qk, v = self.qkv(x).view(B, T, H + 2 * G, D).split([H + G, G], dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat([self.q_norm(qk[:, :, :H]), self.k_norm(qk[:, :, H:])], dim=2)
        if turn is not None:
            qk = rotate(qk, turn)
        q, k = qk.split([H, G], dim=2)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def activated(self, x: Tensor) -> Tensor:
        """What `up` yields, [...,F] or [...,2F], -> [...,F]."""
        if not self.gated:
            return self._activated(x)
        gate, up = x.unflatten(-1, (-1, 2)).unbind(-1)
        gated: Tensor = self._activated(gate) * up
        return gated

    def _activated(self, x: Tensor) -> Tensor:
        return F.silu(x) if self.activation == "silu" else F.gelu(x, approximate="tanh")

    def forward(self, x: Tensor, layer: int, attend: Attend, turn: Tensor | None) -> Tensor:
        """[B,T,C] -> [B,T,C]; `turn` [T,2,D/2]: its rotary table at these positions, if it has one."""
        y = attend(layer, *self.heads(self.ln_1(x), turn))
        x = x + self.out_norm(self.out(y.transpose(1, 2).flatten(2)))
        hidden: Tensor = self.down_norm(self.down(self.activated(self.up(self.ln_2(x)))))
        return x + hidden


class Model(nn.Module):
    """What a decoder asks of a model, whoever wrote it: sizes, dtype and device."""

    config: GPTConfig

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of activations, keys and values."""
        return next(self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are, and every pass runs."""
        return self.like.device

    @property
    def implementations(self) -> str:
        """Which of its code's own ways of computing it takes; nothing where it has one."""
        return ""

    def notes(self, capacity: int) -> list[str]:
        """What a reader must know of it and its caches for so many tokens."""
        return []


class GPT(Model):
    """Weights of one decoder."""

    rope: Tensor

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = table(config.vocab_size, config.n_embd)
        if config.rope is None:
            self.wpe = table(config.n_ctx, config.n_embd)
        else:
            self.register_buffer("rope", rope_tables(config))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = norm(config, config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied_head:
            self.lm_head.weight = self.wte.weight

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of activations, keys and values."""
        return next(self.ln_f.parameters())

    @property
    def positions(self) -> Tensor:
        """What a step reads one row of: learned positions [n_ctx,C] or rotary tables [n_ctx,R,2,D/2]."""
        return self.wpe.weight if self.config.rope is None else self.rope

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, head: Head) -> Tensor:
        """tokens [B,T] int64 at positions [T] int64 -> logits [B,T or 1,V], as `head` chooses."""
        x, turns = self.wte(tokens), dict[Rope | None, Tensor]()
        if self.config.embed_scale != 1.0:
            x = x * self.config.embed_scale
        if self.config.rope is None:
            x = x + self.wpe(positions)
        else:
            turns = dict(zip(self.config.ropes, self.rope[positions].unbind(1), strict=True))
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, attend, turns.get(self.config.rope_of(layer)))
        return head(self.lm_head, self.ln_f(x))


def table(rows: int, width: int) -> nn.Embedding:
    """An embedding without values: to draw them on the meta device would load the compiler for a second."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


def empty_model(config: GPTConfig) -> GPT:
    """The modules without memory for their tensors (on the meta device)."""
    with torch.device("meta"):
        return GPT(config)


def random_model(
    config: GPTConfig, seed: int = 0, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> GPT:
    """GPT-2's initialisation, the same on every machine and device for one seed.

    Biases and norm parameters are drawn too, where GPT-2 starts them at 0 and 1: with the plain
    values a variant that forgets a bias would pass every comparison.
    """
    model = empty_model(config)
    model.to_empty(device="cpu")
    if config.rope is not None:
        model.rope.copy_(rope_tables(config))
    if config.tied_head:  # to_empty gives each name its own storage
        model.lm_head.weight = model.wte.weight
    generator = torch.Generator().manual_seed(seed)
    residual = {"out.weight", "down.weight"}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.02 / (2 * config.n_layer) ** 0.5 if name.split(".", 2)[-1] in residual else 0.02
            parameter.normal_(0.0, scale, generator=generator)
            if re.search(r"(ln_\w|\w_norm)\.weight$", name):
                parameter.add_(1.0)
    return model.to(dtype=dtype, device=device).requires_grad_(False).eval()
