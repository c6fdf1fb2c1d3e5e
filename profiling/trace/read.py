"""How the events of a trace file are read: whole or broken, in small pieces.

The events are parsed piece by piece, so peak memory stays near the size of the text. A piece is cut at a
`},{` and accepted only if it parses: a cut inside a string or a nested value leaves quotes or brackets
open, so what parses is whole events. What does not parse is mended (NaN, control characters, bad escapes,
bad UTF-8) or, where that fails, read event by event with what was skipped counted and its position kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from profiling.trace.mend import faults, loads_or_none, mend
from profiling.trace.source import LONG_TS, Source

PIECE_BYTES = 1 << 18
"""Small enough for its objects to stay in the cache: larger pieces parse more slowly."""
MAX_EXTENSIONS = 50
"""How often a piece that was cut in the wrong place is made longer before it counts as broken."""
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_NEXT_EVENT = re.compile(r'\}?\s*,?\s*(\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
_END = re.compile(r'\}\s*\](?=\s*(?:,\s*"|\}|$))')


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
    for _ in range(MAX_EXTENSIONS):
        boundary = _BETWEEN.search(text, search_from) if search_from < len(text) else None
        stop = boundary.start() + 1 if boundary else len(text)
        piece = text[at:stop]
        if source.long_times:
            piece = LONG_TS.sub(rb'\1"\2"', piece)
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
        mended = mend(piece)
        if mended == piece:
            raise
        try:
            parsed = _parse(mended, cut_between)
        except orjson.JSONDecodeError as second:
            raise second from error
    source.warn("parts of the text were not valid JSON and were mended: " + ", ".join(faults(piece)))
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


def _one_by_one(source: Source, piece: bytes, at: int, last: bool) -> tuple[list[Any], bytes | None]:
    """Events of a piece that does not parse as a whole; what cannot be read is skipped up to the next
    event's start.
    """
    text = mend(piece).decode()
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
    found = loads_or_none(source.text[: source.start] + b"]" + (source.tail or b"}"))
    if isinstance(found, dict):
        found.pop("traceEvents", None)
        return found
    source.warn("the part beside the events is not valid JSON and is left out")
    return {}
