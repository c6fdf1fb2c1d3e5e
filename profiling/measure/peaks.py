"""What this machine can do, measured now: read rate, matmul rate, cost of a launch; and the memory floor.

Bandwidth depends on the working set and on the page size, so the memory floor is the time of reading
exactly the bytes that a step must read, over and over, in the same round as the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from profiling.measure.clock import Clock, activities
from profiling.results.record import Peaks
from variants.backends.backend import why_no_one_launch
from variants.backends.one_launch.library import PlainRead
from variants.executors.capture_rules import CaptureError
from variants.executors.tape import record
from variants.slots.huge_pages import on_huge_pages
from variants.slots.pages import why_no_huge_pages

LARGE_BYTES = 1 << 30  # several times any last-level cache
MATMUL_SIZE = {"cpu": 1024, "cuda": 8192, "mps": 4096}
SMALL_OPS = 200
READS_IN_A_ROW = 10


def peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Rates of this device. None is what could not be measured here."""
    clock = Clock(device)
    read_ms = _median_ms(clock, torch.ones(LARGE_BYTES // 4, device=device).sum, 5)
    product = SquareMatmul(device, dtype)
    node_us, kernel_us = _graph_node_us(clock, device)
    return Peaks(
        read_gb_per_s=LARGE_BYTES / read_ms / 1e6,
        matmul_flop_per_s=product.flops / _median_ms(clock, product, 5) * 1e3,
        launch_us=_launch_us(clock, device),
        graph_node_us=node_us,
        tape_op_us=_tape_op_us(clock, device),
        graph_kernel_us=kernel_us,
    )


def _median_ms(clock: Clock, action: Callable[[], object], times: int) -> float:
    """Median ms after one untimed call."""
    action()
    return median(clock.each_ms(action, times))


def _launch_us(clock: Clock, device: torch.device) -> float:
    """Time of one op on one element, issued back to back, us: what a launch costs at least."""
    one = torch.zeros(1, device=device)
    return min(clock.pipelined_ms(lambda: one.add_(1), SMALL_OPS) for _ in range(5)) * 1e3


def _graph_node_us(clock: Clock, device: torch.device) -> tuple[float | None, float | None]:
    """(one such op as a node of a CUDA graph, what its kernel itself takes): the rest is the gap."""
    if device.type != "cuda":
        return None, None
    one = torch.zeros(1, device=device)
    graph = torch.cuda.CUDAGraph()
    one.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(SMALL_OPS):
            one.add_(1)
    node_us = min(clock.pipelined_ms(graph.replay, 5) for _ in range(5)) * 1e3 / SMALL_OPS
    with torch.profiler.profile(activities=activities(device)) as profile:
        graph.replay()
        clock.sync()
    return node_us, _kernel_us(profile.events())


def _kernel_us(events: Iterable[Any]) -> float | None:
    """Median duration of the device's events; None where the profiler saw none."""
    on_device = (event for event in events if event.device_type == DeviceType.CUDA)
    durations = [event.time_range.elapsed_us() for event in on_device]
    return median(durations) if durations else None


def _tape_op_us(clock: Clock, device: torch.device) -> float | None:
    """Time that the tape adds to an op, us: the cost of `empty` calls, which compute nothing."""

    def step(token: Tensor) -> Tensor:
        for _ in range(SMALL_OPS):
            token = torch.empty_like(token)
        return token

    try:
        tape = record(step, torch.zeros(1, 1, dtype=torch.int64, device=device), lambda: None)
    except CaptureError:
        return None
    return min(clock.pipelined_ms(tape.replay, 5) for _ in range(5)) * 1e3 / SMALL_OPS


class SquareMatmul:
    """A product of two square matrices that is as fast as this device computes."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        n = MATMUL_SIZE[device.type]
        self.a, self.b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        self.flops = 2 * n**3

    def __call__(self) -> Tensor:
        return self.a @ self.b


class FloorReader:
    """Reads the bytes of a step with all threads, over and over: the memory floor.

    `weights` are read where they lie, since the same number of bytes elsewhere may be read faster or slower;
    the keys and values from a buffer. Where only torch can read, which launches an op per tensor, everything
    comes from the buffer.
    """

    def __init__(self, weights: Sequence[Tensor], most_bytes: int, device: torch.device, pages: str) -> None:
        """At most `most_bytes` with the weights; `pages` is the page size of the buffer."""
        ours = why_no_one_launch(device.type) is None
        self.weights = list(weights) if ours else []
        self.reading: Callable[[list[Tensor]], Callable[[], object]]
        self.reading = PlainRead if ours else lambda parts: parts[0].sum
        self.clock, self.device = Clock(device), device
        ones = torch.ones(1, device=device).expand(-(-self._beside(most_bytes) // 4))
        (self.buffer,) = on_huge_pages([ones]) if pages == "huge" else [ones.contiguous()]

    def _beside(self, n_bytes: int) -> int:
        return n_bytes - sum(weight.nbytes for weight in self.weights)

    def read_ms(self, n_bytes: int, warm_up: int, times: int) -> list[float]:
        """Times, ms, of reading the same `n_bytes` again and again, after `warm_up` untimed reads."""
        parts = [*self.weights, self.buffer[: self._beside(n_bytes) // 4]]
        read = self.reading(parts)
        self.clock.each_ms(read, warm_up)
        return times_ms(self.clock, self.device, read, times)


def times_ms(clock: Clock, device: torch.device, read: Callable[[], object], times: int) -> list[float]:
    """`times` samples of one read. A GPU's are of several in a row: it reads a step's bytes in the time that
    a sync and a launch from Python take, and the step that is held against them pays for one of each."""
    if device.type != "cuda":
        return clock.each_ms(read, times)
    return [clock.pipelined_ms(read, READS_IN_A_ROW) for _ in range(times)]


def page_sizes(device: torch.device) -> tuple[str, ...]:
    """The page sizes whose memory floor can be read here."""
    return ("default",) if why_no_huge_pages(device.type) else ("default", "huge")
