"""Is the machine fit to be measured, before and while it is? What is seen goes into the record."""

from __future__ import annotations

import re
import sysconfig
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from profiling.results.record import MachineLook

NAP_SECONDS, NAPS = 0.02, 100
STATUS = Path("/proc/self/status")
RAPL = "class/powercap/intel-rapl:*"
THROTTLES = "devices/system/cpu/cpu*/thermal_throttle/core_throttle_count"


class Energy:
    """What processor packages and their memory have taken, from the counters of RAPL (Intel's and AMD's).

    Linux lets root alone read them, unless it is told otherwise: then nothing is known.
    """

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self.counters = [
            (zone / "energy_uj", wraps) for zone in sorted(sys.glob(RAPL)) if (wraps := _wraps(zone))
        ]

    def read(self) -> list[int]:
        """The counters now, uJ."""
        return [int(file.read_text()) for file, _ in self.counters]

    def joules_since(self, before: list[int]) -> float | None:
        """J since `before` was read; None where there is no counter."""
        taken = [
            (now - then) % wraps
            for now, then, (_, wraps) in zip(self.read(), before, self.counters, strict=True)
        ]
        return sum(taken) / 1e6 if taken else None


def _wraps(zone: Path) -> int | None:
    """The number at which the counter of this zone begins anew; None for one that is not to be counted
    (a part of another zone), or cannot be read.
    """
    try:
        if not (zone / "name").read_text().startswith(("package", "dram")):
            return None
        int((zone / "energy_uj").read_text())
        return int((zone / "max_energy_range_uj").read_text()) + 1
    except (OSError, ValueError):
        return None


class Guard:
    """Looks at the machine between rounds; `look` covers the time since the look before."""

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self.sys = sys
        self.before = self._counters()

    def look(self, number: int) -> MachineLook:
        """What happened beside this process since the look before, until the end of round `number`."""
        before, now = self.before, self._counters()
        self.before = now
        passed = {key: max(0.0, value - before[key]) for key, value in now.items() if key in before}
        all_cores = passed["busy"] + passed["idle"] + passed.get("stolen", 0.0)
        stolen = passed["stolen"] / all_cores if "stolen" in passed and all_cores else None
        return MachineLook(
            round=number,
            busy_elsewhere=max(0.0, passed["busy"] - passed["ours"]) / max(passed["seconds"], 1e-9),
            stolen=stolen,
            swapped_bytes=int(passed.get("swapped", 0)),
            throttled=int(passed["throttled"]) if "throttled" in passed else None,
            peak_resident_bytes=peak_resident_bytes(),
        )

    def _counters(self) -> dict[str, float]:
        """Seconds of all cores since the start, and counts; what this system does not tell is left out."""
        cpu, process = psutil.cpu_times(), psutil.Process().cpu_times()
        idle = cpu.idle + getattr(cpu, "iowait", 0.0)
        stolen = getattr(cpu, "steal", None)
        counters = {
            "seconds": time.monotonic(),
            "idle": idle,
            "busy": _busy(cpu),
            "ours": process.user + process.system + process.children_user + process.children_system,
        }
        if stolen is not None:
            counters["stolen"] = stolen
        swap = psutil.swap_memory()
        counters["swapped"] = swap.sin + swap.sout
        files = list(self.sys.glob(THROTTLES))
        if files:
            counters["throttled"] = sum(int(file.read_text()) for file in files)
        return counters


def wait_for_quiet() -> None:
    """Until this process uses no processor: some pools spin on after their work, in the next one's time."""
    for _ in range(NAPS):
        before = time.process_time()
        time.sleep(NAP_SECONDS)
        if time.process_time() - before < NAP_SECONDS / 10:
            return


def peak_resident_bytes() -> int | None:
    """The most that this process has held in memory so far; None where the system does not tell."""
    if STATUS.exists():  # what getrusage says there may be the parent's
        held = re.search(r"^VmHWM:\s+(\d+) kB", STATUS.read_text(), flags=re.M)
        return int(held[1]) << 10 if held else None
    return getattr(psutil.Process().memory_info(), "peak_wset", None)  # Windows


def _busy(cpu: Any) -> float:
    """Seconds of busy cores; a guest's time is counted among user and nice already."""
    return float(cpu.user + getattr(cpu, "nice", 0.0) + cpu.system + getattr(cpu, "irq", 0.0))


def unfit(threads: int) -> list[str]:
    """One sentence for each thing that makes this process slow before it has begun, with what to do."""
    reasons = []
    cores = psutil.cpu_count(logical=False)
    if cores and threads > cores:
        reasons.append(f"{threads} threads on {cores} physical cores wait for each other: --threads {cores}")
    if sysconfig.get_config_var("Py_DEBUG"):
        reasons.append("this Python is a debug build, which is slower: use a release build")
    if torch.version.debug:
        reasons.append("this torch is a debug build, which is slower: use a release build")
    return reasons
