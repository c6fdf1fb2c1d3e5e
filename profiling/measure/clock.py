"""Wall time of device work: the only place that reads a clock around a step, here or at a server.

Torch is imported where a device is waited for: a server's steps are timed without it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from variants.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch.profiler import ProfilerActivity

T = TypeVar("T")


class Clock:
    """Waits for the device before it reads the time, so that queued work is not mistaken for done work."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self.sync: Callable[[], None] = {
            "cuda": torch.cuda.synchronize,
            "mps": torch.mps.synchronize,
        }.get(device.type, lambda: None)

    def each_ms(self, action: Callable[[], object], times: int) -> list[float]:
        """Latency of each of `times` calls, ms, with a sync after every call."""
        self.sync()
        marks = [time.perf_counter_ns()]
        for _ in range(times):
            action()
            self.sync()
            marks.append(time.perf_counter_ns())
        return [(after - before) / 1e6 for before, after in itertools.pairwise(marks)]

    def pipelined_ms(self, action: Callable[[], object], times: int) -> float:
        """Mean over `times` calls, ms, with one sync at the end: the host may run ahead of the device."""
        self.sync()
        start = time.perf_counter_ns()
        for _ in range(times):
            action()
        self.sync()
        return (time.perf_counter_ns() - start) / 1e6 / times


def arrivals(events: Iterable[T]) -> Iterator[tuple[float, T]]:
    """What comes from another machine, each with its arrival in ms since the first was asked for."""
    start = time.perf_counter_ns()
    for event in events:
        yield (time.perf_counter_ns() - start) / 1e6, event


def activities(device: torch.device) -> list[ProfilerActivity]:
    """The activities to record on this device. Raises UserError where the build cannot see it."""
    import torch
    from torch.profiler import ProfilerActivity

    if device.type != "cuda":
        return [ProfilerActivity.CPU]
    if ProfilerActivity.CUDA not in torch.profiler.supported_activities():
        raise UserError("this torch build cannot trace CUDA; install a CUDA build or use --no-trace")
    return [ProfilerActivity.CPU, ProfilerActivity.CUDA]
