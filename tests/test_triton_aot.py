"""What the compiler makes of the kernels, for GPUs that are not here.

Compiled in a process of its own, since kernels in this one are interpreted. The default run compiles for one
device; the slow ones for all of them, as `python -m variants.backends.triton_step.aot` does.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).parent.parent
KERNELS = ["qkv_kernel", "qkv_kernel1", "attend_kernel", "residual_kernel", "residual_kernel1", "up_kernel"]
KERNELS += ["head_kernel", "one_step"]
REGISTERS = 255  # one program of 8 warps per multiprocessor
SHARED_BYTES = 99 << 10  # what sm_86 gives one program, the least of all
TARGETS = [
    pytest.param(
        arch,
        precision,
        batch,
        marks=() if (arch, precision, batch) == (90, "bfloat16", 1) else pytest.mark.slow,
    )
    for arch in (80, 86, 90, 100)
    for precision in ("float32", "bfloat16", "int8")
    for batch in ((1, 16) if arch == 86 else (1,))
]


@functools.cache
def compiled(
    arch: int | str, precision: str, batch: int, *flags: str, root: Path = ROOT
) -> dict[str, dict[str, Any]]:
    """kernel -> the compiler's report on the package under `root`."""
    command = [sys.executable, "-m", "variants.backends.triton_step.aot", "--json", "--arch", str(arch)]
    command += ["--precision", precision, "--batch", str(batch), *flags]
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row["kernel"]: row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(("arch", "precision", "batch"), TARGETS)
def test_no_spills_and_no_more_registers_than_the_design_has(arch: int, precision: str, batch: int) -> None:
    rows = compiled(arch, precision, batch)
    assert sorted(rows) == sorted(KERNELS)
    for row in rows.values():
        assert row["spills"] == 0, row
        assert row["registers"] <= REGISTERS and row["shared_bytes"] <= SHARED_BYTES, row


@pytest.mark.parametrize(("arch", "precision", "batch"), TARGETS)
def test_weights_are_read_in_wide_loads_that_may_not_be_stale(arch: int, precision: str, batch: int) -> None:
    for name, row in compiled(arch, precision, batch).items():
        narrow_tile = precision == "int8" and name == "residual_kernel"  # 8 rows of 256 bytes: 64-bit loads
        assert row["wide_loads"] >= (0 if narrow_tile else 3), row
        assert row["non_coherent_loads"] == 0, (
            "activations of another program must not come from a stale cache"
        )


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize(
    ("precision", "kernels"),
    [
        ("bfloat16", ["qkv_kernel", "qkv_kernel1"]),
        *(pytest.param(precision, KERNELS, marks=pytest.mark.slow) for precision in ("float32", "int8")),
    ],
)
def test_kernels_compile_for_amd(arch: str, precision: str, kernels: list[str]) -> None:
    """Options that only NVIDIA's compiler knows are not even named there."""
    flags = () if kernels is KERNELS else ("--kernel", kernels[0])
    rows = compiled(arch, precision, 1, *flags)
    assert sorted(rows) == sorted(kernels)
    assert all(row["registers"] > 0 and row["shared_bytes"] <= 64 << 10 for row in rows.values())


@pytest.mark.parametrize(
    ("hip", "capability", "expected"),
    [(None, (8, 6), False), (None, (9, 0), True), ("6.4", (9, 0), False), ("6.4", (9, 4), False)],
)
def test_dependent_launches_are_hopper_s_and_not_amd_s(
    hip: str | None, capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from variants.backends.triton_step.steps import has_dependent_launches

    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_dependent_launches(torch.device("cuda", 0)) is expected
    assert not has_dependent_launches(torch.device("cpu"))


def loads_at_barriers(arch: int, precision: str, batch: int, *flags: str, root: Path = ROOT) -> list[int]:
    """At each of a layer's five barriers, the wide loads between arrival and poll."""
    at_barrier = compiled(arch, precision, batch, *flags, root=root)["one_step"]["prefetched"][:5]
    assert len(at_barrier) == 5
    return at_barrier


@pytest.mark.parametrize(("arch", "precision", "batch"), [t for t in TARGETS if t.values[2] == 1])
def test_weights_of_the_next_phase_are_loaded_between_arrival_and_poll(
    arch: int, precision: str, batch: int
) -> None:
    at_barrier = loads_at_barriers(arch, precision, batch)
    assert sum(loads > 0 for loads in at_barrier) >= 4, at_barrier


def test_loads_that_come_after_the_poll_are_not_counted(tmp_path: Path) -> None:
    """The kernel with every prefetch moved behind its wait: right results, nothing hidden."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "variants", tmp_path / "variants", ignore=ignore)
    file = tmp_path / "variants" / "backends" / "triton_step" / "persistent.py"
    prefetches = r"((?: +(?:first|old)\w* = .+\n)+)( +polls = wait\(.+\n)"
    late, moved = re.subn(prefetches, r"\2\1", file.read_text())
    assert moved == 4
    file.write_text(late)
    at_barrier = loads_at_barriers(90, "bfloat16", 1, "--kernel", "one_step", root=tmp_path)
    assert at_barrier == [0] * 5


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_dependent_launches_load_weights_before_they_wait(precision: str) -> None:
    for name, row in compiled(90, precision, 1).items():
        if name != "one_step":
            assert row["before_wait"] >= 2, row


@pytest.mark.parametrize(("arch", "precision", "batch"), TARGETS)
def test_tensor_cores_multiply_bfloat16_batches_and_nothing_else(
    arch: int, precision: str, batch: int
) -> None:
    for name, row in compiled(arch, precision, batch).items():
        expected = (precision, batch) == ("bfloat16", 16) and name != "attend_kernel"
        assert (row["tensor_core_products"] > 0) == expected, row
