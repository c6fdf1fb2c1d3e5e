"""Any causal model of transformers as a trunk: its own code and caches. Only this file knows its names.

Both caches keep every token, also where a layer has a window, which is then in the mask alone: the layers
that `generate` takes there drop tokens, so that nothing can be rewound, and count in a Python integer, which
a recording freezes.
Code that comes with a checkpoint is never run, and pickled weights are not read.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from variants.backends.backend import Backend
from variants.config import GPTConfig
from variants.errors import UserError, one_line
from variants.hf_config import read_json
from variants.model import Model
from variants.slots.cache import Cache, CacheOption, Window
from variants.slots.mask import Where

OLDEST = (5, 0)  # caches are made of layers, whose static kind counts in device memory


class TransformersModel(Model):
    """A causal model of transformers, for its first `positions` positions."""

    def __init__(self, module: nn.Module, positions: int) -> None:
        """Experts run as batched products: the grouped ones have no float64 and cannot be recorded.

        Raises UserError for sizes that are not known here.
        """
        super().__init__()
        self.module = module.eval().requires_grad_(False)
        self.has_experts = any(name.endswith(".experts") for name, _ in module.named_modules())
        if self.has_experts:
            module.set_experts_implementation("batched_mm")  # type: ignore[operator]
        text: Any = module.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]
        try:
            heads = text.num_attention_heads
            self.config = GPTConfig(
                n_layer=text.num_hidden_layers,
                n_head=heads,
                n_embd=text.hidden_size,
                n_kv_head=getattr(text, "num_key_value_heads", None) or heads,
                n_ctx=positions,
                vocab_size=text.vocab_size,
                head_width=getattr(text, "head_dim", None),
            )
        except (AttributeError, ValueError) as error:
            raise UserError(f"model_type {text.model_type!r} has sizes not known here: {error}") from None

    @property
    def implementations(self) -> str:
        """How attention and, in a mixture, the experts run."""
        config: Any = self.module.config
        attention = f"attention: {config._attn_implementation}"
        return f"{attention}, experts: {config._experts_implementation}" if self.has_experts else attention

    def exact(self) -> TransformersModel:
        """A float64 copy."""
        return TransformersModel(copy.deepcopy(self.module).to(torch.float64), self.config.n_ctx)

    def forward(self, tokens: Tensor, cache: Any = None, every: bool = True) -> Tensor:
        """tokens [B,T] int64 -> logits [B,T or 1,V]. They go into `cache`; without one nothing is cached."""
        out = self.module(
            tokens, past_key_values=cache, use_cache=cache is not None, logits_to_keep=0 if every else 1
        )
        logits: Tensor = out.logits
        return logits

    def trunk(self, cache: CacheOption, batch: int, capacity: int) -> TransformersTrunk:
        """The model with a cache for `batch` rows of at most `capacity` tokens."""
        if not cache.fixed_shape:
            return TransformersTrunk(self, GrowingLayers())
        static = StaticLayers(self.config.n_layer, capacity)
        trunk = TransformersTrunk(self, static)
        with torch.no_grad():  # buffers take the shapes of the first keys and values
            trunk.forward(torch.zeros(batch, 1, dtype=torch.int64, device=self.device), every=False)
            static.rewind(0)
        return trunk


class GrowingLayers(Cache):
    """transformers' dynamic cache: keys and values are concatenated."""

    slots = 0

    def __init__(self) -> None:
        from transformers import DynamicCache

        self.cache: Any = DynamicCache()

    def begin(self, tokens: Tensor) -> Window:
        start = int(self.cache.get_seq_length())
        end = start + tokens.size(1)
        return Window(tokens, torch.arange(start, end, device=tokens.device), slice(start, end), end)

    def append(self, layer: int, k: Tensor, v: Tensor, where: Where) -> tuple[Tensor, Tensor]:
        keys, values = self.cache.update(k.contiguous(), v.contiguous(), layer)
        return keys, values

    def advance(self, tokens: Tensor) -> None:
        """Each layer counts when it is appended to."""

    def rewind(self, n: int) -> None:
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.keys, layer.values = layer.keys[:, :, :n], layer.values[:, :, :n]

    def held(self) -> int:
        return int(self.cache.get_seq_length())

    def contents(self, layer: int, n: int) -> tuple[Tensor, Tensor]:
        held = self.cache.layers[layer]
        return held.keys[:, :, :n], held.values[:, :, :n]

    def buffers(self) -> list[Tensor]:
        layers = [layer for layer in self.cache.layers if layer.is_initialized]
        return [tensor for layer in layers for tensor in (layer.keys, layer.values)]


class StaticLayers(GrowingLayers):
    """transformers' static cache, every layer of full length."""

    def __init__(self, n_layer: int, capacity: int) -> None:
        from transformers.cache_utils import Cache as Layers
        from transformers.cache_utils import StaticLayer

        self.cache = Layers(layers=[StaticLayer(max_cache_len=capacity) for _ in range(n_layer)])
        self.slots = capacity

    def rewind(self, n: int) -> None:
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(n)

    def poison(self, n: int, noise: float) -> None:
        for buffer in self.buffers():
            buffer[:, :, n:] = noise


class TransformersTrunk(Backend):
    """A model of transformers with its cache; a step is one call of it."""

    def __init__(self, model: TransformersModel, cache: GrowingLayers) -> None:
        self.model, self.cache = model, cache

    def forward(self, tokens: Tensor, every: bool) -> Tensor:
        logits: Tensor = self.model(tokens, self.cache.cache, every)
        return logits

    def step(self, token: Tensor) -> Tensor:
        logits = self.forward(token, every=False)[:, -1]
        token.copy_(logits.argmax(dim=-1, keepdim=True))
        return logits


def load_transformers_model(
    folder: Path, dtype: torch.dtype, device: str | torch.device, positions: int
) -> TransformersModel:
    """The causal model stored in `folder`, for at most `positions` positions.

    Raises UserError where the folder holds none, brings its own code, or has pickled weights only.
    """
    raw = read_json(folder / "config.json")
    if raw.get("auto_map"):
        raise UserError(f"{folder}: the checkpoint brings its own code (auto_map), which is never run")
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder}: no .safetensors file; pickled weights are not read, they can run code")
    import transformers

    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise UserError(f"transformers {transformers.__version__} is older than {oldest}: upgrade it")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        module: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise UserError(f"{folder}: transformers cannot load it: {one_line(error)}") from None
    limit = getattr(module.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return TransformersModel(module.to(device), min(positions, limit or positions))
