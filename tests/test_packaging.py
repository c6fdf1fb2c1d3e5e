"""Wheel and sdist hold all that runs need: built, installed into a fresh environment, used elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("variants", "profiling", "experiments", "reports")

pytestmark = pytest.mark.slow


def sources() -> set[str]:
    """What git tracks below the packages, records of published runs aside."""
    listed = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in listed.stdout.splitlines() if not name.startswith("reports/published/")}


def checked(command: list[str], cwd: Path, **environment: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env={**clean, **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    pytest.importorskip("build", reason="needs the extra `test`")
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout")
    out = tmp_path_factory.mktemp("dist")
    clone = tmp_path_factory.mktemp("clone") / "decode-floor"  # setuptools leaves files beside what it builds
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    checked([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)], clone)
    return out


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory) -> Path:
    """Folder of commands of a fresh environment; the third-party packages are those of this one."""
    home = tmp_path_factory.mktemp("fresh") / "env"
    venv.create(home, with_pip=True)
    commands = home / ("Scripts" if os.name == "nt" else "bin")
    (wheel,) = dist.glob("*.whl")
    python = str(commands / "python")
    checked([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)], home)
    site = checked([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], home).strip()
    # added without its own .pth files, so that an editable install of this project stays out
    (Path(site) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return commands


def test_wheel_holds_every_source_and_nothing_else(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == sources()


def test_sdist_holds_sources_docs_and_tests(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= sources() | {
        "pyproject.toml",
        "constraints.txt",
        "Makefile",
        "install/sizes.json",
        "docs/index.md",
        "examples/plugin/lists.py",
        "tests/conftest.py",
    }


def test_installed_command_measures_and_reports_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    command = str(installed / "decode-floor")
    assert "throughput" in checked([command], tmp_path)
    assert "onelaunch" in checked([command, "floor", "--list"], tmp_path)
    small = ["--model", "tiny", "--context", "6,20", "--rounds", "3", "--quick", "--variant", "tape"]
    checked([command, "floor", *small, "--quiet"], tmp_path, OMP_NUM_THREADS="1")
    (run,) = (tmp_path / "runs").iterdir()
    (run / "report.html").unlink()
    checked([command, "report", str(run)], tmp_path)
    assert "<svg" in (run / "report.html").read_text()
    where = "import variants; print(variants.__file__)"
    assert str(ROOT) not in checked([str(installed / "python"), "-c", where], tmp_path)


def test_installed_command_finds_the_sources_of_the_kernel(installed: Path, tmp_path: Path) -> None:
    where = "files('variants.backends.one_launch') / 'csrc' / 'op.cpp'"
    look = f"from importlib.resources import files; print(({where}).is_file())"
    assert checked([str(installed / "python"), "-c", look], tmp_path).strip() == "True"


@pytest.mark.parametrize(
    ("words", "says"), [(["nothing"], "no experiment is named nothing"), (["view"], "RUN|TRACE")]
)
def test_bad_commands_are_one_line(words: list[str], says: str, installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "decode-floor"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and says in done.stderr and len(done.stderr.splitlines()) == 1
