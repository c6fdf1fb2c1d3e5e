"""The text of a trace file, inflated where it is gzip, and where its events start."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from profiling.trace.mend import loads_or_none
from variants.errors import UserError

SAMPLE_BYTES = 1 << 18
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
# 2**43 us: from here a float64 of microseconds no longer holds every nanosecond.
LONG_TS = re.compile(rb'("ts"\s*:\s*)(-?(?:\d{14,}|9\d{12}|8[7-9]\d{11})\.\d*[1-9]\d*)')


@dataclass
class Source:
    """A trace's text and what was noticed while reading it."""

    path: Path
    text: bytes
    start: int
    long_times: bool
    """Whether timestamps have digits that a float64 would lose."""
    warnings: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    tail: bytes | None = None
    """The text behind the events, once they have been read; None where the file ends before they do."""

    def skip(self, why: str, count: int = 1) -> None:
        if count:
            self.skipped[why] = self.skipped.get(why, 0) + count

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)


def open_source(path: Path) -> Source:
    """Text of a trace file and where its events start; UserError where there are none."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    warnings: list[str] = []
    text = _inflate(path, data, warnings) if data[:2] == b"\x1f\x8b" else data
    del data
    if text[:3] == b"\xef\xbb\xbf":
        text = text[3:]
    return Source(path, text, _find_events(path, text, warnings), _has_long_times(text), warnings)


def _has_long_times(text: bytes) -> bool:
    """Looks at the head, the middle and the end: one clock writes all times of a file."""
    spots = (0, len(text) // 2, max(len(text) - SAMPLE_BYTES, 0))
    return any(LONG_TS.search(text, spot, spot + SAMPLE_BYTES) for spot in spots)


def _inflate(path: Path, data: bytes, warnings: list[str]) -> bytes:
    """Gzip by its first bytes, not by its name; a cut file gives what can be inflated."""
    parts: list[bytes] = []
    rest = data
    while rest[:2] == b"\x1f\x8b":
        inflater = zlib.decompressobj(wbits=31)
        try:
            parts.append(inflater.decompress(rest))
        except zlib.error as error:
            warnings.append(f"gzip data is damaged ({error}); read as far as it goes")
            parts.append(_inflate_slowly(rest))
            break
        if not inflater.eof:
            warnings.append("gzip data ends early: the file is cut; read as far as it goes")
            break
        rest = inflater.unused_data.lstrip(b"\0")
    text = b"".join(parts) if len(parts) != 1 else parts[0]
    if not text:
        raise UserError(
            f"{path}: gzip data is damaged at its start and nothing can be read; fetch the file again"
        )
    return text


def _inflate_slowly(data: bytes) -> bytes:
    """What comes out before the damage, in small steps since an error loses the step it happens in."""
    inflater = zlib.decompressobj(wbits=31)
    out = bytearray()
    try:
        for at in range(0, len(data), 1024):
            out += inflater.decompress(data[at : at + 1024])
    except zlib.error:
        pass
    return bytes(out)


def _find_events(path: Path, text: bytes, warnings: list[str]) -> int:
    """Byte position behind the `[` of the events."""
    first = len(text) - len(text.lstrip())
    if text[first : first + 1] == b"[":
        return first + 1
    candidates = [m.end() for m in _ARRAY.finditer(text, 0, min(len(text), 64 << 20))]
    for start in candidates:
        if isinstance(loads_or_none(text[:start] + b"]}"), dict):
            return start
    if candidates and text[first : first + 1] == b"{":
        warnings.append("the part before the events is not valid JSON and is left out")
        return candidates[0]
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise UserError(
            f'{path}: no "traceEvents" found, and it is not JSON from byte {error.pos} on ({error.msg}); '
            "give a Kineto or Chrome trace (*.json or *.json.gz)"
        ) from error
    raise UserError(
        f'{path}: valid JSON without "traceEvents"; give a Kineto or Chrome trace (*.json or *.json.gz)'
    )
