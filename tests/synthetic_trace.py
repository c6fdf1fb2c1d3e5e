"""Builds Kineto traces whose truth is known: every time is given in integer nanoseconds."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOST_PID, HOST_TID = 4000, 4000


@dataclass
class Synthetic:
    """Collects events. `numbers`: how times are written: "float" (us), "int" (us), "text" (us with three
    decimals).
    """

    numbers: str = "float"
    rocm: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 100

    def _time(self, ns: int) -> Any:
        if self.numbers == "text":
            return f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"
        return ns // 1000 if self.numbers == "int" else ns / 1000

    def event(self, cat: str, name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
        event = {"ph": "X", "cat": cat, "name": name, "pid": HOST_PID, "tid": HOST_TID}
        event |= {"ts": self._time(start), "dur": self._time(end - start)} | more
        self.events.append(event)
        return event

    def step(self, start: int, end: int, name: str = "ProfilerStep#1", **more: Any) -> None:
        self.event("user_annotation", name, start, end, **more)

    def op(self, name: str, start: int, end: int, **more: Any) -> None:
        self.event("cpu_op", name, start, end, **more)

    def call(self, name: str, start: int, end: int, **more: Any) -> int:
        """A runtime call; returns its correlation id."""
        self.correlation += 1
        args = {"correlation": self.correlation} | more.pop("args", {})
        self.event("cuda_runtime", self._vendor(name), start, end, args=args, **more)
        return self.correlation

    def _vendor(self, name: str) -> str:
        return name.replace("cuda", "hip") if self.rocm else name

    def work(
        self,
        correlation: int,
        start: int,
        end: int,
        name: str = "gemm",
        cat: str = "kernel",
        device: int = 0,
        stream: int = 7,
    ) -> None:
        args = {"device": device, "stream": stream, "correlation": correlation}
        self.event(cat, name, start, end, pid=device, tid=stream, args=args)

    def launch(self, call: tuple[int, int], kernel: tuple[int, int], name: str = "gemm", **more: Any) -> int:
        """One launch call and the kernel that it starts."""
        correlation = self.call("cudaLaunchKernel", *call)
        self.work(correlation, *kernel, name=name, **more)
        return correlation

    def graph(
        self, call: tuple[int, int], kernels: list[tuple[int, int]], name: str = "node", **more: Any
    ) -> int:
        correlation = self.call("cudaGraphLaunch", *call)
        for index, kernel in enumerate(kernels):
            self.work(correlation, *kernel, name=f"{name}_{index}", **more)
        return correlation

    def text(self, indent: int | None = None) -> bytes:
        meta = {"schemaVersion": 1, "deviceProperties": [], "host_name": "secret-host"}
        return json.dumps(
            meta | {"traceEvents": self.events, "traceName": "/home/me/t.json"}, indent=indent
        ).encode()

    def write(self, path: Path, indent: int | None = None) -> Path:
        """To a file, gzip where its name ends in .gz."""
        text = self.text(indent)
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
        return path


def eager(
    steps: int = 4, kernels: int = 10, kernel_ns: int = 3_000, host_ns: int = 20_000, **more: Any
) -> Synthetic:
    """A launch-bound decode loop: per step `kernels` kernels, `host_ns` of host time ahead of each launch."""
    trace = Synthetic(**more)
    at = 1_000_000
    for number in range(steps):
        begin = at
        for k in range(kernels):
            trace.op("aten::mm", at + 1_000, at + host_ns + 4_000)
            call = (at + host_ns, at + host_ns + 4_000)
            trace.launch(call, (call[1] + 1_000, call[1] + 1_000 + kernel_ns), name=f"kernel_{k}")
            at = call[1]
        trace.call("cudaStreamSynchronize", at + 500, at + 1_000 + kernel_ns + 2_000)
        at += 1_000 + kernel_ns + 4_000
        trace.step(begin, at, f"ProfilerStep#{number}")
        at += 1_000
    return trace


def replayed(steps: int = 4, kernels: int = 10, kernel_ns: int = 3_000, **more: Any) -> Synthetic:
    """The same kernels as `eager`, replayed by one graph launch per step."""
    trace = Synthetic(**more)
    at = 1_000_000
    for number in range(steps):
        first = at + 8_000
        nodes = [(first + k * kernel_ns, first + (k + 1) * kernel_ns) for k in range(kernels)]
        correlation = trace.call("cudaGraphLaunch", at + 1_000, at + 6_000)
        for k, (start, end) in enumerate(nodes):
            trace.work(correlation, start, end, name=f"kernel_{k}")
        end = nodes[-1][1] + 3_000
        trace.call("cudaStreamSynchronize", at + 7_000, end - 500)
        trace.step(at, end, f"ProfilerStep#{number}")
        at = end + 1_000
    return trace


def on_host(numbers: str = "float") -> Synthetic:
    """Two steps of nested ops on a CPU."""
    trace = Synthetic(numbers=numbers)
    for number, at in enumerate((1_000_000, 1_100_000)):
        trace.op("aten::linear", at + 5_000, at + 40_000)
        trace.op("aten::t", at + 6_000, at + 8_000)
        trace.op("aten::addmm", at + 10_000, at + 39_000)
        trace.op("aten::view", at + 50_000, at + 50_500)
        trace.step(at, at + 90_000, f"ProfilerStep#{number}")
    return trace
