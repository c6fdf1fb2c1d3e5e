"""The instrument held against the known: a step beside itself, and a step beside one that waits longer.

Two contestants of a duel are built alike and differ by a wait that is spun for exactly so long. What the duel
finds between them, and where the trace puts it, can then be compared with the truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from profiling.measure.cases import Case, Inputs
from profiling.measure.clock import Clock
from profiling.measure.duel import Ring, Timed, stepping, traced_beside
from profiling.results.calibration import IN_A_KERNEL, IN_PYTHON, PER_OP, precise
from profiling.results.duel import Duel, gap_share
from profiling.results.record import (
    DuelBlock,
    DuelSteps,
    InjectedWait,
    Peaks,
    StepDifference,
    Workload,
    replaced,
)
from variants.decoder import Decoder, build_parts
from variants.executors.executor import CompiledStep, Executor, Step, WarmUp
from variants.model import GPT
from variants.spec import Variant

PLAIN, WAITING = "plain", "waiting"
TRACES = 24  # of either contestant, in turn
LOOK = 20  # blocks between two looks
SHORTEST_MS = 0.002  # of any spin: reading the clock takes time, too, which then cancels between two spins


@contextmanager
def one_thread() -> Iterator[None]:
    """No pool of threads, which falls asleep over a wait and wakes late: what waiting costs beyond itself."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def spin(ms: float) -> None:
    """Keep this thread busy `ms` longer than a spin of nothing does: a sleep ends when the system pleases."""
    end = time.perf_counter_ns() + round(1e6 * (ms + SHORTEST_MS))
    while time.perf_counter_ns() < end:
        pass


@torch.library.custom_op("decode_floor::slow_copy", mutates_args=())
def slow_copy(logits: Tensor, ms: float) -> Tensor:
    """A kernel that takes so long: the copy of the logits [B,T,V] after a spin."""
    spin(ms)
    return logits.clone()


class _BeforeEachOp(TorchFunctionMode):
    """Python that takes `ms` longer before every call of torch; what a dispatcher spends is inside of ops."""

    def __init__(self, ms: float) -> None:
        super().__init__()
        self.ms = ms
        self.ops = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        spin(self.ms)
        return func(*args, **(kwargs or {}))


def _in_python(step: Step, ms: float) -> Step:
    def waiting(token: Tensor) -> Tensor:
        spin(ms)
        return step(token)

    return waiting


def _per_op(step: Step, ms: float) -> Step:
    mode = _BeforeEachOp(0.0)

    def waiting(token: Tensor) -> Tensor:
        mode.ops, counted = 0, mode.ops
        mode.ms = ms / counted if counted else 0.0  # the first step counts its ops
        with mode:
            return step(token)

    return waiting


def _in_a_kernel(step: Step, ms: float) -> Step:
    return lambda token: slow_copy(step(token), ms)


WAITS: dict[str, Callable[[Step, float], Step]] = {
    IN_PYTHON: _in_python,
    PER_OP: _per_op,
    IN_A_KERNEL: _in_a_kernel,
}


class _Waits:
    """An executor whose step waits."""

    def __init__(self, inner: Executor, wait: Callable[[Step, float], Step], ms: float) -> None:
        self.inner, self.wait, self.ms = inner, wait, ms
        self.log: list[WarmUp] = inner.log

    def build(self, step: Step, token: Tensor, restore: Callable[[], None]) -> CompiledStep:
        return self.inner.build(self.wait(step, self.ms), token, restore)


@dataclass(frozen=True)
class Bench:
    """Where duels with a known answer are fought: a variant of a model at the workload's first context."""

    variant: Variant
    model: GPT
    workload: Workload
    inputs: Inputs
    peaks: Peaks

    @property
    def context(self) -> int:
        return self.workload.contexts[0]

    @cached_property
    def clock(self) -> Clock:
        return Clock(self.model.device)

    def _case(self, name: str, wait: Callable[[Step, float], Step] | None = None, ms: float = 0.0) -> Case:
        capacity = self.model.config.n_ctx
        parts = build_parts(self.variant, self.model, 1, capacity)
        if wait is not None:
            parts = parts._replace(executor=_Waits(parts.executor, wait, ms))
        decoder = Decoder(self.variant, parts, batch=1, capacity=capacity)
        decoder.warm_up()
        return Case(name, decoder, self.workload.contexts, self.inputs, True, self.workload)

    def _stepping(self, case: Case, waits_before_ms: float = 0.0) -> Timed:
        """Steps of this case, each after a wait that is not timed."""
        step_ms = stepping(case, self.context, self.clock)

        def waited() -> float:
            spin(waits_before_ms)
            return step_ms()

        return waited

    def beside_itself(self, blocks: int, entropy: int) -> StepDifference:
        """The drop of a step beside the very same step: the truth is nothing."""
        ring = Ring({PLAIN: self._stepping(self._case(PLAIN))}, entropy, _raised)
        return _difference([ring.block((PLAIN, PLAIN), number) for number in range(blocks)])

    @one_thread()
    def injected(self, kind: str, ms: float, max_seconds: float, entropy: int, path: Path) -> InjectedWait:
        """What the duel and the traces say of a wait of `ms`; `path` is where traces may lie.

        A step is slower after any pause, for what it reads has left the caches: the plain step, too, waits
        before it is timed, so that the wait is all that differs. (One at the end of a step slows the next,
        whichever that is.)

        The duel ends when it could tell whether the wait is recovered, or when its time is over.
        """
        wait, end = WAITS[kind], time.monotonic() + max_seconds
        cases = {PLAIN: self._case(PLAIN, wait), WAITING: self._case(WAITING, wait, ms)}
        plain = self._stepping(cases[PLAIN], 0.0 if kind == IN_A_KERNEL else ms)
        ring = Ring({PLAIN: plain, WAITING: self._stepping(cases[WAITING])}, entropy, _raised)
        fought: list[DuelBlock] = []
        while len(fought) < LOOK or (time.monotonic() < end and not precise(_difference(fought), ms)):
            fought += [ring.block((WAITING, PLAIN), len(fought) + number) for number in range(LOOK)]
        difference = _difference(fought)
        shares: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(TRACES):
            for name, case in cases.items():
                shares[name].append(self._gap_share(case, path))
        step_ms = difference.step_ms
        return InjectedWait(
            kind,
            ms,
            difference,
            [share * (step_ms - ms) for share in shares[PLAIN]],
            [share * step_ms for share in shares[WAITING]],
        )

    def _gap_share(self, case: Case, path: Path) -> float:
        beside = traced_beside(case, case, self.context, self.clock, path, self.peaks)
        return gap_share(beside.trace, beside.plain_ms, beside.event_us)


def _raised(name: str, error: Exception) -> None:
    """What a contestant of ours must not do: crash."""
    raise error


def _difference(blocks: list[DuelBlock]) -> StepDifference:
    means = Duel(DuelSteps(blocks=blocks)).means(blocks[0].first, blocks[0].second)
    return StepDifference(float(median(means[:, 0])), (1 - means[:, 1] / means[:, 0]).tolist())


def bench(variant: Variant, model: GPT, workload: Workload, peaks: Peaks) -> Bench:
    """A bench with inputs for the first context."""
    workload = replaced(workload, contexts=workload.contexts[:1])
    inputs = Inputs(model, variant.precision.name, workload, workload.contexts[0])
    return Bench(variant, model, workload, inputs, peaks)
