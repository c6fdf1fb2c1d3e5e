"""From flags to a device and a model."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from profiling.cost.work import parameters
from profiling.measure.footprint import free_bytes
from variants import hub
from variants.backends.transformers_model import (
    TransformersModel,
    as_transformers,
    load_transformers_model,
)
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError
from variants.hf_config import HfConfig, gpt2_settings, gpt_config, read_json
from variants.known_configs import KNOWN_CONFIGS, SHAPE
from variants.ladder import THEIRS, roles
from variants.model import GPT, Model, random_model
from variants.spec import Variant
from variants.weights import load_model

MIN_POSITIONS = 2048  # the largest bucket of slots
BESIDE_CONTEXT = 64  # tokens that a visit, the gate and a generation add to a context


def device_for(name: str) -> torch.device:
    """The device of `--device`. Raises UserError where this machine or build has none."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if not available[name]:
        build = " (this torch build has no CUDA)" if name == "cuda" and torch.version.cuda is None else ""
        raise UserError(f"--device {name}: no such device on this machine{build}; try --device cpu")
    return torch.device(name)


def models_for(
    arguments: argparse.Namespace, device: torch.device, variants: Sequence[Variant]
) -> list[Model]:
    """The models that these variants run, with the same weights: ours, the one of transformers, or both."""
    arguments.model = hub.fetched(arguments.model)
    theirs = [variant for variant in variants if roles(variant) is THEIRS]
    ours = model_for(arguments, device) if len(theirs) < len(variants) else None
    return [*([ours] if ours else []), *([_of_transformers(arguments, device, ours)] if theirs else [])]


def _of_transformers(
    arguments: argparse.Namespace, device: torch.device, ours: GPT | None
) -> TransformersModel:
    """Of a folder the model that transformers makes; else ours in the module that it makes for its shape."""
    name = arguments.model
    if name in PRESETS or name.startswith(SHAPE):
        ours = ours or model_for(arguments, device)
        is_preset = name in PRESETS
        settings = gpt2_settings(ours.config) if is_preset else _hf_config(name.removeprefix(SHAPE)).raw
        _refuse_too_large(ours.config, ours.dtype, device)  # beside ours
        return as_transformers(ours, settings)
    _set_threads(arguments)
    return load_transformers_model(
        _folder(name), getattr(torch, arguments.precision), device, _positions(arguments)
    )


def model_for(arguments: argparse.Namespace, device: torch.device) -> GPT:
    """The model of `--model` or `--shape` in the precision of `--precision`.

    A model of many positions is built for those that a run needs: at a limit of 131,072 a mask takes 17 GB.
    A model of the hub is fetched, and named by its commit from then on.
    """
    arguments.model = hub.fetched(arguments.model)
    dtype, positions = getattr(torch, arguments.precision), _positions(arguments)
    _set_threads(arguments)
    config = PRESETS.get(arguments.model)
    if arguments.model.startswith(SHAPE):
        config = gpt_config(_hf_config(arguments.model.removeprefix(SHAPE)), positions)
    if config is not None:
        _refuse_too_large(config, dtype, device)
        return random_model(config, arguments.seed, dtype, device)
    return load_model(_folder(arguments.model), dtype, device, positions)


def _positions(arguments: argparse.Namespace) -> int:
    return max(MIN_POSITIONS, *(n + BESIDE_CONTEXT for n in arguments.context or (0,)))


def _set_threads(arguments: argparse.Namespace) -> None:
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)


def _refuse_too_large(config: GPTConfig, dtype: torch.dtype, device: torch.device) -> None:
    needed, free = parameters(config) * dtype.itemsize, free_bytes(device)
    if needed > free:
        raise UserError(f"the weights take {needed / 2**30:,.1f} GiB, {free / 2**30:,.1f} are free here")


def _folder(name: str) -> Path:
    folder = hub.folder_of(name)
    if not folder.is_dir():
        raise UserError(
            f"--model {name}: neither a folder nor one of {', '.join(PRESETS)}; a model of the hub is "
            "hub:ORG/NAME; for a shape with seeded weights use --shape"
        )
    return folder


def limit_of(name: str) -> int | None:
    """Positions that the model of this name was made for; None where the preset is the model, or it is not
    said.
    """
    if name in PRESETS:
        return None
    shaped = name.startswith(SHAPE)
    raw = _raw_config(name.removeprefix(SHAPE)) if shaped else read_json(hub.folder_of(name) / "config.json")
    text = raw.get("text_config")
    stated = text if isinstance(text, dict) else raw
    limits = (stated.get(key) for key in ("max_position_embeddings", "n_positions", "n_ctx"))
    return next((limit for limit in limits if isinstance(limit, int)), None)


def _hf_config(shape: str) -> HfConfig:
    """A known config by name, or a config.json."""
    return HfConfig.of(_raw_config(shape), shape)


def _raw_config(shape: str) -> Mapping[str, Any]:
    if shape in KNOWN_CONFIGS:
        return KNOWN_CONFIGS[shape]
    if not Path(shape).is_file():
        raise UserError(f"--shape {shape}: neither a config.json nor one of {', '.join(KNOWN_CONFIGS)}")
    return read_json(Path(shape))


def silence_libraries() -> None:
    """Warnings of libraries are not this tool's output; its own go into the record."""
    warnings.filterwarnings("ignore")
    for name in ("torch._inductor", "torch._dynamo", "torch.profiler"):
        logging.getLogger(name).setLevel(logging.ERROR)
