"""Where and on what a run was made: machine, model, and what the machine can do."""

from __future__ import annotations

from profiling.results.record.part import Count, Part, Positive, Us
from variants.config import GPTConfig


class Gpu(Part, frozen=True):
    """What a GPU is and was set to. None is what nobody said."""

    runtime: str | None  # version of CUDA or HIP that torch was built for
    driver: str | None
    capability: str
    multiprocessors: int
    l2_bytes: Count | None
    max_sm_mhz: float | None
    max_memory_mhz: float | None
    power_limit_w: float | None
    mig: str | None  # whether it is a part of a device
    persistence: str | None
    matmul_tf32: bool  # whether float32 products may be of fewer bits
    cudnn_tf32: bool


class Environment(Part, frozen=True):
    """Machine and software: a number without them cannot be compared. None is what could not be seen."""

    device: str
    device_name: str
    cpu: str
    cores: int | None
    threads: int
    simd: str
    memory_bytes: Count
    huge_pages: str | None
    os: str
    python: str
    packages: dict[str, str | None]
    load_at_start: float
    gpu: Gpu | None = None


class Model(Part, frozen=True):
    """`precision` is the first rung's; an experiment that runs no model knows its name only."""

    name: str
    precision: str | None = None
    shape: GPTConfig | None = None


class Peaks(Part, frozen=True):
    """What this machine can do, measured now. None is what could not be measured here."""

    read_gb_per_s: Positive
    matmul_flop_per_s: Positive
    launch_us: Positive
    graph_node_us: Positive | None
    tape_op_us: Positive | None
    profiler_event_us: Us | None = None  # of older records: a duel's trace holds its own
    graph_kernel_us: Us | None = None  # of a graph node, what its kernel itself takes
