"""What machine and software a run was made on, and how its GPU was set: without them no number compares."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from profiling.results.record import Environment, Gpu
from variants.slots.pages import THP

PACKAGES = ("torch", "triton", "transformers", "numpy", "decode-floor")
QUERY = (
    "driver_version",
    "clocks.max.sm",
    "clocks.max.mem",
    "power.limit",
    "mig.mode.current",
    "persistence_mode",
)
SMI_S = 20  # without persistence mode the driver takes seconds to answer


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


def gpu(device: torch.device) -> Gpu | None:
    """The device's properties as torch and the driver's tool tell them; None on another kind of device."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    driver, sm_mhz, memory_mhz, power_w, mig, persistence = smi(str(getattr(properties, "uuid", "")))
    return Gpu(
        runtime=torch.version.hip or torch.version.cuda,
        driver=driver,
        capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        l2_bytes=getattr(properties, "L2_cache_size", None),
        max_sm_mhz=_number(sm_mhz),
        max_memory_mhz=_number(memory_mhz),
        power_limit_w=_number(power_w),
        mig=mig,
        persistence=persistence,
        matmul_tf32=torch.backends.cuda.matmul.allow_tf32,
        cudnn_tf32=torch.backends.cudnn.allow_tf32,
    )


def smi(uuid: str) -> list[str | None]:
    """The answers of nvidia-smi to QUERY, of the device with that id or of the only one; None where it gives
    none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return answers("", uuid)
    command = [tool, f"--query-gpu=uuid,{','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S)
    except (OSError, subprocess.SubprocessError):
        return answers("", uuid)
    return answers(done.stdout, uuid)


def answers(text: str, uuid: str) -> list[str | None]:
    """The answers in the line `uuid, answer, ...` of this device, or in an only line, whoever it is of."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines() if line.strip()]
    matching = [row for row in rows if row[0].removeprefix("GPU-") == uuid.removeprefix("GPU-")]
    row = matching[0] if matching else rows[0] if len(rows) == 1 else []
    fields = row[1:] if len(row) == len(QUERY) + 1 else [""] * len(QUERY)
    # [N/A], [Not Supported]
    return [None if not field or field.startswith("[") else field for field in fields]


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
