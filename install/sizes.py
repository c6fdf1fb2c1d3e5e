"""Measures what `make floor` and `make test` load and take on disk, per platform, into install/sizes.json.

    python install/sizes.py [--cpu-index URL]

Installs for every platform with uv into a folder of its own, which is removed again; that loads gigabytes.
The CPU build of torch for Linux is taken from URL (default: PyTorch's own index).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from announce import CPU_INDEX, SIZES

ROOT = Path(__file__).parent.parent
PYTHON = "3.13"
# as `platform` names it -> as uv does
SYSTEMS = {
    "Linux x86_64": "x86_64-manylinux_2_28",
    "Linux aarch64": "aarch64-manylinux_2_28",
    "Darwin arm64": "aarch64-apple-darwin",
    "Windows AMD64": "x86_64-pc-windows-msvc",
}
EXTRAS = ("", "[test,lint,docs]")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu-index", default=CPU_INDEX)
    parser.add_argument("--cpu-python", default=PYTHON, help="a Python that the index has a wheel for")
    arguments = parser.parse_args()
    rows = [size_row(system, extras, PYTHON, None) for system in SYSTEMS for extras in EXTRAS]
    rows += [size_row("Linux x86_64", extras, arguments.cpu_python, arguments.cpu_index) for extras in EXTRAS]
    SIZES.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


def size_row(system: str, extras: str, python: str, cpu_index: str | None) -> dict[str, Any]:
    """One row: packages, bytes loaded (files of the index) and bytes on disk (installed)."""
    with tempfile.TemporaryDirectory(dir=ROOT) as scratch:
        lock, site = Path(scratch) / "pylock.toml", Path(scratch) / "site"
        uv(
            "compile",
            system,
            python,
            cpu_index,
            "--format",
            "pylock.toml",
            "--output-file",
            str(lock),
            *chosen(extras),
        )
        uv("install", system, python, cpu_index, "--target", str(site), "--requirements", *chosen(extras))
        packages = tomllib.loads(lock.read_text("utf-8"))["packages"]
        return {
            "system": system,
            "cpu_build": cpu_index is not None,
            "extras": extras,
            "packages": len(packages),
            "download_bytes": sum(max(map(size, package["wheels"])) for package in packages),
            "disk_bytes": sum(path.lstat().st_blocks * 512 for path in site.rglob("*")),
        }


def size(wheel: dict[str, Any]) -> int:
    """Bytes of a file; an index that is a plain page of links does not say them."""
    if "size" in wheel:
        return int(wheel["size"])
    with urlopen(Request(wheel["url"], method="HEAD")) as answer:
        return int(answer.headers["Content-Length"])


def chosen(extras: str) -> list[str]:
    """The project's requirements with '[a,b]' of its extras, as arguments of uv."""
    names = [name for name in extras.strip("[]").split(",") if name]
    return ["pyproject.toml", *(word for name in names for word in ("--extra", name))]


def uv(verb: str, system: str, python: str, index: str | None, *rest: str) -> None:
    command = [sys.executable, "-m", "uv", "pip", verb, "--quiet", "--no-config", "--only-binary", ":all:"]
    command += ["--python", sys.executable, "--python-version", python, "--python-platform", SYSTEMS[system]]
    command += ["--constraint", "constraints.txt"]
    environment = {**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"}  # the oldest that torch has wheels for
    if index:
        command += ["--index", index, "--index-strategy", "unsafe-best-match"]
    subprocess.run([*command, *rest], cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    main()
