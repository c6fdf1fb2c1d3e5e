"""From a name to the models that a run measures, refused before anything large is loaded where memory lacks.

A name is that of a preset, `shape:` with a known config or a config.json, a folder in the Hugging Face
layout, or `hub:ORG/NAME[@REVISION]`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from profiling.measure.footprint import free_bytes
from profiling.results.record import BUCKETS
from variants import hub
from variants.backends.transformers_model import (
    TransformersModel,
    as_transformers,
    load_transformers_model,
)
from variants.config import PRESETS, GPTConfig
from variants.described import gpt2_settings, gpt_config
from variants.errors import UserError
from variants.hf_config import HfConfig, read_json
from variants.known_configs import KNOWN_CONFIGS, SHAPE
from variants.ladder import THEIRS, roles
from variants.model import GPT, Model, empty_model, random_model
from variants.slots.exact import KEPT_BYTES
from variants.slots.pages import DEFAULT
from variants.spec import Variant
from variants.weights import load_model

FLOAT64_BYTES = 8
POSITIONS = 2048  # of a model that allows more, at least


@dataclass(frozen=True)
class Wanted:
    """A model by name, for its first `positions`; seeded where the name is no folder's."""

    name: str
    dtype: torch.dtype
    device: torch.device
    positions: int
    seed: int = 0

    def models(self, variants: Sequence[Variant], batch: int = 1, longest: int = 1) -> list[Model]:
        """Those that these variants run, with the same weights: ours, that of transformers, or both.

        `longest`: of the contexts. Raises UserError with the sum where memory does not suffice.
        """
        theirs = any(roles(variant) is THEIRS for variant in variants)
        others = [variant for variant in variants if roles(variant) is not THEIRS]
        runs = [variant for variant in others if variant.why_not(self.device.type) is None]
        self._refuse_too_large(bool(others), runs, theirs, batch, longest)
        ours = self.ours() if others else None
        return [*([ours] if ours else []), *([self._of_transformers(ours)] if theirs else [])]

    def ours(self) -> GPT:
        """The model as our decoder runs it. Raises UserError where it cannot, or its weights do not fit."""
        if not self._is_stored:
            self._refuse_too_large(True)
            return random_model(self.config, self.seed, self.dtype, self.device)
        return load_model(self._folder, self.dtype, self.device, self.positions)

    @property
    def config(self) -> GPTConfig:
        """As our decoder takes it, for the positions of the run. Raises UserError where it runs no such type.

        A model of many positions is built for those that a run needs: at a limit of 131,072 a mask takes 17
        GB.
        """
        preset = PRESETS.get(self.name)
        return preset or gpt_config(HfConfig.of(self._settings, self._where), self.positions)

    @property
    def limit(self) -> int | None:
        """Positions that the model was made for; None where the preset is the model, or it is not said."""
        if self.name in PRESETS:
            return None
        text = self._settings.get("text_config")
        stated = text if isinstance(text, dict) else self._settings
        limits = (stated.get(key) for key in ("max_position_embeddings", "n_positions", "n_ctx"))
        return next((limit for limit in limits if isinstance(limit, int)), None)

    # -- where the name leads -----------------------------------------------------------------

    @property
    def _is_stored(self) -> bool:
        return self.name not in PRESETS and not self.name.startswith(SHAPE)

    @property
    def _settings(self) -> Mapping[str, Any]:
        """The config.json of a stored model or of a shape."""
        return read_json(self._folder / "config.json") if self._is_stored else _shape(self._where)

    @property
    def _where(self) -> str:
        return str(self._folder / "config.json") if self._is_stored else self.name.removeprefix(SHAPE)

    @property
    def _folder(self) -> Path:
        folder = hub.folder_of(self.name)
        if not folder.is_dir():
            raise UserError(
                f"--model {self.name}: neither a folder nor one of {', '.join([*PRESETS, *hub.TRAINED])}; a "
                "model of the hub is hub:ORG/NAME; for a shape with seeded weights use --shape"
            )
        return folder

    def _of_transformers(self, ours: GPT | None) -> TransformersModel:
        """Of a folder the model that transformers makes; else ours in the module of its shape."""
        if self._is_stored:
            return load_transformers_model(self._folder, self.dtype, self.device, self.positions)
        settings = gpt2_settings(self.config) if self.name in PRESETS else self._settings
        return as_transformers(ours or self.ours(), settings)

    # -- memory -------------------------------------------------------------------------------

    def _refuse_too_large(
        self,
        ours: bool,
        variants: Sequence[Variant] = (),
        theirs: bool = False,
        batch: int = 1,
        longest: int = 1,
    ) -> None:
        needs = Counter[str]()
        if ours or not self._is_stored:
            root = empty_model(self.config).to(self.dtype)
            numbers = _numbers(root)
            needs.update(bytes_at_once(root, variants, batch, self._capacity(longest)))
        if theirs:
            numbers = _stored_numbers(self._folder) if self._is_stored else numbers
            needs.update(_of_weights(numbers, numbers * self.dtype.itemsize))
        total, free = sum(needs.values()), free_bytes(self.device)
        if total > free:
            parts = ", ".join(f"{what} {_gib(size)}" for what, size in needs.items() if size)
            raise UserError(
                f"{self.name} needs at least {_gib(total)} here ({parts}), {_gib(free)} are free: take fewer "
                "--variant, a narrower --precision or a smaller model"
            )

    def _capacity(self, longest: int) -> int:
        limit = self.config.n_ctx
        return min(next((slots for slots in BUCKETS if slots > longest), limit), limit)


def bytes_at_once(root: GPT, variants: Iterable[Variant], batch: int, capacity: int) -> dict[str, int]:
    """What a run of these variants holds at its fullest, at least: made on the meta device, without memory.

    `root`: the model in the root's precision. Every variant keeps its own copy, where it stores the weights
    otherwise, its cache and its mask; each precision has a float64 truth.
    """
    config, stored = root.config, dict[tuple[str, str], int]()
    needs = Counter({"weights": _bytes(_tensors(root)), "copies": 0, "caches": 0, "masks": 0, "truth": 0})
    for variant in variants:
        model = variant.precision.build(root)
        size = stored[variant.precision.name, variant.kv.name] = _bytes(_tensors(model))
        if model is not root or variant.pages is not DEFAULT:
            needs["copies"] += size
        needs["caches"] += _bytes(
            variant.kv.build(variant.cache, config, batch, capacity, model.like).buffers()
        )
        needs["masks"] += _bytes(variant.mask.build(config, model.device).buffers())
    for size in stored.values():
        needs["truth"] += _of_weights(_numbers(root), size)["truth"]
    return dict(needs)


def _of_weights(numbers: int, stored: int) -> dict[str, int]:
    """Bytes of a model's weights and of its float64 truth, which beyond a size is the stored copy."""
    kept = FLOAT64_BYTES * numbers
    return {"weights": stored, "truth": kept if kept <= KEPT_BYTES else stored}


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _numbers(model: nn.Module) -> int:
    return sum(tensor.numel() for tensor in _tensors(model))


def _stored_numbers(folder: Path) -> int:
    """How many numbers the checkpoint holds, by the heads of its files."""
    count = 0
    for file in folder.glob("*.safetensors"):
        try:
            with safe_open(file, framework="pt") as opened:
                count += sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
        except Exception:  # the library's own; whoever loads the file says what is wrong with it
            continue
    return count


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"


def _shape(name: str) -> Mapping[str, Any]:
    """A known config by name, or a config.json."""
    if name in KNOWN_CONFIGS:
        return KNOWN_CONFIGS[name]
    if not Path(name).is_file():
        raise UserError(f"--shape {name}: neither a config.json nor one of {', '.join(KNOWN_CONFIGS)}")
    return read_json(Path(name))
