"""Where and on what a run was made: machine, model, and what the machine can do."""

from __future__ import annotations

from profiling.results.record.part import Count, Part, Positive, Us
from variants.config import GPTConfig


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
    profiler_event_us: Us | None = None  # what the profiler adds to one event
    graph_kernel_us: Us | None = None  # of a graph node, what its kernel itself takes
