"""Says what an installation brings before it begins: bytes to load and on disk, a compiler, minutes.

    python3 install/announce.py FOLDER EXTRAS TORCH_INDEX

Runs on the bare Python that `make` found, so it imports nothing else and says so where that one is too old.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from pathlib import Path

SIZES = Path(__file__).with_name("sizes.json")  # written by install/sizes.py
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
BYTES_PER_MINUTE = 100e6 / 8 * 60  # of a line of 100 Mbit/s
OLDEST, NEWEST = (3, 11), (3, 14)


def main(folder: str, extras: str, index: str) -> int:
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        wanted = " to ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
        version = platform.python_version()
        print(
            f"{sys.executable} is Python {version}; needed is {wanted}: make ... PYTHON=python3.13",
            file=sys.stderr,
        )
        return 2
    print(f"Installing this project{' with ' + extras if extras else ''} into {folder}.")
    print(f"  packages  {sizes(extras, index)}")
    print(f"  compiler  {compiler()}")
    return 0


def sizes(extras: str, index: str) -> str:
    """What is loaded and what it takes on disk, with torch's build for this system."""
    free = f"{shutil.disk_usage('.').free / 1e9:.0f} GB are free here"
    system = f"{platform.system()} {platform.machine()}"
    known = json.loads(SIZES.read_text("utf-8"))
    rows = [row for row in known if (row["system"], row["extras"]) == (system, extras)]
    builds = {CPU_INDEX if row["cpu_build"] else "": row for row in rows}
    if index not in builds:
        return f"of unknown size: not measured for {system} {extras} {index}; {free}"
    load, disk = builds[index]["download_bytes"], builds[index]["disk_bytes"]
    minutes = f"about {load / BYTES_PER_MINUTE:.0f} minutes at 100 Mbit/s"
    text = f"{gigabytes(load)} to load, {minutes}; {gigabytes(disk)} on disk, {free}"
    if not index and CPU_INDEX in builds:
        load, disk = builds[CPU_INDEX]["download_bytes"], builds[CPU_INDEX]["disk_bytes"]
        text += f"\n            without CUDA {gigabytes(load)} and {gigabytes(disk)}: TORCH_INDEX={CPU_INDEX}"
    return text


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


def compiler() -> str:
    """Whether there is a C++ compiler, and what it is for."""
    use = "builds the rungs `compile` and `onelaunch` on first use, half a minute each"
    names = (os.environ.get("CXX"), "c++", "g++", "clang++")
    paths = [shutil.which(name) for name in names if name and shutil.which(name)]
    return f"{paths[0]} {use}" if paths else f"none found (g++): it {use}; without it they are left out"


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
