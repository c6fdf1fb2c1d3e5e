"""Which devices are known: bandwidth, multiprocessors, clock, second-level cache, as their makers state them.

Sources: NVIDIA's data sheets and architecture papers (V100, T4, A100, GA102, H100, Ada, Blackwell), AMD's of
CDNA 2 and 3 and RDNA 3. Bandwidth is the stated one; what is reached of it is a constant of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from variants.errors import UserError


class Memory(StrEnum):
    """Kinds of memory that reach different shares of their stated bandwidth."""

    GDDR = "GDDR"
    GDDR_ECC = "GDDR with error correction"  # on by default on these cards; its bits travel on the same bus
    HBM2 = "HBM2"
    HBM3 = "HBM3"
    CDNA = "HBM of CDNA"


class Host(StrEnum):
    """What stands beside such a device: nearly nobody says which processor."""

    OLDER = "server of 2018 to 2022"  # Zen 2 and 3, Cascade and Ice Lake
    NEWER = "server or workstation since 2023"  # Zen 4, Sapphire Rapids
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Device:
    """One device. GB/s as stated, GHz of the boost clock, MB of second-level cache. `tflops`: stated peak of
    dense 16-bit products that add up in float32; None: not looked up."""

    name: str
    bandwidth_gb_per_s: float
    multiprocessors: int
    clock_ghz: float
    cache_mb: float
    memory: Memory
    host: Host = Host.UNKNOWN
    dependent_launches: bool = False  # programmatic dependent launch: compute capability 9.0 and up
    also: tuple[str, ...] = ()
    tflops: float | None = None


_ECC, _OLD, _NEW = Memory.GDDR_ECC, Host.OLDER, Host.NEWER
_DEVICES = (
    Device(
        "V100", 900, 80, 1.53, 6, Memory.HBM2, _OLD, also=("V100 SXM2", "V100-32GB", "V100-16GB"), tflops=125
    ),
    Device("T4", 320, 40, 1.59, 4, _ECC, _OLD, tflops=65),
    Device(
        "A100-40GB",
        1555,
        108,
        1.41,
        40,
        Memory.HBM2,
        _OLD,
        also=("A100-40GB PCIe", "A100-40GB SXM"),
        tflops=312,
    ),
    Device(
        "A100-80GB",
        2039,
        108,
        1.41,
        40,
        Memory.HBM2,
        _OLD,
        also=("A100", "A100 SXM", "A100-80GB SXM", "A800"),
        tflops=312,
    ),
    Device(
        "A100-80GB PCIe", 1935, 108, 1.41, 40, Memory.HBM2, _OLD, also=("A100 PCIe", "A800 PCIe"), tflops=312
    ),
    Device("A30", 933, 56, 1.44, 24, Memory.HBM2, _OLD, tflops=165),
    Device("A10", 600, 72, 1.695, 6, _ECC, _OLD, tflops=125),
    Device("A10G", 600, 80, 1.71, 6, _ECC, _OLD, tflops=70),
    Device("A40", 696, 84, 1.74, 6, _ECC, _OLD, tflops=149.7),
    Device("L4", 300, 58, 2.04, 48, _ECC, tflops=121),
    Device("L20", 864, 92, 2.52, 96, _ECC, tflops=119.5),
    Device("L40", 864, 142, 2.49, 96, _ECC, tflops=181),
    Device("L40S", 864, 142, 2.52, 96, _ECC, tflops=362),
    Device(
        "H100",
        3350,
        132,
        1.83,
        50,
        Memory.HBM3,
        _NEW,
        True,
        ("H100 SXM", "H100-80GB", "H100-80GB SXM", "H800"),
        tflops=989,
    ),
    Device("H100 PCIe", 2000, 114, 1.755, 50, Memory.HBM3, _NEW, True, ("H100-80GB PCIe",), tflops=756),
    Device("H100 NVL", 3900, 132, 1.785, 60, Memory.HBM3, _NEW, True, ("H100-94GB",), tflops=835),
    Device("H200", 4800, 132, 1.83, 60, Memory.HBM3, _NEW, True, ("H200 SXM", "H200-141GB"), tflops=989),
    Device("GH200", 4000, 132, 1.83, 60, Memory.HBM3, _NEW, True, ("GH200-96GB",), tflops=989),
    Device("H20", 4000, 78, 1.83, 60, Memory.HBM3, _NEW, True, ("H20-96GB",), tflops=148),
    Device(
        "B200",
        8000,
        148,
        1.965,
        126,
        Memory.HBM3,
        _NEW,
        True,
        ("GB200", "B200 SXM", "B200-180GB"),
        tflops=2250,
    ),
    Device("RTX A4000", 448, 48, 1.56, 4, _ECC),
    Device("RTX A5000", 768, 64, 1.695, 6, Memory.GDDR),
    Device("RTX A6000", 768, 84, 1.8, 6, Memory.GDDR, also=("A6000",), tflops=154.8),
    Device("RTX 4000 Ada", 360, 48, 2.175, 48, Memory.GDDR),
    Device("RTX 4500 Ada", 432, 60, 2.58, 48, Memory.GDDR),
    Device("RTX 5000 Ada", 576, 100, 2.55, 72, Memory.GDDR),
    Device("RTX 6000 Ada", 960, 142, 2.505, 96, Memory.GDDR),
    Device("RTX PRO 6000", 1792, 188, 2.6, 128, Memory.GDDR, also=("RTX PRO 6000 Blackwell",)),
    Device("Quadro RTX 8000", 672, 72, 1.77, 6, Memory.GDDR, also=("RTX 8000",)),
    Device("TITAN RTX", 672, 72, 1.77, 6, Memory.GDDR),
    Device("GTX 1080 Ti", 484, 28, 1.58, 2.75, Memory.GDDR),
    Device("RTX 2060", 336, 30, 1.68, 3, Memory.GDDR),
    Device("RTX 2070", 448, 36, 1.62, 4, Memory.GDDR),
    Device("RTX 2080", 448, 46, 1.71, 4, Memory.GDDR),
    Device("RTX 2080 Ti", 616, 68, 1.545, 5.5, Memory.GDDR),
    Device("RTX 3060", 360, 28, 1.777, 3, Memory.GDDR),
    Device("RTX 3060 Ti", 448, 38, 1.665, 4, Memory.GDDR),
    Device("RTX 3070", 448, 46, 1.725, 4, Memory.GDDR),
    Device("RTX 3070 Ti", 608, 48, 1.77, 4, Memory.GDDR),
    Device("RTX 3080", 760, 68, 1.71, 5, Memory.GDDR),
    Device("RTX 3080 Ti", 912, 80, 1.665, 6, Memory.GDDR),
    Device("RTX 3090", 936, 82, 1.695, 6, Memory.GDDR, tflops=71),
    Device("RTX 3090 Ti", 1008, 84, 1.86, 6, Memory.GDDR),
    Device("RTX 4060", 272, 24, 2.46, 24, Memory.GDDR),
    Device("RTX 4060 Ti", 288, 34, 2.535, 32, Memory.GDDR),
    Device("RTX 4070", 504, 46, 2.475, 36, Memory.GDDR),
    Device("RTX 4070 Super", 504, 56, 2.475, 48, Memory.GDDR),
    Device("RTX 4070 Ti", 504, 60, 2.61, 48, Memory.GDDR),
    Device("RTX 4070 Ti Super", 672, 66, 2.61, 48, Memory.GDDR),
    Device("RTX 4080", 717, 76, 2.505, 64, Memory.GDDR),
    Device("RTX 4080 Super", 736, 80, 2.55, 64, Memory.GDDR),
    Device("RTX 4090", 1008, 128, 2.52, 72, Memory.GDDR, tflops=165.2),
    Device("RTX 4090 Laptop", 576, 76, 2.04, 64, Memory.GDDR),
    Device("RTX 5060 Ti", 448, 36, 2.57, 32, Memory.GDDR, dependent_launches=True),
    Device("RTX 5070", 672, 48, 2.51, 48, Memory.GDDR, dependent_launches=True),
    Device("RTX 5070 Ti", 896, 70, 2.45, 48, Memory.GDDR, dependent_launches=True),
    Device("RTX 5080", 960, 84, 2.62, 64, Memory.GDDR, dependent_launches=True),
    Device("RTX 5090", 1792, 170, 2.41, 96, Memory.GDDR, dependent_launches=True, tflops=209.5),
    Device("RTX 5090 Laptop", 896, 82, 1.515, 64, Memory.GDDR, dependent_launches=True),
    Device("MI210", 1638, 104, 1.7, 8, Memory.CDNA, _OLD, tflops=181),
    Device("MI250X GCD", 1638, 110, 1.7, 8, Memory.CDNA, _OLD, also=("MI250X", "MI250 GCD", "MI250")),
    Device("MI300X", 5300, 304, 2.1, 4, Memory.CDNA, _NEW, tflops=1307),
    Device("RX 7900 XTX", 960, 96, 2.5, 6, Memory.GDDR),
)


def _key(name: str) -> str:
    """'NVIDIA GeForce RTX 4090' and 'rtx-4090' are the same device."""
    plain = re.sub(r"nvidia|geforce|amd|instinct|radeon|[^a-z0-9]", "", name.lower())
    return re.sub(r"sxm\d", "sxm", plain)


DEVICES = {device.name: device for device in _DEVICES}
_BY_KEY = {_key(name): device for device in _DEVICES for name in (device.name, *device.also)}


def find(name: str) -> Device:
    """The device of that name, however it is spelled. Raises UserError for one that is not known."""
    device = _BY_KEY.get(_key(name))
    if device is None:
        raise UserError(f"device {name!r} is not known; known: {', '.join(DEVICES)}")
    return device
