"""What machine and software a run was made on: a number without them cannot be compared."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from profiling.measure.gpu import gpu
from profiling.results.record import Environment
from variants.slots.pages import THP

PACKAGES = ("torch", "triton", "numpy", "decode-floor")


def environment(device: torch.device) -> Environment:
    """Device, processor, threads, memory, pages, versions and load."""
    return Environment(
        device=device.type,
        device_name=device_name(device),
        cpu=cpu_name(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        simd=torch.backends.cpu.get_cpu_capability(),
        memory_bytes=psutil.virtual_memory().total,
        huge_pages=THP.read_text().strip() if THP.exists() else None,
        os=platform.platform(),
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        load_at_start=psutil.getloadavg()[0],
        gpu=gpu(device),
    )


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """The processor's own name; machines that hide it still say the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
