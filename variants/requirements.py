"""Why a variant cannot run here, if it cannot: one place that knows what each slot option needs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from os import environ

from variants.backends.one_launch.build import why_no_one_launch
from variants.slots.pages import why_no_huge_pages
from variants.spec import Variant


def why_no_compiler(device: str) -> str | None:
    """torch.compile generates C++ on CPU; on CUDA it needs Triton."""
    if device == "mps":
        return "torch.compile of this step is not supported on MPS"
    names = ("cl",) if sys.platform == "win32" else (environ.get("CXX", "c++"), "g++")
    if device == "cuda" or any(map(shutil.which, names)):
        return None
    return f"torch.compile needs a C++ compiler, and none was found: set CXX, or install {names[-1]}"


def why_no_graph(device: str) -> str | None:
    return None if device == "cuda" else "needs a CUDA device; its counterpart here is tape"


def why_no_compiled_graph(device: str) -> str | None:
    return None if device == "cuda" else "needs a CUDA device; its counterpart here is compile"


def why_no_triton(device: str) -> str | None:
    if device != "cuda":
        return "the Triton kernels need a CUDA device; their counterpart here is onelaunch"
    return None if find_spec("triton") else "Triton is not installed"


def why_no_int4(device: str) -> str | None:
    return None if device == "cpu" else "four-bit weights are written for the CPU"


# (slot, option) -> the check it must pass; of several reasons the first one here is given
REQUIREMENTS: dict[tuple[str, str], Callable[[str], str | None]] = {
    ("backend", "fused Triton"): why_no_triton,
    ("backend", "one launch"): lambda device: (why_no_triton if device == "cuda" else why_no_one_launch)(
        device
    ),
    ("executor", "compiled"): why_no_compiler,
    ("executor", "compiled, C++ wrapper"): why_no_compiler,
    ("executor", "AOTInductor"): why_no_compiler,
    ("executor", "compiled in a CUDA graph"): why_no_compiled_graph,
    ("executor", "CUDA graph"): why_no_graph,
    ("pages", "huge"): why_no_huge_pages,
    ("precision", "int4"): why_no_int4,
}


def why_not(variant: Variant, device: str) -> str | None:
    """None where the variant runs on this kind of device ("cpu", "cuda", "mps"), else the reason."""
    reasons = (
        check(device) for (slot, option), check in REQUIREMENTS.items() if variant.slot(slot) == option
    )
    return next((reason for reason in reasons if reason), None)


def compiles(variant: Variant) -> bool:
    """Whether building this variant runs a compiler for many seconds."""
    return variant.executor.startswith("compiled") or variant.executor == "AOTInductor"
