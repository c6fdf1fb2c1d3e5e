"""With a GPU and no network: the archive brings what is missing, and every part of the check runs there."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tarfile
import venv
from importlib import metadata
from pathlib import Path
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement

pytest.importorskip("uv", reason="needs the extra `test`")

from install.offline import pack

pytestmark = pytest.mark.slow

THERE = ("torch", "triton", "numpy", "pandas", "matplotlib", "pytest", "setuptools")
NOT_THERE = {"jinja2", "markupsafe", "pygments"}  # torch and pytest ask for them; an image may be without


def needed(names: tuple[str, ...]) -> dict[str, metadata.Distribution]:
    """These distributions and all that they ask for on this machine."""
    distributions: dict[str, metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower()
        if name in distributions or name in NOT_THERE:
            continue
        distributions[name] = metadata.distribution(name)
        wanted = map(Requirement, distributions[name].requires or [])
        waiting += [need.name for need in wanted if not need.marker or need.marker.evaluate({"extra": ""})]
    return distributions


def machine(folder: Path) -> Path:
    """The Python of an environment with exactly what is there, as links to the packages of this one."""
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for distribution in needed(THERE).values():
        for name in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            link = site / name
            if not link.is_symlink():
                link.symlink_to(Path(str(distribution.locate_file(name))))
    return folder / "bin" / "python"


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    try:
        urlopen("https://pypi.org/simple/uv/", timeout=30).close()
    except OSError as error:
        pytest.skip(f"the package index is out of reach: {error}")
    archive = tmp_path / "offline.tar.gz"
    pack(platform.python_version(), f"{platform.machine()}-manylinux_2_28", archive)
    assert archive.stat().st_size < 60 * 2**20
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path / "offline"


@pytest.mark.skipif(sys.platform != "linux", reason="the archive is for Linux")
def test_parts_of_every_kind_run_from_the_archive_alone(unpacked: Path, tmp_path: Path) -> None:
    """The whole rehearsal runs in tests/test_gpu_check.py, where more packages are."""
    names = ["floor float32", "tests", "kernels float32"]
    command = [str(machine(tmp_path / "there")), "-m", "experiments.gpu_check", "--rehearse", "--quiet"]
    command += ["--part", ",".join(names), "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, cwd=unpacked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert (tmp_path / "runs" / f"{folder.name}.tar.gz").stat().st_size < 16_000_000
    stored = json.loads((folder / "gpu-check.json").read_text())["parts"]
    assert [(part["name"], part["status"]) for part in stored] == [(name, "passed") for name in names]
    assert stored[0]["output"]["replay_outcome"]["variant"] == "tape"
