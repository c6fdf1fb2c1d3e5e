"""The run folder: everything that one run measured, raw, written as it arrives.

    runs/<UTC time>-<device>-<experiment>/run.json, traces/, figures/, report.md

`run.json` is replaced atomically, so a killed run can be reported and resumed. One process at a time writes a
run; anyone may read it meanwhile. Torch-free: reports are made from the folder alone.
"""

from __future__ import annotations

import errno
import itertools
import re
import secrets
import shlex
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

from profiling.results.record.base import Record
from profiling.results.record.part import replaced
from profiling.results.record.reading import decoded, encoded
from variants.errors import UserError
from variants.version import checkout

R = TypeVar("R", bound=Record)
R_co = TypeVar("R_co", bound=Record, covariant=True)

LOCK, PART = ".lock", ".part"
HELD = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}  # how a system says that another process has the lock


class RunFolder(Generic[R_co]):
    """A run on disk. `record` is the content of run.json; its lists and mappings grow in place, its other
    fields are replaced by `update`; call `save` after either.
    """

    def __init__(self, path: Path, record: R_co, lock: BinaryIO | None = None) -> None:
        """`lock` is that of a writer, held until `finish` or `release`."""
        self.path, self.record, self.lock = path, record, lock

    @staticmethod
    def create(out: Path, kind: type[R], device: str) -> RunFolder[R]:
        """A new folder below `out`. Raises UserError where it cannot be written."""
        now, experiment = datetime.now(UTC), kind.kind()
        label = re.sub(r"[^A-Za-z0-9.]+", "_", device).strip("_")[:40]
        stem = f"{now:%Y%m%dT%H%M%S}-{label}-{experiment}".replace(" ", "-")
        try:
            out.mkdir(parents=True, exist_ok=True)
            names = (f"{stem}-{n}" if n else stem for n in itertools.count())
            path = next(out / name for name in names if _mkdir(out / name))
            (path / "traces").mkdir()
            lock = _lock_file(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise UserError(f"cannot write to {out}: {reason}; choose another folder with --out") from None
        command = shlex.join(["python", "-m", f"experiments.{experiment.split()[0]}", *sys.argv[1:]])
        started = now.isoformat(timespec="seconds")
        run = RunFolder(path, kind(command=command, commit=checkout(), started=started), lock)
        run.save()
        return run

    @staticmethod
    def resume(path: Path, kind: type[R]) -> RunFolder[R]:
        """An existing run, to write on. Parts that a killed process left are removed.

        Raises UserError as `load` does, and where another process writes on it.
        """
        RunFolder.load(path, kind)  # a folder that is none gets no lock
        try:
            lock = _lock_file(path)
            for part in path.rglob(f"*{PART}"):
                part.unlink()
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from None
        run = RunFolder(path, RunFolder.load(path, kind).record, lock)
        if (commit := checkout()) != run.record.commit:
            run.warn(
                f"begun at commit {run.record.commit or 'unknown'}, gone on with at {commit or 'unknown'}"
            )
        return run

    @staticmethod
    def load(path: Path, kind: type[R]) -> RunFolder[R]:
        """An existing run of this kind. Raises UserError where it is none, or cannot be read."""
        return RunFolder(path, record_in(path / "run.json", kind))

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    def update(self, **changes: object) -> None:
        """Replace fields of the record. Raises TypeError for a field or a type that it does not have."""
        self.record = replaced(self.record, **changes)

    def save(self) -> None:
        """Write run.json. Raises UserError where it cannot; what was saved before stays."""
        try:
            write_atomically(self.path / "run.json", encoded(self.record))
        except OSError as error:
            reason = error.strerror or error
            raise UserError(
                f"{self.path}: cannot be written ({reason}); it holds what was saved before"
            ) from error

    def warn(self, message: str) -> None:
        if message not in self.record.warnings:
            self.record.warnings.append(message)

    def finish(self) -> None:
        self.update(status="complete", finished=datetime.now(UTC).isoformat(timespec="seconds"))
        self.save()
        self.release()

    def release(self) -> None:
        """Let another process write on it."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None


def record_in(file: Path, kind: type[R]) -> R:
    """The record of this kind that a file holds. Raises UserError where it is none, or cannot be read."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; expected a run folder") from None
    record = decoded(content, file)
    if not isinstance(record, kind):
        raise UserError(f"{file} is a run of {record.kind()}, expected one of {kind.kind()}")
    return record


def write_atomically(path: Path, content: bytes) -> None:
    """Either the old file or the whole new one is there, never a half. Raises OSError that names `path`."""
    part = part_of(path)
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def part_of(path: Path) -> Path:
    """The path at which to write what becomes `path` once it is whole; a name that nobody else writes to."""
    return path.with_name(secrets.token_hex(8) + PART)


def _mkdir(path: Path) -> bool:
    """Make the folder; False where something is there already."""
    try:
        path.mkdir()
    except FileExistsError:
        return False
    return True


def _lock_file(folder: Path) -> BinaryIO:
    """A file that is locked while it is open: the lock ends with the process, however that ends.

    A file system without locks keeps nobody away. Raises UserError where another process has it.
    """
    file = (folder / LOCK).open("wb")
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in HELD:
            file.close()
            raise UserError(f"{folder}: another process writes on this run; wait until it ends") from None
    return file
