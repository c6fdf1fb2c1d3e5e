"""A process per engine: thread pools, runtimes and crashes of one do not touch another.

The parent asks one process at a time; between visits all of them wait on a pipe and cost nothing.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from profiling.measure.clock import Clock
from profiling.measure.guard import wait_for_quiet
from profiling.peers import checkpoint
from profiling.peers.engines import ENGINES, Engine
from profiling.peers.peer import Peer, Task
from variants.backends.plugin import NotAnswered, Told
from variants.errors import one_line
from variants.model import GPT, Model, empty_model

BUILD_SECONDS = 900  # converting and compiling; a hang is an error, not a wait
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "PYTHONWARNINGS": "ignore",
    "CI": "true",  # OpenVINO sends no statistics
}


@dataclass(frozen=True)
class Fed:
    """Tokens, from nothing or behind those that are held; answered by the logits, numpy's [V] float32."""

    tokens: tuple[int, ...]
    anew: bool

    def answer(self, peer: Peer) -> Any:
        if self.anew:
            peer.prefill(list(self.tokens))
        else:
            peer.step(*self.tokens)
        return np.array(peer.logits, dtype=np.float32)


@dataclass(frozen=True)
class Visit:
    """A prompt, untimed settling steps, then timed greedy steps; answered by what is `Told`."""

    prompt: tuple[int, ...]
    warm_up: int
    steps: int

    def answer(self, peer: Peer) -> Told:
        clock, tokens = Clock(torch.device("cpu")), list[int]()

        def step() -> None:
            tokens.append(peer.step(tokens[-1]))

        (first_ms,) = clock.each_ms(lambda: tokens.append(peer.prefill(list(self.prompt))), 1)
        clock.each_ms(step, self.warm_up)
        steps_ms = clock.each_ms(step, self.steps)
        peer.rest()
        wait_for_quiet()
        return Told(first_ms, steps_ms, tokens)


class Worker:
    """The parent's end, as `variants.backends.plugin.Elsewhere` says.

    Raises RuntimeError with the engine's own words where it fails, or of a process that ended.
    """

    def __init__(self, task: Task, engine: Engine) -> None:
        """Starts the process, which converts the model if it was not converted before, and builds."""
        self.config, self.engine = task.config, engine
        self.about = f"{engine.package} {engine.version}: {engine.settings}"
        self.gives_logits, self.unproven = engine.gives_logits, engine.own_weights
        context = multiprocessing.get_context("spawn")
        self.connection, child = context.Pipe()
        self.process = context.Process(target=_serve, args=(child, task, engine), daemon=True)
        with _deaf_to_ctrl_c():
            self.process.start()
        child.close()
        self.close = weakref.finalize(self, _end, self.connection, self.process)
        self._answer(BUILD_SECONDS)

    @classmethod
    def of(cls, name: str, model: Model, batch: int, capacity: int, folder: Path | None) -> Worker:
        """Raises NotAnswered for what no engine, or not this one, is asked to run here."""
        engine, config = ENGINES[name], model.config
        if batch != 1:
            raise NotAnswered(f"engines decode one row here, not {batch}")
        if not isinstance(model, GPT) or model.dtype != torch.float32:
            raise NotAnswered(f"engines are given float32 weights here, not {model.dtype}")
        kept = checkpoint.conversions(model, folder)
        converted = kept / f"{engine.package}-{engine.version}"
        converted.mkdir(parents=True, exist_ok=True)
        weights = checkpoint.once(kept / "weights.safetensors", lambda part: checkpoint.save(model, part))
        task = Task(config, weights, converted, torch.get_num_threads(), capacity)
        return cls(task, engine)

    def prefill(self, tokens: Tensor) -> Tensor:
        return self._logits(Fed(_row(tokens), anew=True))

    def step(self, token: Tensor) -> Tensor:
        return self._logits(Fed(_row(token), anew=False))

    def timed(self, tokens: Tensor, warm_up: int, steps: int) -> Told:
        prompt = _row(tokens)
        told = self._asked(Visit(prompt, warm_up, steps), 60 + len(prompt) + warm_up + steps)
        assert isinstance(told, Told)
        return told

    def step_bytes(self, context: int) -> int:
        return self.engine.step_bytes(self.config, context)

    def _logits(self, fed: Fed) -> Tensor:
        if not self.gives_logits:
            raise NotAnswered("it gives no logits")
        return torch.from_numpy(self._asked(fed, 60 + len(fed.tokens)))[None]

    def _asked(self, request: Fed | Visit, seconds: float) -> Any:
        with suppress(OSError):  # its process ended, which the answer says
            self.connection.send(request)
        return self._answer(seconds)

    def _answer(self, seconds: float) -> Any:
        try:
            if not self.connection.poll(seconds):
                self.process.kill()
                raise RuntimeError(f"no answer within {seconds:.0f} s")
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.process.join(5)
            raise RuntimeError(f"its process ended with status {self.process.exitcode}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def _row(tokens: Tensor) -> tuple[int, ...]:
    """The tokens of one row [1,T]."""
    return tuple(tokens[0].tolist())


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """What starts here ignores Ctrl-C, which reaches every process of a terminal: its parent ends it."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(connection: Connection, process: BaseProcess) -> None:
    connection.close()
    process.join(5)
    process.kill()
    process.join()


def _serve(connection: Connection, task: Task, engine: Engine) -> None:
    """The child: build the engine, then answer until the pipe closes."""
    os.environ |= QUIET  # before anything reads it
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(task.threads)
    try:
        peer = engine.build(_model(task), task, engine.kind)
        gc.collect()  # what was needed to convert: two dozen processes share the memory
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
            connection.send(request.answer(peer))
        except Exception as error:
            connection.send(_in_a_line(error))


def _model(task: Task) -> GPT:
    """The parent's model."""
    model, stored = empty_model(task.config), load_file(task.weights)
    if task.config.tied_head:
        stored["lm_head.weight"] = stored["wte.weight"]
    model.load_state_dict(stored, assign=True)
    if task.config.tied_head:
        model.lm_head.weight = model.wte.weight
    return model.requires_grad_(False).eval()


def _in_a_line(error: Exception) -> RuntimeError:
    """What travels to the parent: an engine's own exceptions may not."""
    return RuntimeError(one_line(error).removeprefix("RuntimeError: "))
