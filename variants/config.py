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
    gated SiLU, rotary positions, and heads whose width need not be `n_embd / n_head`. What differs between
    layers is told for the first ones, and holds for those behind them in turn.
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
    activation: Literal["gelu", "silu"] = "gelu"  # gelu by tanh
    gated: bool = False  # activation(gate) * up instead of activation(up)
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    qk_norm: bool = False  # an RMS norm over each head of queries and keys, before it is turned
    rope: Rope | None = None  # None: a learned table of positions
    local_rope: Rope | None = None  # of layers with a window, where they have one of their own
    windows: tuple[int | None, ...] = ()  # by layer: tokens that a query sees, its own included; None: all
    unturned: tuple[bool, ...] = ()  # by layer: whether positions do not enter it at all
    out_norms: bool = False  # what attention and MLP give goes through a norm, too, before it is added
    embed_scale: float = 1.0  # of a token's row, not of the head that may share it

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
        if any(window is not None and window < 1 for window in self.windows):
            raise ValueError(
                f"a window of {min(w for w in self.windows if w is not None)} tokens sees nothing"
            )
        if self.rope and self.head_dim % 2:
            raise ValueError(f"rotary positions turn pairs of channels; head_dim is {self.head_dim}")

    @property
    def head_dim(self) -> int:
        """Width D of one head of queries, keys or values."""
        return self.head_width or self.n_embd // self.n_head

    def slides(self, layer: int) -> int | None:
        """The window of this layer, whether or not a run is long enough for it."""
        return self.windows[layer % len(self.windows)] if self.windows else None

    def window(self, layer: int) -> int | None:
        """How many tokens a query of this layer sees, where not every one that there is room for."""
        window = self.slides(layer)
        return None if window is None or window >= self.n_ctx else window

    def rope_of(self, layer: int) -> Rope | None:
        """The rotary positions of this layer; None where it turns nothing."""
        if self.unturned and self.unturned[layer % len(self.unturned)]:
            return None
        return self.local_rope if self.local_rope and self.slides(layer) else self.rope

    @property
    def alike(self) -> bool:
        """Whether all layers are of one kind: no window within a run, all or none turned, and nothing beside
        the parts that GPT-2 and Llama have.
        """
        kinds = {(self.window(layer), self.rope_of(layer)) for layer in range(self.n_layer)}
        return kinds == {(None, self.rope)} and not self.out_norms and self.embed_scale == 1.0

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The different rotary positions; of each a table is kept, and a step reads a row."""
        of_layers = (self.rope_of(layer) for layer in range(self.n_layer))
        return tuple(dict.fromkeys(rope for rope in of_layers if rope))

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
