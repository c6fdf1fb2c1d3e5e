"""GPT-2 in plain PyTorch, with attention and head left open.

The modules hold weights and the order of operations; where keys and values come from, how they are
masked and which positions reach the head is passed in by the decoder.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from variants.config import GPTConfig

# (layer, q [B,H,T,D], k [B,Hkv,T,D], v [B,Hkv,T,D]) -> [B,H,T,D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
# (lm_head, hidden [B,T,C]) -> logits [B,T or 1,V]
Head = Callable[[nn.Module, Tensor], Tensor]


class Block(nn.Module):
    """Pre-norm transformer block; `qkv` rows are all query heads, then key heads, then value heads."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        C, F_ = config.n_embd, config.n_inner
        self.n_head, self.n_kv_head, self.head_dim = config.n_head, config.n_kv_head, config.head_dim
        self.ln_1 = nn.LayerNorm(C, eps=config.layer_norm_epsilon)
        self.qkv = nn.Linear(C, C + 2 * config.kv_dim)
        self.out = nn.Linear(C, C)
        self.ln_2 = nn.LayerNorm(C, eps=config.layer_norm_epsilon)
        self.up = nn.Linear(C, F_)
        self.down = nn.Linear(F_, C)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B,T,C] -> q [B,H,T,D], k and v [B,Hkv,T,D]."""
        B, T, _ = x.shape
        H, G, D = self.n_head, self.n_kv_head, self.head_dim
        q, k, v = self.qkv(x).split([H * D, G * D, G * D], dim=-1)
        return (
            q.view(B, T, H, D).transpose(1, 2),
            k.view(B, T, G, D).transpose(1, 2),
            v.view(B, T, G, D).transpose(1, 2),
        )

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        """[B,T,C] -> [B,T,C]."""
        B, T, C = x.shape
        y = attend(layer, *self.heads(self.ln_1(x)))
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        hidden: Tensor = self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))
        return x + hidden


class GPT(nn.Module):
    """Weights of one GPT-2 style model."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_ctx, config.n_embd)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied_head:
            self.lm_head.weight = self.wte.weight

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations."""
        return self.wpe.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.wpe.weight.device

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, head: Head) -> Tensor:
        """tokens [B,T] int64 at positions [T] int64 -> logits [B,T or 1,V], as `head` chooses."""
        x = self.wte(tokens) + self.wpe(positions)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, attend)
        return head(self.lm_head, self.ln_f(x))


def random_model(
    config: GPTConfig, seed: int = 0, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> GPT:
    """GPT-2's initialisation, the same on every machine and device for one seed.

    Biases and norm parameters are drawn too, where GPT-2 starts them at 0 and 1: with the plain
    values a variant that forgets a bias would pass every comparison.
    """
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cpu")
    if config.tied_head:  # to_empty gives each name its own storage
        model.lm_head.weight = model.wte.weight
    generator = torch.Generator().manual_seed(seed)
    residual = {"out.weight", "down.weight"}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 0.02 / (2 * config.n_layer) ** 0.5 if name.split(".", 2)[-1] in residual else 0.02
            parameter.normal_(0.0, scale, generator=generator)
            if ".ln_" in f".{name}" and name.endswith("weight"):
                parameter.add_(1.0)
    return model.to(dtype=dtype, device=device).requires_grad_(False).eval()
