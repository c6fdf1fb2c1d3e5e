"""What does the compiler make of the kernels? Compiles them for GPUs that are not here and reads its output.

    python -m variants.backends.triton_step.aot [--arch 80 gfx942] [--precision float32 int8] [--json]

The backends themselves are run, with a driver that names a target and launches nothing, so what is compiled
is what a device would be asked for: same arguments, alignment and options. Needs no GPU; the assembler and
disassembler are in Triton's wheel. TRITON_INTERPRET must not be set.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel
from triton.runtime import driver

from variants.backends.triton_step import ops, plan, steps
from variants.command import Parser, run
from variants.config import PRESETS, GPTConfig
from variants.described import gpt_config
from variants.hf_config import HfConfig
from variants.known_configs import KNOWN_CONFIGS
from variants.model import GPT
from variants.option import declared
from variants.slots.precision import PrecisionOption
from variants.slots.static_cache import StaticCache

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


@dataclass(frozen=True)
class Chip:
    """What is compiled for, and how many programs are resident there."""

    target: GPUTarget
    multiprocessors: int
    cache_bytes: int  # of the second level

    @property
    def dependent_launches(self) -> bool:
        """Whether a kernel may start before its predecessor has ended (compute capability 9.0 up)."""
        return self.target.backend == "cuda" and int(self.target.arch) >= 90


CHIPS = {
    "80": Chip(GPUTarget("cuda", 80, 32), 108, 40 << 20),  # A100
    "86": Chip(GPUTarget("cuda", 86, 32), 84, 6 << 20),  # A40
    "90": Chip(GPUTarget("cuda", 90, 32), 132, 50 << 20),  # H100 and H200
    "100": Chip(GPUTarget("cuda", 100, 32), 148, 126 << 20),  # B200
    "gfx942": Chip(GPUTarget("hip", "gfx942", 64), 304, 0),  # MI300X
    "gfx1100": Chip(GPUTarget("hip", "gfx1100", 32), 96, 0),  # RX 7900 XTX
}  # AMD's compilers know none of the hints to a cache
PRECISIONS = ("float32", "bfloat16", "int8")
VOCABULARY = 8192  # of a known shape: the head's kernel has a loop over its rows


def config_of(name: str) -> GPTConfig:
    """A preset or a known shape, of two layers: more run the same kernels."""
    if name in PRESETS:
        return replace(PRESETS[name], n_layer=2)
    raw = KNOWN_CONFIGS[name] | {"num_hidden_layers": 2, "vocab_size": VOCABULARY}
    return gpt_config(HfConfig.of(raw, name), positions=Shape.capacity)


def own_chip() -> Chip:
    """The CUDA device of this machine, as the launcher sees it."""
    device = torch.device("cuda")
    target, cache_bytes = driver.active.get_current_target(), 0
    if target.backend == "cuda":
        cache_bytes = torch.cuda.get_device_properties(device).L2_cache_size
    return Chip(target, steps.resident_programs(device), cache_bytes)


class NamedTarget:
    """Stands in for a driver. The launcher keeps kernels by device number, so every chip has its own."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip

    def get_current_target(self) -> GPUTarget:
        return self.chip.target

    def get_current_device(self) -> int:
        return hash(self.chip)

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def launching(chip: Chip) -> Iterator[list[str]]:
    """A launch within it does what Triton does on the host, up to the driver's call, and adds its name."""
    launched: list[str] = []

    def load_nothing(kernel: Any) -> None:
        kernel._run, kernel.function = lambda *arguments: launched.append(kernel.name), 0

    active, real = driver._active, CompiledKernel._init_handles
    driver.set_active(NamedTarget(chip))
    CompiledKernel._init_handles = load_nothing
    try:
        yield launched
    finally:
        driver._active, CompiledKernel._init_handles = active, real


def empty_model(config: GPTConfig, precision: str) -> GPT:
    """A model of zeros."""
    with torch.device("meta"):
        model = GPT(config)
    model = model.to_empty(device="cpu").requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    return declared(PrecisionOption)[precision].build(model)


@dataclass(frozen=True)
class Shape:
    """What a step's kernels depend on beside chip and precision."""

    config: GPTConfig
    batch: int = 1
    capacity: int = 1024
    stamped: bool = False


def launches(chip: Chip, precision: str, shape: Shape, launch: Callable[..., None]) -> None:
    """Every launch of one step of either backend goes to `launch(kernel, programs, ...)` and to no device."""
    active, real = driver._active, ops._launch
    driver.set_active(NamedTarget(chip))
    ops._launch = launch
    try:
        model, programs = empty_model(shape.config, precision), chip.multiprocessors
        cache = StaticCache(shape.config, shape.batch, shape.capacity, model.like)
        token = torch.zeros(shape.batch, 1, dtype=torch.int64)
        with torch.inference_mode():
            steps.TritonStep(model, cache, programs=programs, pdl=chip.dependent_launches).step(token)
            ahead = plan.ahead(steps.largest_matrix_bytes(model), chip.cache_bytes, chip.dependent_launches)
            one = steps.PersistentStep(model, cache, resident=programs, ahead=ahead, stamped=shape.stamped)
            one.step(token)
    finally:
        driver._active, ops._launch = active, real


def compiled(chip: Chip, precision: str, shape: Shape, only: str | None = None) -> dict[str, Any]:
    """Every kernel of both backends by name, compiled into Triton's cache; of those named `only`."""
    by_name: dict[str, Any] = {}

    def compile_only(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
        if only not in (None, kernel.__name__):
            return
        done = kernel.warmup(*arguments, grid=(programs,), num_warps=plan.WARPS, **options)
        if not any(done is kernel for kernel in by_name.values()):
            number = sum(name.startswith(kernel.__name__) for name in by_name) or ""
            by_name[f"{kernel.__name__}{number}"] = done

    launches(chip, precision, shape, compile_only)
    return by_name


def disassemble(kernel: Any) -> tuple[str, str]:
    """(resource usage, machine code) as cuobjdump prints them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage, code = (
            subprocess.run([CUOBJDUMP, option, file.name], capture_output=True, text=True, check=True)
            for option in ("-res-usage", "-sass")
        )
    return usage.stdout + usage.stderr, code.stdout


def memory_instructions(code: str) -> list[str]:
    """Loads, stores, atomics, fences and waits in program order, by opcode."""
    lines = re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", code)
    return [op for op in lines if re.match(r"LDG|LDL|STL|STG|RED|ATOM|CCTL|BAR|ACQBULK", op)]


def is_wide(op: str) -> bool:
    """Whether an opcode loads 16 bytes per thread."""
    return op.startswith("LDG") and ".128" in op


def prefetched(code: str) -> list[int]:
    """For each arrival at the grid barrier, the 128-bit loads before the first poll.

    A poll is an atomic that Triton turns into a load that no cache answers (seen from 3.6 to 3.9).
    """
    loads: list[int] = []
    counting = False
    for op in memory_instructions(code):
        if op.startswith("RED"):  # an arrival's result is unused, so it becomes a reduction
            loads.append(0)
            counting = True
        elif op.startswith(("ATOM", "LDG.E.STRONG.GPU")):
            counting = False
        elif counting and is_wide(op):
            loads[-1] += 1
    return loads


def before_wait(code: str) -> int | None:
    """128-bit loads before a dependent launch waits for its predecessor; None if it does not wait."""
    ops_in_order = memory_instructions(code)
    if "ACQBULK" not in ops_in_order:
        return None
    return sum(is_wide(op) for op in ops_in_order[: ops_in_order.index("ACQBULK")])


def report(kernel: Any) -> dict[str, Any]:
    """Numbers of a compiled kernel by name: registers and shared bytes, spills, loads, products (counts)."""
    if "amdgcn" in kernel.asm:
        return _report_amd(kernel)
    usage, code = disassemble(kernel)
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    instructions = memory_instructions(code)
    return {
        "registers": numbers["REG"],
        "spills": sum(op.startswith(("LDL", "STL")) for op in instructions),
        "shared_bytes": kernel.metadata.shared,
        "wide_loads": sum(map(is_wide, instructions)),
        "loads": sum(op.startswith("LDG") for op in instructions),
        "non_coherent_loads": kernel.asm["ptx"].count("ld.global.nc"),
        "prefetched": prefetched(code),
        "before_wait": before_wait(code),
        "tensor_core_products": len(re.findall(r"\b[A-Z]*MMA\.", code)),
        "cache_hints": len(re.findall(r"\b(?:UBLKPF\.L2|CCTL\.E\.PF2)\b", code)),
        "clock_reads": code.count("SR_GLOBALTIMERLO"),
    }


def _report_amd(kernel: Any) -> dict[str, Any]:
    """Registers and spills per thread and bytes of shared memory: what an AMD kernel's assembly says."""
    names = r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s+(\d+)"
    counts = {name: int(value) for name, value in re.findall(names, kernel.asm["amdgcn"])}
    return {
        "registers": counts["vgpr_count"],
        "spills": counts["vgpr_spill_count"] + counts["sgpr_spill_count"],
        "shared_bytes": kernel.metadata.shared,
    }


def rows(
    arches: list[str], precisions: list[str], shape: Shape, only: str | None
) -> Iterator[dict[str, Any]]:
    """A row of the report for each kernel, by architecture and precision."""
    for arch in arches:
        for precision in precisions:
            for name, kernel in compiled(CHIPS[arch], precision, shape, only).items():
                what = {"kernel": name, "arch": arch, "precision": precision, "batch": shape.batch}
                yield {**what, **report(kernel)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser("python -m variants.backends.triton_step.aot", (__doc__ or "").splitlines()[0])
    parser.add_argument("--arch", nargs="+", default=tuple(CHIPS), choices=CHIPS, help="to compile for")
    parser.add_argument(
        "--precision", nargs="+", default=tuple(PRECISIONS), choices=PRECISIONS, help="of the model"
    )
    models = (*PRESETS, *KNOWN_CONFIGS)
    parser.add_argument("--model", default="gpt2", choices=models, help="its sizes, of two layers")
    parser.add_argument("--batch", type=int, default=1, help="rows decoded together")
    parser.add_argument("--kernel", metavar="NAME", help="that one alone, one_step for example")
    parser.add_argument("--stamped", action="store_true", help="the one launch with its clock stamps")
    parser.add_argument("--json", action="store_true", help="one JSON object per kernel instead of a table")
    arguments = parser.parse_args(argv)
    shape = Shape(config_of(arguments.model), arguments.batch, stamped=arguments.stamped)
    kernels = rows(arguments.arch, arguments.precision, shape, arguments.kernel)
    if arguments.json:
        for row in kernels:
            print(json.dumps(row), flush=True)
        return
    from rich.console import Console
    from rich.table import Table

    table, collected = Table(title=f"Triton {triton.__version__}, batch {arguments.batch}"), list(kernels)
    columns = max(map(list, collected), key=len, default=[])  # AMD's assembly says less
    for column in columns:
        table.add_column(column)
    for row in collected:
        table.add_row(*(str(row.get(column, "-")) for column in columns))
    Console(width=200).print(table)


if __name__ == "__main__":
    run(main)
