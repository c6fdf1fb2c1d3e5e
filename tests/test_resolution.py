"""What this project asks for can be had from PyPI: each extra, on each Python, for each platform.

A package index of the machine at hand can hide that the pins contradict each other for everybody else. uv
resolves for Pythons and platforms that are not here, and without the configuration of pip or uv that is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.request import urlopen

import pytest

pytest.importorskip("uv", reason="needs the extra `test`")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PINS = ROOT / "constraints.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = ["", *PROJECT["optional-dependencies"]]
INDEX = "https://pypi.org/simple"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LINUX = "x86_64-manylinux_2_28"
OTHERS = ("aarch64-manylinux_2_28", "macos", "windows")
MACOS = "14.0"  # the oldest that torch 2.13 has wheels for
# torch -> the Triton that its CUDA build asks for
PAIRS = {"2.11.0": "3.6.0", "2.12.0": "3.7.0", "2.12.1": "3.7.1", "2.13.0": "3.7.1", "2.14.1": "3.8.0"}
SOURCE_ONLY = "llama-cpp-python"  # its makers publish no wheels to PyPI
PINNED_BY_TORCH = re.compile(r"nvidia-|cuda-toolkit$")


class Unresolvable(Exception):
    """No set of releases satisfies the requirements; the message is uv's."""


@pytest.fixture(scope="module", autouse=True)
def index() -> None:
    try:
        urlopen(f"{INDEX}/uv/", timeout=30).close()
    except OSError as error:
        pytest.skip(f"{INDEX} is out of reach: {error}")


def resolved(python: str, platform: str, extra: str, pins: Path) -> dict[str, str]:
    """package -> version that an installer would take."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--no-config", "--default-index", INDEX]
    command += ["--python", sys.executable, "--python-version", python, "--python-platform", platform]
    command += ["--only-binary", ":all:", "--no-binary", SOURCE_ONLY, "--constraint", str(pins)]
    command += ["--no-header", "--no-annotate", "--quiet", *(("--extra", extra) if extra else ())]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    environment = {**clean, "MACOSX_DEPLOYMENT_TARGET": MACOS}
    done = subprocess.run(
        [*command, "pyproject.toml"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise Unresolvable(done.stderr)
    return pinned(done.stdout)


def pinned(text: str) -> dict[str, str]:
    """The lines `name==version` of a requirements file."""
    pairs = re.findall(r"^([\w.-]+)==(\S+)$", text, flags=re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("python", PYTHONS)
def test_pins_resolve_with_the_cuda_build_of_torch(python: str, extra: str) -> None:
    taken = resolved(python, LINUX, extra, PINS)
    pins = pinned(PINS.read_text("utf-8"))
    assert {"torch", "nvidia-cudnn-cu13"} <= taken.keys()
    assert {name for name in taken.keys() - pins.keys() if not PINNED_BY_TORCH.match(name)} == set()


@pytest.mark.parametrize("platform", OTHERS)
@pytest.mark.parametrize("python", PYTHONS)
def test_pins_resolve_on_other_platforms(python: str, platform: str) -> None:
    assert ("triton" in resolved(python, platform, "test", PINS)) == ("linux" in platform)


@pytest.mark.parametrize(("torch", "triton"), PAIRS.items())
def test_every_torch_of_the_range_takes_its_triton(torch: str, triton: str, tmp_path: Path) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text(f"torch=={torch}\n")
    assert resolved("3.13", LINUX, "test", pins)["triton"] == triton


def test_a_triton_that_torch_does_not_want_is_seen(tmp_path: Path) -> None:
    pins = tmp_path / "constraints.txt"
    pins.write_text(re.sub(r"^triton==.*", "triton==3.9.0", PINS.read_text("utf-8"), flags=re.M))
    with pytest.raises(Unresolvable, match="triton"):
        resolved("3.13", LINUX, "", pins)
