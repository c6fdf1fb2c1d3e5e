"""One decode step as a CUDA graph.

Token, position and length live in device memory and the step itself advances them, so a replay takes
nothing from the host. What a capture forbids is looked for first with rules that name the operation; what
only CUDA can refuse is named by a second, watched capture.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from variants.executors.capture_rules import CaptureError, check_capturable
from variants.executors.executor import CompiledStep, Executor, Step, WarmUp

WARM_UP_STEPS = 3  # library handles and workspaces must exist before the capture


class Graphed:
    """A CUDA graph over another executor's compiled step. All buckets share one memory pool."""

    def __init__(self, inner: Executor) -> None:
        self.log: list[WarmUp] = []
        self.inner = inner
        self.pool: Any = None

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        start = time.perf_counter()
        self.pool = self.pool or torch.cuda.graph_pool_handle()
        graph = capture(step, self.inner.build(step, token, restore), token, restore, self.pool)
        self.log.append(WarmUp(time.perf_counter() - start, {"graph pool": graph.pool_bytes}))
        return graph.replay


@dataclass
class CapturedStep:
    """A graph, its output [B,V] (overwritten by every replay) and the bytes its pool grew by."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor
    pool_bytes: int

    def replay(self) -> Tensor:
        self.graph.replay()
        return self.logits


def capture(
    step: Step,
    run: Callable[[], Tensor],
    token: Tensor,
    restore: Callable[[], None],
    pool: Any,
) -> CapturedStep:
    """Capture `run`, the compiled step of `step(token)`, into a graph on the shared `pool`.

    Raises CaptureError naming the operation; a failed capture releases what it had taken.
    """
    check_capturable(step, token, restore)
    device = token.device
    side = torch.cuda.Stream(device)
    _warm_up(run, restore, side)
    torch.cuda.empty_cache()  # the capture does it too: what the warm-up left would count against the pool
    before = torch.cuda.memory_reserved(device)
    graph = torch.cuda.CUDAGraph()
    try:
        logits = _record(graph, run, side, pool)
    except Exception as error:
        _release(graph, pool, side.device)
        first = _first_cause(error)
        reason = str(first).splitlines()[0] if str(first) else type(first).__name__
        culprit = _operation_that_fails(step, token, side, restore)
        raise CaptureError(f"CUDA graph capture failed at {culprit}: {reason}") from error
    pool_bytes = torch.cuda.memory_reserved(device) - before
    restore()
    return CapturedStep(graph, logits, pool_bytes)


def _warm_up(run: Callable[[], Tensor], restore: Callable[[], None], side: torch.cuda.Stream) -> None:
    """A few steps on the capture's own stream, which leave the state as it was."""
    side.wait_stream(torch.cuda.current_stream(side.device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            run()
            restore()
    torch.cuda.current_stream(side.device).wait_stream(side)
    torch.cuda.synchronize(side.device)


def _record(
    graph: torch.cuda.CUDAGraph, run: Callable[[], Tensor], side: torch.cuda.Stream, pool: Any
) -> Tensor:
    before = torch.cuda.current_stream(side.device)
    try:
        with torch.cuda.graph(graph, pool=pool, stream=side):
            return run()
    finally:
        # where ending the capture fails, torch.cuda.graph stays on the capture's stream (torch 2.11 to 2.13)
        torch.cuda.set_stream(before)


def _release(graph: torch.cuda.CUDAGraph, pool: Any, device: torch.device) -> None:
    """Give back what a failed capture holds; graphs captured before it keep their part of the pool.

    A graph whose capture could not be ended has left its pool open, and resetting it does not close it.
    """
    ended = _has_ended(graph)
    graph.reset()
    if not ended:
        index = torch.cuda.current_device() if device.index is None else device.index
        with contextlib.suppress(RuntimeError):  # a version that closes the pool before it fails
            torch._C._cuda_endAllocateToPool(index, pool)
        torch._C._cuda_releasePool(index, pool)
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()


def _has_ended(graph: torch.cuda.CUDAGraph) -> bool:
    try:
        graph.pool()  # known of a graph whose capture has ended, and of no other
    except RuntimeError:
        return False
    return True


def _first_cause(error: BaseException) -> BaseException:
    """Ending a capture that an operation has broken raises an error of its own, over the one that tells."""
    while error.__context__ is not None:
        error = error.__context__
    return error


class _Watch(TorchDispatchMode):
    """Remembers the operation that was dispatched last."""

    last = "an operation that PyTorch does not dispatch"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.last = func.name()
        return func(*args, **(kwargs or {}))


def _operation_that_fails(
    step: Step, token: Tensor, side: torch.cuda.Stream, restore: Callable[[], None]
) -> str:
    """Capture the step's operations once more, into a graph that is thrown away, and see where it stops.

    Apart from the first attempt, because a compiled step would compile again under a dispatch mode.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    watch = _Watch()  # type: ignore[no-untyped-call]

    def watched_step() -> Tensor:
        with watch:
            return step(token)

    try:
        _record(graph, watched_step, side, pool)
    except Exception:
        return watch.last
    finally:
        _release(graph, pool, side.device)
        restore()
    return "an operation of the compiled code (the plain operations can be captured)"
