"""The one-launch kernels build for several machines, fail in one line, and pass the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from variants import build_cache
from variants.backends import backend
from variants.backends.backend import why_no_one_launch
from variants.backends.one_launch import library
from variants.errors import UserError

if why_no_one_launch("cpu"):
    pytest.skip(str(why_no_one_launch("cpu")), allow_module_level=True)


def test_no_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build_cache, "compiler", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "install g++" in str(why_no_one_launch("cpu"))
    assert "CPU" in str(why_no_one_launch("cuda"))
    with pytest.raises(UserError, match=r"no C\+\+ compiler"):
        library.load.__wrapped__()
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_is_one_line_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "op.cpp").write_text("int broken(")
    monkeypatch.setattr(library, "SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"building the one-launch kernels failed: .*error"):
        library.load.__wrapped__()
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def test_a_build_that_was_begun_is_the_one_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "op.cpp").write_text("int whole() { return 1; }")
    monkeypatch.setattr(library, "SOURCES", sources)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    loaded: list[str] = []
    monkeypatch.setattr(library.torch.ops, "load_library", loaded.append)
    backend.ONE_LAUNCH.begin("cpu")
    backend.ONE_LAUNCH.begin("cpu")
    library.load.__wrapped__()
    backend.ONE_LAUNCH.begin("cpu")  # there already
    assert [Path(path).name for path in loaded] == [library.LIBRARY]
    assert capfd.readouterr().err.count("building") == 1
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [library.LIBRARY]


def test_a_build_is_found_by_all_it_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    base = build_cache.folder("kind", "part")
    assert build_cache.folder("kind", "part") == base
    others = [build_cache.folder("kind", "other"), build_cache.folder("kind", "pa", "rt")]
    for toolchain in (("g++ 13", "2.13", "avx2"), ("g++ 12", "2.14", "avx2"), ("g++ 12", "2.13", "avx512")):
        monkeypatch.setattr(build_cache, "toolchain", lambda toolchain=toolchain: toolchain)
        others.append(build_cache.folder("kind", "part"))
    assert len({base, *others}) == 6


MACHINES = {
    "plain x86-64": ["-march=x86-64"],
    "AVX-512": ["-march=skylake-avx512"],
    "AVX-512 with VNNI and bfloat16": ["-march=sapphirerapids"],
    "AVX2 with VNNI": ["-march=alderlake"],
}


def compile_check(source: str, output: Path, flags: list[str], link: tuple[str, ...] = ()) -> None:
    done = subprocess.run(
        library.compile_command(source, output, flags, link), capture_output=True, text=True, timeout=600
    )
    missing = "unrecognized" in done.stderr or "cannot find" in done.stderr or "bad value" in done.stderr
    if done.returncode and missing:
        pytest.skip(f"this toolchain lacks {flags}: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("flags", MACHINES.values(), ids=MACHINES.keys())
def test_compiles_for_other_machines(flags: list[str], tmp_path: Path) -> None:
    """What runs here is one choice of instructions; the others must at least make an object."""
    quiet = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # GCC 12 warns inside its own AVX-512 header
    flags = [*flags, "-O1", "-fopenmp-simd", "-c", "-Wall", "-Werror", *quiet]
    compile_check("selfcheck.cpp", tmp_path / "x.o", flags)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(sanitizer: str, tmp_path: Path) -> None:
    """No undefined read and no data race, on odd sizes, with one thread and several."""
    program = tmp_path / "selfcheck"
    flags = ["-O1", "-g", "-march=native", "-fopenmp-simd", "-pthread", f"-fsanitize={sanitizer}"]
    compile_check("selfcheck.cpp", program, [*flags, "-fno-sanitize-recover=all"], library.LINK)
    done = subprocess.run(
        [program], capture_output=True, text=True, timeout=600, env={"ASAN_OPTIONS": "detect_leaks=0"}
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("this kernel's address layout is not supported by the sanitizer")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same with") == 7  # formats of weights and caches
