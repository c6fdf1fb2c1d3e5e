"""Shapes of the models under study. No torch here: sizing and `--help` must stay fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# of one value, by torch's name of its type
DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Rope:
    """Rotary positions: pairs of channels turned by angles that grow with the position.

    `kind` says how angles are stretched beyond the positions that a model was trained on; the numbers are
    those of the config.json of `transformers` (`rope_parameters`) and mean what they mean there.
    """

    theta: float
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    trained: int = 0  # original_max_position_embeddings, of llama3 and yarn
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None: 0.1 ln(factor) + 1


@dataclass(frozen=True)
class GPTConfig:
    """A decoder of pre-norm blocks, by facts. `n_kv_head < n_head` gives grouped-query attention.

    The defaults are GPT-2's: layer norms, biases, GELU, learned positions. The Llama family has RMS norms,
    gated SiLU, rotary positions, and heads whose width need not be `n_embd / n_head`.
    """

    n_layer: int
    n_head: int
    n_embd: int
    n_kv_head: int = 0  # 0: as many as query heads
    n_ctx: int = 1024
    vocab_size: int = 50257
    n_inner: int = 0  # 0: four times n_embd
    tied_head: bool = True
    layer_norm_epsilon: float = 1e-5
    head_width: int | None = None  # None: n_embd / n_head; it stays unset through dataclasses.replace
    norm: Literal["layer", "rms"] = "layer"  # rms: no mean is taken and no bias added
    gated: bool = False  # silu(gate) * up instead of gelu(up)
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False  # an RMS norm over each head of queries and keys, before it is turned
    rope: Rope | None = None  # None: a learned table of positions

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_kv_head", self.n_kv_head or self.n_head)
        object.__setattr__(self, "n_inner", self.n_inner or 4 * self.n_embd)
        sizes = ("n_layer", "n_head", "n_embd", "n_kv_head", "n_ctx", "vocab_size", "n_inner")
        for name in sizes:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}; a whole number of at least 1 is needed")
        if self.head_width is None and self.n_embd % self.n_head:
            raise ValueError(f"n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_head {self.n_head} is not a multiple of n_kv_head {self.n_kv_head}")
        if self.rope and self.head_dim % 2:
            raise ValueError(f"rotary positions turn pairs of channels; head_dim is {self.head_dim}")

    @property
    def head_dim(self) -> int:
        """Width D of one head of queries, keys or values."""
        return self.head_width or self.n_embd // self.n_head

    @property
    def q_dim(self) -> int:
        """Width of one token's queries in one layer."""
        return self.n_head * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of one token's keys (or values) in one layer."""
        return self.n_kv_head * self.head_dim


PRESETS = {
    "gpt2": GPTConfig(n_layer=12, n_head=12, n_embd=768),
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
    # two layers, and as many positions as GPT-2: what depends on the context alone shows here in little time
    "shallow": GPTConfig(n_layer=2, n_head=4, n_embd=128, vocab_size=1009),
    # the third article's, as far as it prints it
    "toy": GPTConfig(n_layer=2, n_head=4, n_embd=32, n_ctx=128, vocab_size=50),
    # small enough for a test, odd enough to catch what round numbers hide
    "tiny": GPTConfig(n_layer=2, n_head=3, n_embd=48, n_ctx=64, vocab_size=101),
}
