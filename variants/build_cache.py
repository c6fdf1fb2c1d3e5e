"""Where what is compiled on first use is kept between runs: one folder per key, never reused for another key.

The key holds everything that the result depends on, so a stale build is not found rather than detected:
the caller's parts (sources, flags, model), the CPU's instruction sets, the compiler and torch.
The place is $XDG_CACHE_HOME/decode-floor, by default ~/.cache/decode-floor.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def compiler() -> str | None:
    """The C++ compiler: $CXX, else c++, g++ or clang++ from the path; None where there is none."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)


@functools.cache
def toolchain() -> tuple[str, ...]:
    """Compiler version, torch version and instruction sets of this machine."""
    import torch

    cxx = compiler()
    version = subprocess.run([cxx, "--version"], capture_output=True, text=True).stdout if cxx else "none"
    flags = platform.machine()
    if CPUINFO.exists():
        lines = CPUINFO.read_text("utf-8").splitlines()
        flags += next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return version.split("\n", 1)[0], torch.__version__, flags


def folder(kind: str, *parts: str | bytes) -> Path:
    """The folder of one build. It need not exist yet."""
    digest = hashlib.sha256()
    for part in (*toolchain(), *parts):
        digest.update(part if isinstance(part, bytes) else part.encode())
        digest.update(b"\0")
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "decode-floor" / kind / digest.hexdigest()[:16]
