"""From flags to a device and a model."""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import torch

from experiments.shared.cli import SHAPE
from profiling.cost.work import parameters
from profiling.measure.footprint import free_bytes
from variants.config import PRESETS
from variants.errors import UserError
from variants.hf_config import HfConfig, gpt_config, read_json
from variants.known_configs import KNOWN_CONFIGS
from variants.model import GPT, random_model
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


def model_for(arguments: argparse.Namespace, device: torch.device) -> GPT:
    """The model of `--model` or `--shape` in the precision of `--precision`.

    A model of many positions is built for those that a run needs: at a limit of 131,072 a mask takes 17 GB.
    """
    dtype = getattr(torch, arguments.precision)
    positions = max(MIN_POSITIONS, *(n + BESIDE_CONTEXT for n in arguments.context or (0,)))
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    config = PRESETS.get(arguments.model)
    if arguments.model.startswith(SHAPE):
        config = gpt_config(_hf_config(arguments.model.removeprefix(SHAPE)), positions)
    if config is not None:
        needed, free = parameters(config) * dtype.itemsize, free_bytes(device)
        if needed > free:
            raise UserError(f"the weights take {needed / 2**30:,.1f} GiB, {free / 2**30:,.1f} are free here")
        return random_model(config, arguments.seed, dtype, device)
    folder = Path(arguments.model)
    if not folder.is_dir():
        raise UserError(
            f"--model {arguments.model}: neither a folder nor one of {', '.join(PRESETS)}; "
            "for a shape with seeded weights use --shape"
        )
    return load_model(folder, dtype, device, positions)


def limit_of(name: str) -> int | None:
    """Positions that the model of this name was made for; None where the preset is the model."""
    if name in PRESETS:
        return None
    where = name.removeprefix(SHAPE)
    config = _hf_config(where if name.startswith(SHAPE) else str(Path(where) / "config.json"))
    return config.whole("max_position_embeddings", config.get("n_ctx"))


def _hf_config(shape: str) -> HfConfig:
    """A known config by name, or a config.json."""
    if shape in KNOWN_CONFIGS:
        return HfConfig.of(KNOWN_CONFIGS[shape], shape)
    if not Path(shape).is_file():
        raise UserError(f"--shape {shape}: neither a config.json nor one of {', '.join(KNOWN_CONFIGS)}")
    return HfConfig.of(read_json(Path(shape)), shape)


def silence_libraries() -> None:
    """Warnings of libraries are not this tool's output; its own go into the record."""
    warnings.filterwarnings("ignore")
    for name in ("torch._inductor", "torch._dynamo", "torch.profiler"):
        logging.getLogger(name).setLevel(logging.ERROR)
