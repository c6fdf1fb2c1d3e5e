"""Which decoder does this config.json describe? Read exactly, or refused; never guessed. No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from variants.config import GPTConfig, Rope
from variants.errors import UserError
from variants.families import ALIASES, FAMILIES, REFUSED_KEYS, Family

ROPES = ("default", "linear", "llama3", "yarn")
PLAIN_THETA = 10000.0  # the base that a config.json may leave out
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
        return _whole(self.get(key, default), key, self.where, most)

    def number(self, key: str, default: float | None = None) -> float:
        return _number(self.values.get(key, default), key, self.where)  # null is no number

    @property
    def n_layer(self) -> int:
        return self.whole("num_hidden_layers", most=MAX_LAYERS)

    def flag(self, decides: bool | str, default: bool = False) -> bool:
        """A fact that is fixed or that the key `decides`."""
        value = self.get(decides, default) if isinstance(decides, str) else decides
        if not isinstance(value, bool):
            raise UserError(f"{self.where}: {decides} {_predicate(value)}; true or false is needed")
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
                raise UserError(f"{self.where}: layer_types {_predicate(named)}; a list of names is needed")
            unknown = set(named) - {"full_attention", "sliding_attention"}
            if unknown or len(named) != n_layer:
                count = f"{len(named)} entries for {n_layer} layers"
                what = shortened(sorted(unknown)) if unknown else count
                raise UserError(f"{self.where}: layer_types has {what}: cannot size this cache")
            sliding = [name == "sliding_attention" for name in named]
        return tuple(self.whole("sliding_window") if slides else None for slides in sliding)

    def _slides(self, layer: int) -> bool:
        """The family's rule: does this layer (from 0) have the window?"""
        if self.family.windows == "upper":
            return layer >= _whole(
                self.get("max_window_layers", 28), "max_window_layers", self.where, least=0
            )
        every = self.get("sliding_window_pattern", self.family.full_every)
        if self.family.windows == "pattern" and not (isinstance(every, int) and every > 0):
            raise UserError(f"{self.where}: sliding_window_pattern {shortened(every)} is not known here")
        return self.family.windows == "all" or (layer + 1) % every != 0


def gpt2_settings(config: GPTConfig) -> dict[str, Any]:
    """The config.json of one of our GPT-2 shapes."""
    return {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": config.n_inner,
        "n_positions": config.n_ctx,
        "vocab_size": config.vocab_size,
        "layer_norm_epsilon": config.layer_norm_epsilon,
        "tie_word_embeddings": config.tied_head,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }


def gpt_config(config: HfConfig, positions: int | None = None) -> GPTConfig:
    """The decoder that a config describes, for its limit of positions or for the first `positions` of them.

    Raises UserError for what our decoder would compute wrongly or does not compute.
    """
    family, where = config.family, config.where
    if family.names is None:
        runs = ", ".join(name for name, known in FAMILIES.items() if known.names)
        raise UserError(
            f"{where}: our decoder does not run model_type {config.model_type!r}, only {runs}; "
            "any causal model of transformers runs in its own code: --variant hf,hf-static,hf-tape"
        )
    for key, value in family.required.items():
        if config.get(key, value) != value:
            setting = f"{config.spelling(key)} = {shortened(config.get(key))}"
            raise UserError(f"{where}: {setting} is not supported, only {value!r}")
    limit = config.whole("max_position_embeddings", config.get("n_ctx"))
    n_ctx = min(positions or limit, limit)
    _refuse_short_windows(config, n_ctx)
    try:
        return GPTConfig(
            n_layer=config.n_layer,
            n_head=config.whole("num_attention_heads"),
            n_embd=config.whole("hidden_size"),
            n_kv_head=config.n_kv_head,
            n_ctx=n_ctx,
            vocab_size=config.whole("vocab_size"),
            n_inner=config.whole("intermediate_size", 4 * config.whole("hidden_size")),
            tied_head=config.flag("tie_word_embeddings", family.tied),
            layer_norm_epsilon=config.number("rms_norm_eps", 1e-5 if family.norm_bias else 1e-6),
            head_width=None if config.get("head_dim") is None else config.head_dim,
            norm="layer" if family.norm_bias else "rms",
            gated=family.gated,
            qkv_bias=config.flag(family.qkv_bias),
            out_bias=config.flag(family.out_bias),
            mlp_bias=config.flag(family.mlp_bias),
            qk_norm=family.qk_norm == "per head",
            rope=None if family.positions else _rope(config, limit),
        )
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def _refuse_short_windows(config: HfConfig, n_ctx: int) -> None:
    short = min((window for window in config.windows if window is not None), default=n_ctx)
    if short < n_ctx:
        raise UserError(
            f"{config.where}: a sliding window of {short} tokens is shorter than the {n_ctx} positions of "
            "this run; our decoder runs full attention only: stay below it, or --variant hf,hf-static,hf-tape"
        )


def _rope(config: HfConfig, limit: int) -> Rope:
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise UserError(f"{config.where}: rope parameters {_predicate(parameters)}; an object is needed")
    where, kind = config.where, str(parameters.get("rope_type", parameters.get("type", "default")))
    if kind not in ROPES:
        raise UserError(f"{where}: rope_type {shortened(kind)} is not supported, only {', '.join(ROPES)}")
    for key, plain in (("partial_rotary_factor", 1.0), ("mscale", None), ("truncate", True)):
        if (value := parameters.get(key, config.get(key, plain))) not in (plain, None):
            raise UserError(f"{where}: {key} = {shortened(value)} is not supported")

    def number(key: str, default: float | None = None) -> float:
        value = parameters.get(key)
        return _number(default if value is None else value, key, where)

    theta = number("rope_theta", config.get("rope_theta", PLAIN_THETA))
    if theta <= 1:
        raise UserError(f"{where}: rope_theta is {theta}; a base above 1 is needed")
    if kind == "default":
        return Rope(theta)
    factor = number("factor")
    if factor < 1:
        raise UserError(f"{where}: factor is {factor}; at least 1 is needed, positions are stretched")
    if kind == "linear":
        return Rope(theta, "linear", factor)
    longest = parameters.get("original_max_position_embeddings")
    trained = _whole(limit if longest is None else longest, "original_max_position_embeddings", where)
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise UserError(f"{where}: low_freq_factor {low} is not below high_freq_factor {high}")
        return Rope(theta, "llama3", factor, trained, low_freq_factor=low, high_freq_factor=high)
    fixed = parameters.get("attention_factor")
    return Rope(
        theta,
        "yarn",
        factor,
        trained,
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
        attention_factor=None if fixed is None else number("attention_factor"),
    )


def _whole(value: Any, key: str, where: str, most: int = MAX, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{where}: {key} {_predicate(value)}; a whole number of at least {least} is needed")
    if value > most:
        raise UserError(f"{where}: {key} {_predicate(value)}; at most {most:,} is known here")
    return value


def _number(value: Any, key: str, where: str) -> float:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not 0 < value <= MAX_NUMBER:
        raise UserError(f"{where}: {key} {_predicate(value)}; a positive number is needed")
    return float(value)


def _predicate(value: Any) -> str:
    return "is missing" if value is None else f"is {shortened(value)}"
