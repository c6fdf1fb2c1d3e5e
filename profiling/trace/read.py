"""How the events of a trace file are read: plain or gzip, object or list, whole or broken, in pieces of a
few MB.

The events are parsed piece by piece, so peak memory stays near the size of the text. A piece is cut at a
`},{` and accepted only if it parses: a cut inside a string or a nested value leaves quotes or brackets
open, so what parses is whole events. What does not parse is mended (NaN, control characters, bad escapes,
bad UTF-8) or, where that fails, read event by event with what was skipped counted and its position kept.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from variants.errors import UserError

PIECE_BYTES = 1 << 20
"""Small enough for its objects to stay in the cache: larger pieces parse more slowly."""
SAMPLE_BYTES = 1 << 18
MOST_EXTENSIONS = 50
"""How often a piece that was cut in the wrong place is made longer before it counts as broken."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_NEXT_EVENT = re.compile(r'\}?\s*,?\s*(\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
_END = re.compile(r'\}\s*\](?=\s*(?:,\s*"|\}|$))')
# 2**43 us: from here a float64 of microseconds no longer holds every nanosecond.
_LONG_TS = re.compile(rb'("ts"\s*:\s*)(-?(?:\d{14,}|9\d{12}|8[7-9]\d{11})\.\d*[1-9]\d*)')
_NOT_NUMBERS = re.compile(rb"([:\[,]\s*)[-+]?(?:NaN|nan|Infinity|inf|INF)(?=\s*[,\]}])")
_ESCAPE = re.compile(rb'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
_DANGLING_COMMA = re.compile(rb",(?=\s*[\]}])")
_CONTROLS_TO_SPACE = bytes(c if c >= 32 else 32 for c in range(256))


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
    return any(_LONG_TS.search(text, spot, spot + SAMPLE_BYTES) for spot in spots)


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
        if isinstance(_loads_or_none(text[:start] + b"]}"), dict):
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


def _loads_or_none(text: bytes) -> Any:
    for attempt in (text, _mend(text)):
        try:
            return orjson.loads(attempt)
        except orjson.JSONDecodeError:
            continue
    return None


def _mend(text: bytes) -> bytes:
    """The text with what can be put right without guessing: numbers that are none, escapes, control
    characters, UTF-8.
    """
    text = text.translate(_CONTROLS_TO_SPACE)
    text = _NOT_NUMBERS.sub(rb"\1null", text)
    text = _ESCAPE.sub(lambda m: m[1] or rb"\\", text)
    text = _DANGLING_COMMA.sub(b"", text)
    return text.decode("utf-8", "replace").encode()


def pieces(source: Source, progress: Callable[[float], None] | None = None) -> Iterator[list[Any]]:
    """Lists of events, in file order; sets `source.tail` at the end. `progress` gets the share of the text
    that is done.
    """
    text, at = source.text, source.start
    while source.tail is None:
        while at < len(text) and text[at] in b" \t\r\n,":
            at += 1
        if at >= len(text):
            source.warn(f"the file ends at byte {len(text)} before its events do: it is cut")
            return
        events, at = _next_piece(source, at)
        if events:
            yield events
        if progress:
            progress(at / len(text))


def _next_piece(source: Source, at: int) -> tuple[list[Any], int]:
    """Events from byte `at` and the position behind them; sets `source.tail` when the events are over."""
    text = source.text
    search_from = at + PIECE_BYTES
    for _ in range(MOST_EXTENSIONS):
        boundary = _BETWEEN.search(text, search_from) if search_from < len(text) else None
        stop = boundary.start() + 1 if boundary else len(text)
        piece = text[at:stop]
        if source.long_times:
            piece = _LONG_TS.sub(rb'\1"\2"', piece)
        try:
            events, tail = _parse_or_mend(source, piece, boundary is not None)
            break
        except orjson.JSONDecodeError as error:
            if boundary is None or not error.msg.startswith("unexpected end of data"):
                events, tail = _one_by_one(source, piece, at, boundary is None)
                break
            search_from = stop  # the cut was inside a string or a nested list
    else:
        events, tail = _one_by_one(source, piece, at, boundary is None)
    if tail is not None:
        source.tail = tail + text[stop:]
    return events, boundary.end() if boundary else stop


def _parse_or_mend(source: Source, piece: bytes, cut_between: bool) -> tuple[list[Any], bytes | None]:
    try:
        return _parse(piece, cut_between)
    except orjson.JSONDecodeError as error:
        mended = _mend(piece)
        if mended == piece:
            raise
        try:
            parsed = _parse(mended, cut_between)
        except orjson.JSONDecodeError as second:
            raise second from error
    source.warn("parts of the text were not valid JSON and were mended: " + ", ".join(_faults(piece)))
    return parsed


def _parse(piece: bytes, cut_between_events: bool) -> tuple[list[Any], bytes | None]:
    """Events of a piece, and the text behind the events' `]` where the piece holds it."""
    body = b"[" + piece + b"]" if cut_between_events else b"[" + piece
    try:
        return orjson.loads(body), None if cut_between_events else b""
    except orjson.JSONDecodeError as error:
        if not error.msg.startswith("unexpected content after document"):
            raise
        # The parser counts characters, not bytes.
        used = error.pos if body.isascii() else len(body.decode()[: error.pos].encode())
        return orjson.loads(body[:used]), piece[used - 1 :]


def _faults(piece: bytes) -> list[str]:
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


def _one_by_one(source: Source, piece: bytes, at: int, last: bool) -> tuple[list[Any], bytes | None]:
    """Events of a piece that does not parse as a whole; what cannot be read is skipped up to the next
    event's start.
    """
    text = _mend(piece).decode()
    decoder = json.JSONDecoder(strict=False)
    events: list[Any] = []
    position = 0
    while True:
        while position < len(text) and text[position] in " ,":
            position += 1
        if position >= len(text):
            break
        if text[position] == "]":
            return events, text[position + 1 :].encode()
        try:
            event, position = decoder.raw_decode(text, position)
            events.append(event)
        except (json.JSONDecodeError, RecursionError) as error:
            following = _NEXT_EVENT.search(text, position + 1)
            end = _END.search(text, position) if following is None and last else None
            if following is None and last and end is None:
                source.skip("event cut by the end of the file")
                source.warn(f"the file ends inside an event that starts near byte {at + position}: it is cut")
                break
            source.skip("event that is not valid JSON")
            fault_byte = at + getattr(error, "pos", position)
            if not any(w.startswith("an event that is not valid JSON") for w in source.warnings):
                source.warn(f"an event that is not valid JSON was skipped, the first near byte {fault_byte}")
            if end:
                return events, text[end.end() :].encode()
            position = following.start(1) if following else len(text)
    return events, None


def metadata(source: Source) -> dict[str, Any]:
    """What the file says beside its events; {} for a list or where that part cannot be read."""
    if source.text[:64].lstrip()[:1] == b"[":
        return {}
    found = _loads_or_none(source.text[: source.start] + b"]" + (source.tail or b"}"))
    if isinstance(found, dict):
        found.pop("traceEvents", None)
        return found
    source.warn("the part beside the events is not valid JSON and is left out")
    return {}
