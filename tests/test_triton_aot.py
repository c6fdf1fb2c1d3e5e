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
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
from triton.backends.compiler import GPUTarget

from profiling.gate import Gate
from profiling.measure import ahead
from profiling.measure.runner import Runner
from profiling.results.folder import RunFolder
from profiling.results.record import FloorRecord, GateResult, Workload
from tests.floor_run import GOLDEN
from variants.backends.backend import FUSED_TRITON, ONE_LAUNCH
from variants.backends.triton_step import aot, ops, steps
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import random_model
from variants.option import anywhere

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


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 86, 90, 100])
@pytest.mark.parametrize("model", ["smollm2-135m", "qwen3-0.6b", "llama-3.2-1b"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_llama_s_kind_spills_nothing_either(model: str, arch: int, precision: str) -> None:
    rows = compiled(arch, precision, 1, "--model", model)
    assert sorted(rows) == sorted(KERNELS)
    for row in rows.values():
        assert row["spills"] == 0 and row["registers"] <= REGISTERS, row
        assert row["shared_bytes"] <= SHARED_BYTES and row["non_coherent_loads"] == 0, row


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
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert steps.has_dependent_launches(torch.device("cuda", 0)) is expected
    assert not steps.has_dependent_launches(torch.device("cpu"))


@pytest.mark.parametrize(("arch", "precision", "batch"), TARGETS)
def test_the_one_launch_asks_ahead_where_the_second_level_cache_holds_it(
    arch: int, precision: str, batch: int
) -> None:
    """A hint per matrix and before the first layer, or per thread and line; none on an A40."""
    for name, row in compiled(arch, precision, batch).items():
        hints = {80: 5, 86: 0, 90: 5, 100: 5}[arch] if name == "one_step" else 0
        assert (row["cache_hints"] >= hints) if arch == 80 else (row["cache_hints"] == hints), row
        assert row["clock_reads"] == 0, row


@pytest.mark.slow
def test_stamps_cost_a_clock_read_each_and_spill_nothing() -> None:
    row = compiled(90, "bfloat16", 1, "--kernel", "one_step", "--stamped")["one_step"]
    assert row["clock_reads"] == 2 + 10 and row["spills"] == 0 and row["registers"] <= REGISTERS


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
    between = r"(?: +(?:#|more|next_|ahead).+\n)*"  # hints to the second-level cache stay where they are
    prefetches = rf"((?: +(?:first|old)\w* = .+\n)+)({between} +polls = wait\(.+\n){between}"
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


# -- compiled ahead: what a study asks for, from a process that knows nothing of this one ------------------

LAUNCHING = """
import torch
from variants.backends.triton_step import aot, ops, steps
from variants.config import PRESETS
from variants.model import random_model
from variants.slots.static_cache import StaticCache

launch = ops._launch
ops._launch = lambda kernel, *rest, **more: kernel.__name__ == "{kernel}" and launch(kernel, *rest, **more)
model = random_model(PRESETS["tiny"])
cache = StaticCache(model.config, 1, model.config.n_ctx, model.like)
with torch.inference_mode(), aot.launching(aot.CHIPS["90"]) as launched:
    steps.TritonStep(model, cache, programs=132, pdl=True).step(torch.zeros(1, 1, dtype=torch.int64))
print(*launched)
"""


@pytest.mark.slow
def test_what_is_compiled_ahead_is_what_a_launch_finds(tmp_path: Path) -> None:
    """A later process launches as on a device, up to the driver's call: its cache gains no file."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    building = ["-m", "profiling.measure.ahead", "--arch", "90", "--model", "tiny", "--context", "5"]

    def run(*command: str) -> tuple[str, set[Path]]:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout, {file for file in tmp_path.rglob("*") if file.is_file()}

    outcome, built = run(*building, "--kernel", "attend_kernel")
    assert json.loads(outcome)["compiled"] == 3 and len(built) >= 3
    launched, after = run("-c", LAUNCHING.format(kernel="attend_kernel"))
    assert launched.split() == ["attend_kernel"] * 2 and after == built
    launched, after = run("-c", LAUNCHING.format(kernel="up_kernel"))
    assert launched.split() == ["up_kernel"] * 2 and after > built, "what was not compiled ahead would show"


def asked_of(kernel: Any, *arguments: Any, **options: Any) -> tuple[object, ...]:
    """What a launch is compiled for: types and alignment of tensors, everything else by value."""
    kinds = ((a.dtype, a.data_ptr() % 16) if isinstance(a, torch.Tensor) else a for a in arguments)
    return (kernel.__name__, *kinds, *sorted(options.items()))


def one_step_passes(gate: Gate, decoder: Decoder, names: object) -> GateResult:
    """Instead of a proof: nothing is computed here."""
    decoder.prefill(torch.ones(decoder.batch, 1, dtype=torch.int64))
    decoder.advance()
    return GateResult()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_study_launches_what_was_compiled_ahead(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the model itself, of the narrow ones and of the gate's: neither more nor less."""
    asked: set[tuple[object, ...]] = set()
    monkeypatch.setattr(ops, "_launch", lambda *launch, **options: asked.add(asked_of(*launch, **options)))
    monkeypatch.setattr(Gate, "_run", one_step_passes)
    makers = ((FUSED_TRITON, steps.TritonStep), (ONE_LAUNCH, steps.PersistentStep))
    sdpa = ladder(precision)["sdpa"]
    rungs = [
        sdpa.then(
            made.__name__,
            "for this test",
            backend=replace(
                option, build=lambda m, _, made=made: made(m.model, m.static_cache()), why_not=anywhere
            ),
        )
        for option, made in makers
    ]
    config, workload = PRESETS["tiny"], Workload(contexts=(5, 40), rounds=1, steps=2, prompt=20)
    run = RunFolder.create(tmp_path, FloorRecord, "cpu")
    run.update(peaks=RunFolder.load(GOLDEN, FloorRecord).record.peaks)
    model = random_model(config, dtype=getattr(torch, precision))
    runner = Runner(run, workload, model, [sdpa, *rungs])
    runner.prepare()
    assert all(run.record.variants[rung.name].status == "proven" for rung in rungs)

    chip = aot.Chip(GPUTarget("cuda", 80, 32), 1, 0)  # the interpreter has one program and no early launch
    built: set[tuple[object, ...]] = set()
    for shape in ahead.shapes(config, workload):
        aot.launches(chip, precision, shape, lambda *launch, **more: built.add(asked_of(*launch, **more)))
    assert asked == built and len({launch[0] for launch in built}) == 6


def test_the_driver_names_the_target_that_is_compiled_for() -> None:
    """The cache's key holds it: 90, where the assembler is told 90a."""
    from triton.backends.nvidia.driver import CudaDriver

    for chip in aot.CHIPS.values():
        if chip.target.backend == "cuda":
            capability = divmod(int(chip.target.arch), 10)
            asked = SimpleNamespace(
                get_current_device=lambda: 0, get_device_capability=lambda device, c=capability: c
            )
            assert CudaDriver.get_current_target(asked) == chip.target
