"""Compiles the Triton kernels that a study will launch, on all cores, into Triton's cache on disk.

    python -m profiling.measure.ahead --model gpt2 --precision float32 bfloat16 --context 10,100,1000

For the CUDA device of this machine, or with --arch for one that is not here. Prints one JSON object. A study
builds more models than the one it is about, and every size is a kernel of its own. TRITON_INTERPRET must not
be set.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context

import torch
import triton

from profiling.gate.gate import ROWS
from profiling.gate.stress import small_config
from profiling.measure.cases import narrow_config, width_configs
from profiling.measure.models import POSITIONS, Wanted
from profiling.results.record import Workload
from variants.backends.triton_step import aot
from variants.backends.triton_step.aot import Chip, Shape
from variants.command import Parser, run
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError, one_line
from variants.known_configs import KNOWN_CONFIGS, SHAPE

# the longest to compile first
KERNELS = ("one_step", "attend_kernel", "qkv_kernel", "up_kernel", "residual_kernel", "head_kernel")


@dataclass(frozen=True)
class Task:
    """What one process compiles at a time."""

    chip: Chip
    precision: str
    shape: Shape
    kernel: str


@dataclass(frozen=True)
class Built:
    """`kernels` of one task in Triton's cache, after `seconds`; or why not."""

    kernel: str
    kernels: int
    seconds: float
    error: str = ""


def shapes(config: GPTConfig, workload: Workload) -> list[Shape]:
    """Of the models that a study builds: the one it is about, narrow ones, and the small one of the gate."""
    narrow, small = [narrow_config(config), *width_configs(config)], small_config(config)
    studied = Shape(config, workload.batch, workload.buckets(config)[-1])
    return [studied, Shape(small, ROWS, small.n_ctx), *(Shape(c, workload.batch, c.n_ctx) for c in narrow)]


def build(task: Task) -> Built:
    """Compile one kernel; a failure is a result, since the others are still wanted."""
    start = time.perf_counter()
    try:
        kernels = aot.compiled(task.chip, task.precision, task.shape, task.kernel)
    except Exception as error:
        return Built(task.kernel, 0, time.perf_counter() - start, one_line(error))
    return Built(task.kernel, len(kernels), time.perf_counter() - start)


def build_all(tasks: Sequence[Task]) -> Iterator[Built]:
    """On as many processes as there are cores; they end with this one."""
    with get_context("spawn").Pool(min(len(tasks), os.cpu_count() or 1)) as pool:
        yield from pool.imap_unordered(build, tasks)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser("python -m profiling.measure.ahead", (__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--arch", choices=aot.CHIPS, help="to compile for (default: the device of this machine)")
    add("--model", default="gpt2", choices=(*PRESETS, *KNOWN_CONFIGS), help="its shape")
    add("--precision", nargs="+", default=("float32",), choices=aot.PRECISIONS, help="of the weights")
    add("--context", default="500", help="of the study, as numbers with commas")
    add("--steps", type=int, default=10, help="of the study")
    add("--kernel", nargs="+", default=KERNELS, choices=KERNELS, help="these alone")
    arguments = parser.parse_args(argv)
    if triton.knobs.runtime.interpret:
        raise UserError("TRITON_INTERPRET is set: kernels would be interpreted, not compiled")
    workload = Workload(contexts=tuple(map(int, arguments.context.split(","))), steps=arguments.steps)
    name = arguments.model if arguments.model in PRESETS else SHAPE + arguments.model
    config = Wanted(name, torch.float32, torch.device("cpu"), POSITIONS).config
    chip, start = aot.CHIPS[arguments.arch] if arguments.arch else aot.own_chip(), time.perf_counter()
    studied = shapes(config, workload)
    wanted = [(kernel, shape) for kernel in arguments.kernel for shape in studied]
    if "one_step" in arguments.kernel:
        wanted.insert(0, ("one_step", replace(studied[0], stamped=True)))
    tasks = [
        Task(chip, precision, shape, kernel) for kernel, shape in wanted for precision in arguments.precision
    ]
    built = list(build_all(tasks))
    slowest = max(built, key=lambda one: one.seconds)
    outcome = {
        "arch": chip.target.arch,
        "compiled": sum(one.kernels for one in built),
        "seconds": time.perf_counter() - start,
        "slowest": {"kernel": slowest.kernel, "seconds": slowest.seconds},
        "errors": sorted({f"{one.kernel}: {one.error}" for one in built if one.error}),
    }
    print(json.dumps(outcome))
    return int(bool(outcome["errors"]))


if __name__ == "__main__":
    run(main)
