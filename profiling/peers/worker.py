"""A process per engine: thread pools, runtimes and crashes of one do not touch another.

The parent asks one process at a time for a visit; between visits all of them wait on a pipe and cost nothing.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import time
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection

from profiling.peers.peer import Peer, Task
from variants.errors import one_line

BUILD_SECONDS = 900  # converting and compiling; a hang is an error, not a wait
NAP_SECONDS, NAPS = 0.02, 100
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONWARNINGS": "ignore",
    "CI": "true",  # OpenVINO sends no statistics
}


@dataclass(frozen=True)
class Request:
    """A prompt, untimed settling steps, then timed greedy steps."""

    prompt: tuple[int, ...]
    warm_up: int
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

    def visit(self, request: Request) -> Timed:
        self.connection.send(request)
        answer = self._answer(60 + len(request.prompt) + request.warm_up + request.steps)
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
            raise answer
        return answer


def _serve(connection: Connection, task: Task) -> None:
    """The child: build the engine, then answer visits until the pipe closes."""
    os.environ |= QUIET  # before anything reads it
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch

    from profiling.peers import engines
    from variants.model import random_model

    torch.set_num_threads(task.threads)
    try:
        engine = engines.ALL[task.name]
        peer = engine.build(random_model(task.config, task.seed), task, engine.kind)
        gc.collect()  # what was needed to prove or convert: two dozen processes share the memory
    except Exception as error:
        connection.send(_in_a_line(error))
        return
    connection.send(None)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            connection.send(_run(peer, request))
        except Exception as error:
            connection.send(_in_a_line(error))


def _in_a_line(error: Exception) -> RuntimeError:
    """What travels to the parent: an engine's own exceptions may not."""
    return RuntimeError(one_line(error).removeprefix("RuntimeError: "))


def _run(peer: Peer, request: Request) -> Timed:
    import torch

    from profiling.measure.clock import Clock

    tokens = [peer.prefill(list(request.prompt))]

    def step() -> None:
        tokens.append(peer.step(tokens[-1]))

    clock = Clock(torch.device("cpu"))
    clock.each_ms(step, request.warm_up)
    ms = clock.each_ms(step, request.steps)
    peer.rest()
    wait_for_quiet()
    return Timed(ms, tokens)


def wait_for_quiet() -> None:
    """Until this process uses no processor: some pools spin on after their work, in the next one's time."""
    for _ in range(NAPS):
        before = time.process_time()
        time.sleep(NAP_SECONDS)
        if time.process_time() - before < NAP_SECONDS / 10:
            return
