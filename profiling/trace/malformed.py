"""Files that are not the JSON of a trace: other formats, each with the command that makes a trace of it, and
broken JSON, with what can be put right without guessing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from variants.errors import UserError

HEAD_BYTES = 512
GZIP = b"\x1f\x8b"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")
"""Control characters that stand in no JSON text, not even between its parts."""
_NOT_NUMBERS = re.compile(rb"([:\[,]\s*)[-+]?(?:NaN|nan|Infinity|inf|INF)(?=\s*[,\]}])")
_ESCAPE = re.compile(rb'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
_DANGLING_COMMA = re.compile(rb",(?=\s*[\]}])")
_CONTROLS_TO_SPACE = bytes(c if c >= 32 else 32 for c in range(256))


@dataclass(frozen=True)
class Format:
    """`what` the file is and the `command` that makes a trace of it ({} is the file)."""

    what: str
    command: str


_BY_START = {
    b"PK\x03\x04": Format("a zip archive", "unzip -p {} > trace.json"),
    b"\x28\xb5\x2f\xfd": Format("compressed by zstd", "zstd -d {} -o trace.json"),
    b"BZh": Format("compressed by bzip2", "bunzip2 -kc {} > trace.json"),
    b"\xfd7zXZ\0": Format("compressed by xz", "xz -dkc {} > trace.json"),
    b"\x04\x22\x4d\x18": Format("compressed by lz4", "lz4 -d {} trace.json"),
    b"7z\xbc\xaf\x27\x1c": Format("a 7-Zip archive", "7z x -so {} > trace.json"),
    b"version https://git-lfs": Format("a pointer of Git LFS, not the file", "git lfs pull --include {}"),
    b"\x80": Format("a Python pickle, such as a memory snapshot", "profiler.export_chrome_trace(OUT)"),
    b"<": Format("a web page, not the trace it may link to", "curl -L -o trace.json.gz ADDRESS"),
}
_BY_NAME = {
    ".nsys-rep": Format("a report of Nsight Systems", "nsys export --type sqlite --output trace.sqlite {}"),
    ".qdrep": Format("a report of Nsight Systems", "nsys export --type sqlite --output trace.sqlite {}"),
    ".xplane.pb": Format("a profile of XLA", "xprof --logdir FOLDER (it shows the profile)"),
}
_TAR = Format("a tar archive", "tar -xOf {} > trace.json")
_PERFETTO = Format("a Perfetto trace in protobuf", "traceconv json {} trace.json")


def refuse_others(path: Path, head: bytes) -> None:
    """UserError for what is known and no JSON. `head`: the first `HEAD_BYTES`, inflated."""
    known = next(_matches(path, head), None)
    if known:
        raise UserError(f"{path}: {known.what}; convert it first: {known.command.format(path)}")


def _matches(path: Path, head: bytes) -> Iterator[Format]:
    yield from (known for ending, known in _BY_NAME.items() if path.name.endswith(ending))
    yield from (known for start, known in _BY_START.items() if head.startswith(start))
    if head[257:262] == b"ustar":
        yield _TAR
    if head[:1] == b"\n" and _NO_TEXT.search(head):  # field 1 of a message, where JSON has an empty line
        yield _PERFETTO


def mend(text: bytes) -> bytes:
    """The text with what can be put right without guessing: numbers that are none, escapes, control
    characters, UTF-8.
    """
    text = text.translate(_CONTROLS_TO_SPACE)
    text = _NOT_NUMBERS.sub(rb"\1null", text)
    text = _ESCAPE.sub(lambda m: m[1] or rb"\\", text)
    text = _DANGLING_COMMA.sub(b"", text)
    return text.decode("utf-8", "replace").encode()


def faults(piece: bytes) -> list[str]:
    faults = []
    if _NOT_NUMBERS.search(piece):
        faults.append("NaN or Infinity written as numbers")
    if any(m[1] is None for m in _ESCAPE.finditer(piece)):
        faults.append("unescaped backslashes")
    try:
        piece.decode()
    except UnicodeDecodeError as error:
        faults.append(f"bytes that are not UTF-8 ({error.reason})")
    return faults or ["control characters or stray commas"]


def loads_or_none(text: bytes) -> Any:
    for attempt in (text, mend(text)):
        try:
            return orjson.loads(attempt)
        except orjson.JSONDecodeError:
            continue
    return None
