"""Several programs of one Triton kernel at once, in the interpreter.

The interpreter runs programs one after another, so a grid barrier would wait for ever. Here every program has
a thread and exactly one holds the baton, which it hands on at atomics and block barriers, and now and then at
loads and stores, to a program drawn at random; one program at a time is drawn rarely, so that it runs late.
The real barrier code runs, and a missing barrier shows as a wrong or schedule-dependent result. The emulation
is sequentially consistent: errors of memory ordering cannot show.
"""

from __future__ import annotations

import inspect
import random
import threading
from collections.abc import Callable
from typing import Any

import triton.language as tl  # noqa: F401  the interpreter patches what it finds in a kernel's globals
from triton.runtime import interpreter

PAUSES = ("create_atomic_rmw", "create_barrier")
SOMETIMES = ("create_masked_load", "create_masked_store", "create_load", "create_store")
SOMETIMES_SHARE = 0.05
LATE_PERIOD = 64  # hand-overs for which one program stays the late one
LATE_SHARE = 0.03  # of the hand-overs go to the late one


class Hang(RuntimeError):
    """The programs have handed over more often than any correct run does."""


class Baton:
    """Passes the right to run among the programs of one launch."""

    def __init__(self, programs: int, seed: int, limit: int) -> None:
        self.random = random.Random(seed)
        self.turn = [threading.Semaphore(0) for _ in range(programs)]
        self.alive = set(range(programs))
        self.holder = self.late = 0
        self.passed, self.limit = 0, limit
        self.error: BaseException | None = None

    def hand_on(self) -> None:
        """Let a program drawn at random run; the caller may be drawn itself."""
        self.passed += 1
        if self.passed % LATE_PERIOD == 0 or self.late not in self.alive:
            self.late = self.random.choice(sorted(self.alive))
        punctual = sorted(self.alive - {self.late})
        chosen = self.late
        if punctual and self.random.random() >= LATE_SHARE:
            chosen = self.random.choice(punctual)
        self.holder = chosen
        interpreter.interpreter_builder.set_grid_idx(chosen, 0, 0)
        self.turn[chosen].release()

    def pause(self) -> None:
        """The holder gives the baton away and waits until it comes back."""
        me = self.holder
        if self.passed > self.limit and self.error is None:
            self.error = Hang(f"{self.passed} hand-overs")
        if self.error is None:
            self.hand_on()
            self.turn[me].acquire()
        if self.error is not None:
            raise self.error

    def run(self, me: int, program: Callable[[], Any]) -> None:
        self.turn[me].acquire()
        try:
            if self.error is None:
                program()
        except BaseException as error:
            self.error = self.error or error
        self.alive.discard(me)
        if self.alive:
            self.hand_on()


class Emulated:
    """Stands in for a kernel: `emulated[(programs,)](...)` runs all programs interleaved."""

    def __init__(self, kernel: Any, seed: int = 0, limit: int = 200_000) -> None:
        self.kernel, self.seed, self.limit = kernel, seed, limit
        self.__name__ = kernel.__name__

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            self.seed += 1
            _interleave(self.kernel, grid[0], self.seed, self.limit, arguments, options)

        return launch


def _interleave(kernel: Any, programs: int, seed: int, limit: int, arguments: Any, options: Any) -> None:
    backend = kernel.rewrite()
    baton = Baton(programs, seed, limit)

    def all_programs(**bound: Any) -> None:
        interpreter.interpreter_builder.set_grid_dim(programs, 1, 1)
        threads = [
            threading.Thread(target=baton.run, args=(i, lambda: backend(**bound)), daemon=True)
            for i in range(programs)
        ]
        for thread in threads:
            thread.start()
        baton.hand_on()
        for thread in threads:
            thread.join()
        if baton.error is not None:
            raise baton.error

    all_programs.__signature__ = inspect.signature(backend)  # type: ignore[attr-defined]
    all_programs.__annotations__ = backend.__annotations__
    executor = interpreter.GridExecutor(backend, kernel.arg_names, (1,))
    executor.fn = all_programs
    with _Hooks(baton):
        executor(*arguments, **options)


class _Hooks:
    """Pauses at the builder's memory operations."""

    def __init__(self, baton: Baton) -> None:
        self.baton, self.builder = baton, interpreter.interpreter_builder

    def __enter__(self) -> None:
        for names, share in ((PAUSES, 1.0), (SOMETIMES, SOMETIMES_SHARE)):
            for name in names:
                if hasattr(self.builder, name):
                    setattr(self.builder, name, self._pausing(getattr(self.builder, name), share))

    def __exit__(self, *error: object) -> None:
        for name in (*PAUSES, *SOMETIMES):
            if name in vars(self.builder):
                delattr(self.builder, name)

    def _pausing(self, operation: Callable[..., Any], share: float) -> Callable[..., Any]:
        def paused(*arguments: Any, **options: Any) -> Any:
            if share >= 1 or self.baton.random.random() < share:
                self.baton.pause()
            return operation(*arguments, **options)

        return paused
