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
from typing import Any

import orjson

from variants.errors import UserError

SCHEMA = 2
OPTIONS = (
    orjson.OPT_INDENT_2
    | orjson.OPT_SERIALIZE_NUMPY
    | orjson.OPT_NON_STR_KEYS
    | orjson.OPT_SERIALIZE_DATACLASS
)


class RunFolder:
    """A run on disk. `data` is the content of run.json; call `save` after changing it."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path, self.data = path, data

    @staticmethod
    def create(out: Path, experiment: str, device: str) -> RunFolder:
        """A new folder below `out`. Raises UserError where it cannot be written."""
        now = datetime.now(UTC)
        label = re.sub(r"[^A-Za-z0-9.]+", "_", device).strip("_")[:40]
        stem = f"{now:%Y%m%dT%H%M%S}-{label}-{experiment}"
        path = next(p for n in range(1000) if not (p := out / (f"{stem}-{n}" if n else stem)).exists())
        try:
            (path / "traces").mkdir(parents=True)
        except OSError as error:
            raise UserError(
                f"cannot write to {out}: {error.strerror}; choose another folder with --out"
            ) from None
        data = {
            "schema": SCHEMA,
            "experiment": experiment,
            "status": "incomplete",
            "command": " ".join(["python", "-m", f"experiments.{experiment}", *sys.argv[1:]]),
            "started": now.isoformat(timespec="seconds"),
            "warnings": [],
        }
        run = RunFolder(path, data)
        run.save()
        return run

    @staticmethod
    def load(path: Path) -> RunFolder:
        """An existing run. Raises UserError where it is none, or of another schema."""
        file = path / "run.json"
        try:
            data = orjson.loads(file.read_bytes())
        except OSError as error:
            raise UserError(f"{file}: {error.strerror}; expected a run folder") from None
        except orjson.JSONDecodeError as error:
            raise UserError(f"{file} is not valid JSON: {error}") from None
        schema = data.get("schema") if isinstance(data, dict) else None
        if schema == 1:
            _rename_slots(data)
        elif schema != SCHEMA:
            raise UserError(f"{file} has schema {schema}, this version reads 1 to {SCHEMA}")
        return RunFolder(path, data)

    @property
    def traces(self) -> Path:
        return self.path / "traces"

    def save(self) -> None:
        write_atomically(self.path / "run.json", orjson.dumps(self.data, option=OPTIONS))

    def warn(self, message: str) -> None:
        if message not in self.data["warnings"]:
            self.data["warnings"].append(message)

    def finish(self) -> None:
        self.data["status"] = "complete"
        self.data["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        self.save()


def _rename_slots(data: dict[str, Any]) -> None:
    """Schema 1 called the slot `backend` body."""
    for entry in data.get("variants", {}).values():
        if entry.get("difference") and entry["difference"][0] == "body":
            entry["difference"][0] = "backend"
    data["schema"] = SCHEMA


def write_atomically(path: Path, content: bytes) -> None:
    """Either the old file or the whole new one is there, never a half."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    part.replace(path)
