"""Host time per launch on machines whose eager steps were published, each read from one of its steps.

A launch of PyTorch with the views around it; a step's launches are counted in `engines`. Between machines it
differs by a factor of three, and nearly nobody names the processor: without one of these, or an anchor of
your own, a kind of host is all that is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from profiling.forecast.devices import Host

ARTICLES = "the articles"


@dataclass(frozen=True)
class Machine:
    source: str  # what the source column of its rows contains
    device: str
    host_us: float
    read_from: str


MACHINES = (
    Machine(ARTICLES, "A40", 19.47, "article 2: GPT-2 small in float32, 4.95 ms, the launches of our `cat`"),
    Machine("QwenLM/Qwen3", "A100-80GB", 16.14, "Qwen2.5-0.5B, transformers 4.46: 21.1 ms"),
    Machine("pytorch/ao", "A100-80GB", 20.87, "Llama-2-7B in bfloat16, gpt-fast's model in eager: 43.5 ms"),
    Machine("deepspeedai/DeepSpeed", "H100", 9.02, "OPT-1.3B: 5.0 ms"),
    Machine("2605.30571", "H100", 12.04, "Qwen2.5-7B: 17.0 ms"),
    Machine("Infatoshi/MegaQwen", "RTX 3090", 9.11, "Qwen3-0.6B: 16.9 ms"),
    Machine("yalm", "RTX 4090", 18.71, "Mistral-7B: 38.6 ms"),
    Machine("AutoMegaKernel", "RTX 5090 Laptop", 15.84, "a Llama of four layers: 4.4 ms"),
)

_PROCESSORS = (
    (Host.OLDER, r"epyc 7|xeon.*(v[34]\b|[68][12]\d\d)|threadripper [1-3]|ryzen . [1-5]\d"),
    (Host.NEWER, r"epyc 9|xeon.*[68][4-6]\d\d|threadripper|ryzen . [79]\d|i[79]-1[2-4]"),
)


def machine(source: str, device: str) -> Machine | None:
    """The machine with this device that the source is about; None where none is known."""
    return next((m for m in MACHINES if m.device == device and m.source in source), None)


def kind(processor: str, default: Host) -> Host:
    """The kind of host that this processor makes; `default` where it is not named or not known."""
    return next((host for host, pattern in _PROCESSORS if re.search(pattern, processor.lower())), default)
