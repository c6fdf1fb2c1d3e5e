"""Any causal model of transformers as a trunk: its own code and caches. Only this file knows its names.

Both caches keep every token, also where a layer has a window, which is then in the mask alone: the layers
that `generate` takes there drop tokens, so that nothing can be rewound, and count in a Python integer, which
a recording freezes.
Code that comes with a checkpoint is never run, and pickled weights are not read.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from variants.backends.backend import Backend
from variants.config import GPTConfig
from variants.described import gpt_config
from variants.errors import UserError, one_line
from variants.hf_config import HfConfig, read_json
from variants.model import GPT, Model
from variants.slots.cache import Cache, CacheOption, Window
from variants.slots.exact import in_float64
from variants.slots.mask import Where
from variants.weights import stored_as

# since 5.4 the layers of a static cache count in device memory; later ones than the newest were not tested
OLDEST, NEWEST = (5, 4), (5, 24)


class TransformersModel(Model):
    """A causal model of transformers, for its first `positions` positions.

    `described`: our config says all that it computes, so that what is counted from a config holds for it;
    else `config` has its sizes only.
    """

    def __init__(self, module: nn.Module, positions: int, described: GPTConfig | None = None) -> None:
        """Experts run as batched products: the grouped ones have no float64 and cannot be recorded.

        Raises UserError for sizes that are not known here.
        """
        super().__init__()
        self.module, self.described = module.eval().requires_grad_(False), described is not None
        named = inspect.signature(module.forward).parameters
        self.cache_argument = "cache" if "cache" in named else "past_key_values"  # the older name
        self.has_experts = any(name.endswith(".experts") for name, _ in module.named_modules())
        if self.has_experts:
            module.set_experts_implementation("batched_mm")  # type: ignore[operator]
        self.config = described or self._sizes(positions)

    @property
    def text_config(self) -> Any:
        """transformers' config of the part that writes text."""
        return self.module.config.get_text_config(decoder=True)  # type: ignore[operator, union-attr]

    def _sizes(self, positions: int) -> GPTConfig:
        text = self.text_config
        try:
            heads = text.num_attention_heads
            return GPTConfig(
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

    def notes(self, capacity: int) -> list[str]:
        """What its caches keep beyond a layer's window."""
        beyond = sum(capacity - window for window in self.windows if window is not None and window < capacity)
        if not beyond:
            return []
        more = beyond * 2 * self.config.kv_dim * self.dtype.itemsize
        return [
            f"layers with a window keep all {capacity} slots here, the window being in the mask alone: for "
            f"one row {more / 1e6:.3g} MB more than within the windows"
        ]

    def exact(self) -> TransformersModel:
        """A copy that computes in float64."""
        described, module = self.config if self.described else None, copy.deepcopy(self.module)
        in_float64(module)
        return TransformersModel(module, self.config.n_ctx, described)

    @property
    def windows(self) -> list[int | None]:
        """By layer how many tokens its attention goes back, itself included; None: to the first one."""
        from transformers import DynamicCache

        layers = DynamicCache(config=self.text_config).layers
        return [getattr(layer, "sliding_window", None) for layer in layers]

    def forward(self, tokens: Tensor, cache: Any = None, every: bool = True) -> Tensor:
        """tokens [B,T] int64 -> logits [B,T or 1,V]. They go into `cache`; without one nothing is cached."""
        caching = {self.cache_argument: cache, "use_cache": cache is not None}
        out = self.module(tokens, **caching, logits_to_keep=0 if every else 1)
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
    transformers = _library()
    try:
        module: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise UserError(f"{folder}: transformers cannot load it: {one_line(error)}") from None
    return of_module(module.to(device), positions, raw)


def of_module(
    module: nn.Module, positions: int, settings: Mapping[str, Any] | None = None
) -> TransformersModel:
    """A causal model of transformers as it is at hand, for at most `positions` positions.

    `settings`: its config.json, by default the module's own. Raises UserError for what is no such model.
    """
    config: Any = getattr(module, "config", None)
    if not hasattr(config, "get_text_config"):
        raise UserError(f"a {type(module).__name__} is no causal model of transformers")
    limit = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    positions = min(positions, limit or positions)
    try:
        described = gpt_config(HfConfig.of(settings or config.to_dict(), "config.json"), positions)
    except UserError:  # a type that is not ours
        described = None
    return TransformersModel(module, positions, described)


def as_transformers(model: GPT, settings: Mapping[str, Any]) -> TransformersModel:
    """The module that transformers makes for this config.json, with the weights of ours.

    Raises UserError where transformers makes none.
    """
    transformers, config = _library(), HfConfig.of(settings, "config.json")
    assert config.family.names is not None  # ours could not have been made
    try:
        theirs = transformers.AutoConfig.for_model(**settings)
        module: Any = transformers.AutoModelForCausalLM.from_config(theirs, dtype=model.dtype)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"transformers cannot make this model: {one_line(error)}") from None
    stored = module.to(model.device).state_dict()
    with torch.no_grad():
        for name, weight in stored_as(model, config.family.names, stored):
            if stored[name].shape != weight.shape:
                raise UserError(f"{name} is built for {model.config.n_ctx} positions, and must be whole here")
            stored[name].copy_(weight)
    return TransformersModel(module, model.config.n_ctx, model.config)


def _library() -> Any:
    """transformers, kept quiet. Raises UserError for a version whose names are not known here."""
    import transformers

    oldest, newest = (".".join(map(str, version)) for version in (OLDEST, NEWEST))
    if not OLDEST <= tuple(int(part) for part in transformers.__version__.split(".")[:2]) <= NEWEST:
        version = transformers.__version__
        raise UserError(f"transformers {version} is not known here, only {oldest} to {newest}")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers
