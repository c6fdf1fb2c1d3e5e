"""Packs this project for a machine with a GPU and no network, with what measuring imports and is not there.

    python install/offline.py [--python 3.12] [--platform x86_64-manylinux_2_28] [--out dist/offline.tar.gz]

The machine is to have torch with its Triton, NumPy, pandas, matplotlib and pytest. There:

    tar xzf offline.tar.gz && cd offline && python3 -m experiments.gpu_check
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = "decode-floor"
# What measuring and reporting import, and what that imports; what only shows a trace stays at home.
CARRIED = ("jinja2", "markupsafe", "msgspec", "orjson", "psutil", "safetensors", "scipy")
CARRIED += ("rich", "markdown-it-py", "mdurl", "pygments")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default="3.12", help="version of the Python there (default 3.12)")
    parser.add_argument(
        "--platform", default="x86_64-manylinux_2_28", help="as uv names it (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "offline.tar.gz")
    arguments = parser.parse_args()
    pack(arguments.python, arguments.platform, arguments.out)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 2**20:.0f} MiB")


def pack(python: str, platform: str, out: Path) -> None:
    """Write one archive with a folder in which `python -m experiments...` finds everything beside itself."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "offline"
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--target",
            str(folder),
            "--no-deps",
        ]
        command += ["--python", sys.executable, "--python-version", python, "--python-platform", platform]
        command += ["--constraint", "constraints.txt", "--only-binary", ":all:", "--no-binary", PROJECT]
        subprocess.run([*command, *CARRIED, f"{PROJECT} @ {ROOT.as_uri()}"], cwd=ROOT, check=True)
        shutil.copytree(
            ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__", "data")
        )
        shutil.copy(ROOT / "pyproject.toml", folder)  # pytest's marks
        out.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(out, "w:gz", compresslevel=6) as archive:
            archive.add(folder, folder.name)


if __name__ == "__main__":
    main()
