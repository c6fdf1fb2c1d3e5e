"""The run folder: everything that one run measured, raw, written as it arrives.

    runs/<UTC time>-<device>-<experiment>/run.json, traces/, figures/, report.md

`run.json` is replaced atomically, so a killed run can be reported and resumed. Torch-free: reports are made
from the folder alone.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

from profiling.results.record.base import Record
from profiling.results.record.part import replaced
from profiling.results.record.reading import decoded, encoded
from variants.errors import UserError

R = TypeVar("R", bound=Record)
R_co = TypeVar("R_co", bound=Record, covariant=True)


class RunFolder(Generic[R_co]):
    """A run on disk. `record` is the content of run.json; its lists and mappings grow in place, its other
    fields are replaced by `update`; call `save` after either.
    """

    def __init__(self, path: Path, record: R_co) -> None:
        self.path, self.record = path, record

    @staticmethod
    def create(out: Path, kind: type[R], device: str) -> RunFolder[R]:
        """A new folder below `out`. Raises UserError where it cannot be written."""
        now, experiment = datetime.now(UTC), kind.kind()
        label = re.sub(r"[^A-Za-z0-9.]+", "_", device).strip("_")[:40]
        stem = f"{now:%Y%m%dT%H%M%S}-{label}-{experiment}".replace(" ", "-")
        path = next(p for n in range(1000) if not (p := out / (f"{stem}-{n}" if n else stem)).exists())
        try:
            (path / "traces").mkdir(parents=True)
        except OSError as error:
            raise UserError(
                f"cannot write to {out}: {error.strerror}; choose another folder with --out"
            ) from None
        command = " ".join(["python", "-m", f"experiments.{experiment.split()[0]}", *sys.argv[1:]])
        run = RunFolder(path, kind(command=command, started=now.isoformat(timespec="seconds")))
        run.save()
        return run

    @staticmethod
    def load(path: Path, kind: type[R]) -> RunFolder[R]:
        """An existing run of this kind. Raises UserError where it is none, or cannot be read."""
        file = path / "run.json"
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}; expected a run folder") from None
        record = decoded(content, file)
        if not isinstance(record, kind):
            raise UserError(f"{file} is a run of {record.kind()}, expected one of {kind.kind()}")
        return RunFolder(path, record)

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    def update(self, **changes: object) -> None:
        """Replace fields of the record. Raises TypeError for a field or a type that it does not have."""
        self.record = replaced(self.record, **changes)

    def save(self) -> None:
        write_atomically(self.path / "run.json", encoded(self.record))

    def warn(self, message: str) -> None:
        if message not in self.record.warnings:
            self.record.warnings.append(message)

    def finish(self) -> None:
        self.update(status="complete", finished=datetime.now(UTC).isoformat(timespec="seconds"))
        self.save()


def write_atomically(path: Path, content: bytes) -> None:
    """Either the old file or the whole new one is there, never a half."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
