"""Hostile inputs in processes of their own, with limits of time and memory, watched for what must not be.

Python tells an audit hook of every file that is opened, made or removed, of every process and connection, and
of what a pickle names: while an input is read, nothing may run, and only `out` may be written to.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any, Literal

import psutil

from variants.command import refusal
from variants.errors import UserError

LIMIT_S, LIMIT_BYTES = 10.0, 2 << 30  # CPU time: others may keep the machine busy
WAIT_S = 60.0  # of the clock, for what waits and computes nothing
RUNS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class"}
RUNS |= {"socket.connect", "socket.bind"}
CHANGES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True)
class Job:
    """One input, made anew from these three."""

    kind: str
    seed: int
    number: int


@dataclass(frozen=True)
class Outcome:
    """`message`: of a failure, its traceback or what was forbidden."""

    job: Job
    status: Literal["read", "refused", "failed"]
    seconds: float
    message: str = ""


def run_all(
    jobs: Iterable[Job], workers: int, scratch: Path, failed: Callable[[Outcome, Path], None]
) -> Iterator[Outcome]:
    """Every job's outcome, in order. `failed` is handed the folder of the input of each that failed."""
    idle: SimpleQueue[_Worker] = SimpleQueue()

    def one(job: Job) -> Outcome:
        worker = idle.get()
        try:
            outcome = worker.ask(job)
            if outcome.status == "failed":
                failed(outcome, worker.folder)
            return outcome
        finally:
            idle.put(worker)

    try:
        for number in range(workers):
            idle.put(_Worker(scratch / str(number)))
        with ThreadPoolExecutor(workers) as threads:
            yield from threads.map(one, jobs)
    finally:
        while not idle.empty():
            idle.get().end()


class _Worker:
    """A process that reads one input after the other; ended and begun anew where one hangs or kills it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._begin()

    def _begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.folder), daemon=True)
        with _without_ctrl_c():
            self.process.start()
        theirs.close()
        try:
            self.connection.recv()  # it is ready: what it imports is no part of an input's time
        except BaseException:
            self.end()
            raise

    def ask(self, job: Job) -> Outcome:
        start = time.monotonic()
        try:
            self.connection.send(job)
            if self._in_time():
                answer: Outcome = self.connection.recv()
                return answer
            message = f"took longer than {LIMIT_S:g} s"
        except (EOFError, OSError, psutil.NoSuchProcess):
            message = "the process was killed"
        self.end()
        self._begin()
        return Outcome(job, "failed", time.monotonic() - start, message)

    def _in_time(self) -> bool:
        """Whether it answers, or ends, within its limits."""
        end, begun = time.monotonic() + WAIT_S, self._cpu_s()
        while not self.connection.poll(LIMIT_S / 20):
            if time.monotonic() >= end or self._cpu_s() - begun >= LIMIT_S:
                return False
        return True

    def _cpu_s(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """A process that is begun here never sees it, where the system can: it is for the one who asks."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# -- inside the process ---------------------------------------------------------------------------


class _Watch:
    """The audit hook. `out` is where an input that is being read may be written; None while none is."""

    def __init__(self) -> None:
        self.out: Path | None = None
        self.seen = ""

    def __call__(self, event: str, arguments: Sequence[Any]) -> None:
        if self.out is None:
            return
        changed = [arguments[0]] if event in CHANGES else []
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            changed = [arguments[0]]
        elif event in ("os.rename", "os.link"):
            changed = [*arguments[:2]]
        elif event == "os.symlink":
            changed = [arguments[1]]
        makes_out = event == "os.mkdir" and os.path.realpath(os.fsdecode(arguments[0])) == str(self.out)
        asks_git = event == "subprocess.Popen" and arguments[0] == "git"  # for the commit that a record names
        if (event in RUNS and not asks_git) or not (
            makes_out or all(self._inside(place) for place in changed)
        ):
            self.seen = self.seen or f"{event} {arguments!r:.200}"
            raise PermissionError(self.seen)

    def _inside(self, place: Any) -> bool:
        if isinstance(place, int):
            return True
        path = os.path.realpath(os.fsdecode(place))
        return path == os.devnull or path.startswith(f"{self.out}{os.sep}")


def _serve(connection: Connection, folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on systems that cannot begin it so
    sys.dont_write_bytecode = True
    os.environ.setdefault("MPLBACKEND", "agg")
    from experiments.shared.hostile import KINDS, warm_up

    os.chdir(folder)
    warm_up()
    _limit_memory()
    watch = _Watch()
    sys.addaudithook(watch)
    connection.send(None)
    while True:
        job = connection.recv()
        place, out = folder / "input", folder / "out"
        for path in (place, out):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        call = KINDS[job.kind](Random(f"{job.seed} {job.kind} {job.number}"), place, out)
        os.chdir(out)
        start, watch.seen, watch.out = time.monotonic(), "", out.resolve()
        status, message = ending(call)
        watch.out = None
        os.chdir(folder)
        if watch.seen:
            status, message = "failed", f"forbidden: {watch.seen}"
        connection.send(Outcome(job, status, time.monotonic() - start, message))


def _limit_memory() -> None:
    """From here on, where the system can: what is loaded already does not count."""
    if sys.platform == "linux":
        import resource

        most = psutil.Process().memory_info().vms + LIMIT_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def ending(call: Callable[[], object]) -> tuple[Literal["read", "refused", "failed"], str]:
    """How a call ended, and its text; refused is one line and exit code 2, or a UserError of one line."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    err.reconfigure(errors="backslashreplace")
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            call()
        except UserError as error:
            code = 2
            err.write(refusal(error))
        except SystemExit as stop:
            code = stop.code or 0
        except BaseException:  # a crash of a library in Rust is no Exception
            return "failed", traceback.format_exc()
    text = bytes(err.buffer.getvalue()).decode()
    if code == 0:
        return "read", ""
    if code == 2 and text.startswith("error: ") and text.count("\n") == 1 and len(text) < 2000:
        return "refused", text
    return "failed", f"exit code {code}: {text}"
