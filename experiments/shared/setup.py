"""From flags to a device and a model."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Sequence

import torch

from profiling.measure.models import POSITIONS, Wanted
from variants import hub
from variants.errors import UserError
from variants.model import GPT, Model
from variants.spec import Variant

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
    longest = max(arguments.context or (1,))
    return _wanted(arguments, device).models(variants, arguments.batch, longest)


def model_for(arguments: argparse.Namespace, device: torch.device) -> GPT:
    """The model of `--model` or `--shape` in the precision of `--precision`, as our decoder runs it."""
    return _wanted(arguments, device).ours()


def limit_of(arguments: argparse.Namespace) -> int | None:
    """Positions that the model was made for; None where the preset is the model, or it is not said."""
    return _wanted(arguments, torch.device("cpu")).limit


def _wanted(arguments: argparse.Namespace, device: torch.device) -> Wanted:
    """A model of the hub is fetched, and named by its commit from then on."""
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    arguments.model = hub.fetched(arguments.model)
    positions = max(POSITIONS, *(n + BESIDE_CONTEXT for n in arguments.context or (0,)))
    return Wanted(arguments.model, getattr(torch, arguments.precision), device, positions, arguments.seed)


def silence_libraries() -> None:
    """Warnings of libraries are not this tool's output; its own go into the record."""
    warnings.filterwarnings("ignore")
    for name in ("torch._inductor", "torch._dynamo", "torch.profiler"):
        logging.getLogger(name).setLevel(logging.ERROR)
