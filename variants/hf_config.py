"""Which decoder does this config.json describe? Read exactly, or refused; never guessed. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from variants.errors import UserError
from variants.families import ALIASES, FAMILIES, REFUSED_KEYS, Family

LAYER_TYPES = FULL, SLIDING = "full_attention", "sliding_attention"
# Far beyond any model, and near enough that a typing error is refused before memory is asked for it
MAX, MAX_LAYERS, MAX_NUMBER = 1 << 24, 1000, 1e12
MAX_JSON_BYTES = 64 << 20  # the index of a model of a terabyte has ten


def read_json(file: Path, what: str = "a config.json") -> dict[str, Any]:
    """The object in a JSON file. Raises UserError where there is none."""
    try:
        if not file.exists():
            raise UserError(f"{file} does not exist; expected a folder in the Hugging Face layout")
        if not file.is_file() or file.stat().st_size > MAX_JSON_BYTES:
            raise UserError(
                f"{file} is not {what} (a file of at most {MAX_JSON_BYTES >> 20} MiB is expected)"
            )
        raw = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise UserError(f"{file}: not {what} (a JSON object is expected)")
    return raw


@dataclass(frozen=True)
class HfConfig:
    """A config.json with its aliases and its family's defaults resolved; every miss is a UserError."""

    raw: Mapping[str, Any]  # under the file's own names of the keys
    values: Mapping[str, Any]
    where: str
    model_type: str
    family: Family

    @staticmethod
    def of(raw: Mapping[str, Any], where: str) -> HfConfig:
        """The config of a text model, or of the text part of a larger one."""
        text = raw.get("text_config")
        inner: Mapping[str, Any] = text if isinstance(text, dict) else raw
        for key, reason in REFUSED_KEYS.items():
            if inner.get(key) or raw.get(key):
                raise UserError(f"{where}: this model is not known here: {reason} ({key} is set)")
        model_type = str(inner.get("model_type"))
        family = FAMILIES.get(model_type)
        if family is None:
            raise UserError(
                f"{where}: model_type {shortened(model_type)} is not known here and its cache is not "
                f"guessed; known: {', '.join(FAMILIES)}"
            )
        # an explicit null stays: it undoes a family's default (Mistral without its window)
        values = {**family.defaults, **{ALIASES.get(key, key): value for key, value in inner.items()}}
        return HfConfig(inner, values, where, model_type, family)

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def spelling(self, key: str) -> str:
        """The name by which this file gives the key."""
        return next((theirs for theirs in self.raw if ALIASES.get(theirs) == key), key)

    def whole(self, key: str, default: int | None = None, most: int = MAX) -> int:
        return whole_number(self.get(key, default), key, self.where, most)

    def number(self, key: str, default: float | None = None) -> float:
        return positive_number(self.values.get(key, default), key, self.where)  # null is no number

    @property
    def n_layer(self) -> int:
        return self.whole("num_hidden_layers", most=MAX_LAYERS)

    def flag(self, decides: bool | str, default: bool = False) -> bool:
        """A fact that is fixed or that the key `decides`."""
        value = self.get(decides, default) if isinstance(decides, str) else decides
        if not isinstance(value, bool):
            raise UserError(f"{self.where}: {decides} {predicate(value)}; true or false is needed")
        return value

    @property
    def n_kv_head(self) -> int:
        n_head = self.whole("num_attention_heads")
        if self.model_type == "gpt_bigcode":
            return 1 if self.flag("multi_query", True) else n_head
        n_kv_head = self.whole("num_key_value_heads", n_head)
        if n_head % n_kv_head:
            raise UserError(f"{self.where}: {n_head} query heads cannot share {n_kv_head} KV heads evenly")
        return n_kv_head

    @property
    def head_dim(self) -> int:
        n_head, hidden = self.whole("num_attention_heads"), self.whole("hidden_size")
        if self.get("head_dim") is None and hidden % n_head:
            raise UserError(
                f"{self.where}: hidden_size {hidden} is not a multiple of {n_head} heads; head_dim is needed"
            )
        return self.whole("head_dim", hidden // n_head)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Per layer the sliding window, or None. `layer_types` in the config wins over the family's rule."""
        n_layer = self.n_layer
        if self.get("sliding_window") is None or not self.flag(
            "use_sliding_window", self.family.windows != "upper"
        ):
            sliding = [False] * n_layer
        elif self.family.windows == "none":
            raise UserError(
                f"{self.where}: sliding_window is set, but this model type has none; "
                f"which layers it is for is not guessed"
            )
        else:
            sliding = [self._slides(layer) for layer in range(n_layer)]
        named = self.get("layer_types")
        if named is not None:
            if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
                raise UserError(f"{self.where}: layer_types {predicate(named)}; a list of names is needed")
            unknown = set(named) - set(LAYER_TYPES)
            if unknown or len(named) != n_layer:
                count = f"{len(named)} entries for {n_layer} layers"
                what = shortened(sorted(unknown)) if unknown else count
                raise UserError(f"{self.where}: layer_types has {what}: cannot size this cache")
            sliding = [name == SLIDING for name in named]
        return tuple(self.whole("sliding_window") if slides else None for slides in sliding)

    @property
    def unturned(self) -> tuple[bool, ...]:
        """Per layer whether it has no rotary positions. `no_rope_layers` in the config, 1 where a layer has
        them, wins over the family's rule.
        """
        every = self.family.unturned_every
        if not every:
            return (False,) * self.n_layer
        named = self.get("no_rope_layers")
        if named is None:
            every = self.whole("no_rope_layer_interval", every)
            return tuple((layer + 1) % every == 0 for layer in range(self.n_layer))
        if (
            not isinstance(named, list)
            or len(named) < self.n_layer
            or not all(flag in (0, 1) for flag in named)
        ):
            raise UserError(f"{self.where}: no_rope_layers {predicate(named)}; a 0 or 1 per layer is needed")
        return tuple(not flag for flag in named[: self.n_layer])

    def _slides(self, layer: int) -> bool:
        """The family's rule: does this layer (from 0) have the window?"""
        if self.family.windows == "unturned":
            return self.unturned[layer]
        if self.family.windows == "upper":
            return layer >= whole_number(
                self.get("max_window_layers", 28), "max_window_layers", self.where, least=0
            )
        every = self.get("sliding_window_pattern", self.family.full_every)
        if self.family.windows == "pattern" and not (isinstance(every, int) and every > 0):
            raise UserError(f"{self.where}: sliding_window_pattern {shortened(every)} is not known here")
        return self.family.windows == "all" or (layer + 1) % every != 0


def whole_number(value: Any, key: str, where: str, most: int = MAX, least: int = 1) -> int:
    """The value of this key, or UserError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{where}: {key} {predicate(value)}; a whole number of at least {least} is needed")
    if value > most:
        raise UserError(f"{where}: {key} {predicate(value)}; at most {most:,} is known here")
    return value


def positive_number(value: Any, key: str, where: str) -> float:
    """The value of this key, or UserError."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not 0 < value <= MAX_NUMBER:
        raise UserError(f"{where}: {key} {predicate(value)}; a positive number is needed")
    return float(value)


def predicate(value: Any) -> str:
    """What a refusal says of a value."""
    return "is missing" if value is None else f"is {shortened(value)}"
