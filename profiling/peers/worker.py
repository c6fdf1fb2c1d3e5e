"""A process per engine: thread pools, runtimes and crashes of one do not touch another.

The parent asks one process at a time for a visit; between visits all of them wait on a pipe and cost nothing.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from variants.config import GPTConfig

BUILD_SECONDS = 900  # converting and compiling; a hang is an error, not a wait


@dataclass(frozen=True)
class Task:
    """One engine over one model: `name` as in `engines.ALL`; conversions are kept in `folder`."""

    name: str
    config: GPTConfig
    seed: int
    folder: Path
    threads: int


@dataclass(frozen=True)
class Visit:
    """A prompt, untimed settling steps, then timed greedy steps."""

    prompt: tuple[int, ...]
    settle: int
    steps: int


@dataclass(frozen=True)
class Timed:
    """Milliseconds of each timed step, and all tokens that the visit produced, the first included."""

    ms: list[float]
    tokens: list[int]


class Worker:
    """The parent's end. Raises RuntimeError with the engine's own words where it fails."""

    def __init__(self, task: Task) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, task), daemon=True)
        self.process.start()
        child.close()
        self.task = task
        self._answer(BUILD_SECONDS)

    def visit(self, visit: Visit) -> Timed:
        self.connection.send(visit)
        answer = self._answer(60 + len(visit.prompt) + visit.settle + visit.steps)
        assert isinstance(answer, Timed)
        return answer

    def close(self) -> None:
        self.connection.close()
        self.process.join(5)
        self.process.kill()
        self.process.join()

    def _answer(self, seconds: float) -> object:
        if not self.connection.poll(seconds):
            self.process.kill()
            raise RuntimeError(f"no answer within {seconds:.0f} s")
        try:
            answer = self.connection.recv()
        except EOFError:
            self.process.join(5)
            raise RuntimeError(f"its process ended with status {self.process.exitcode}") from None
        if isinstance(answer, Exception):
            raise RuntimeError(
                f"{type(answer).__name__}: {str(answer).splitlines()[0] if str(answer) else ''}"
            )
        return answer


def _serve(connection: Connection, task: Task) -> None:
    """The child: build the engine, then answer visits until the pipe closes."""
    import torch

    from profiling.peers import engines
    from variants.model import random_model

    torch.set_num_threads(task.threads)
    try:
        engine = engines.ALL[task.name]
        peer = engine.build(random_model(task.config, task.seed), task.folder, task.threads, engine.format)
    except Exception as error:
        connection.send(RuntimeError(f"{type(error).__name__}: {error}"))
        return
    connection.send(None)
    while True:
        try:
            visit = connection.recv()
        except EOFError:
            return
        try:
            connection.send(_run(peer, visit))
        except Exception as error:
            connection.send(RuntimeError(f"{type(error).__name__}: {error}"))


def _run(peer: Any, visit: Visit) -> Timed:
    tokens = [peer.prefill(list(visit.prompt))]
    ms: list[float] = []
    for _ in range(visit.settle + visit.steps):
        start = time.perf_counter()
        tokens.append(peer.step(tokens[-1]))
        ms.append((time.perf_counter() - start) * 1e3)
    return Timed(ms[visit.settle :], tokens)
