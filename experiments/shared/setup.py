"""From flags to a device and a model."""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import torch

from variants.config import PRESETS
from variants.errors import UserError
from variants.model import GPT, random_model
from variants.slots.precision import DTYPES
from variants.weights import load_model


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
    """The model of `--model` in the precision of `--precision`."""
    dtype = DTYPES[arguments.precision]
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.model in PRESETS:
        return random_model(PRESETS[arguments.model], arguments.seed, dtype, device)
    folder = Path(arguments.model)
    if not folder.is_dir():
        raise UserError(f"--model {arguments.model}: neither a folder nor one of {', '.join(PRESETS)}")
    return load_model(folder, dtype, device)


def silence_libraries() -> None:
    """Warnings of libraries are not this tool's output; its own go into the record."""
    warnings.filterwarnings("ignore")
    for name in ("torch._inductor", "torch._dynamo", "torch.profiler"):
        logging.getLogger(name).setLevel(logging.ERROR)
