"""Shapes of the models under study. No torch here: sizing and `--help` must stay fast."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GPTConfig:
    """A GPT-2 style decoder. `n_kv_head < n_head` gives grouped-query attention (1 = multi-query)."""

    n_layer: int
    n_head: int
    n_embd: int
    n_kv_head: int = 0  # 0: as many as query heads
    n_ctx: int = 1024
    vocab_size: int = 50257
    n_inner: int = 0  # 0: four times n_embd
    tied_head: bool = True
    layer_norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_kv_head", self.n_kv_head or self.n_head)
        object.__setattr__(self, "n_inner", self.n_inner or 4 * self.n_embd)
        if self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_head {self.n_head} is not a multiple of n_kv_head {self.n_kv_head}")

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def kv_dim(self) -> int:
        """Width of one token's keys (or values) in one layer."""
        return self.n_kv_head * self.head_dim


PRESETS = {
    "gpt2": GPTConfig(n_layer=12, n_head=12, n_embd=768),
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
    # small enough for a test, odd enough to catch what round numbers hide
    "tiny": GPTConfig(n_layer=2, n_head=3, n_embd=48, n_ctx=64, vocab_size=101),
}
