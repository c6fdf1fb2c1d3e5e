"""How the events of a trace file are read: whole or broken, in small pieces.

The text is parsed piece by piece, so peak memory stays far below its size. A piece is cut at a `},{` and
accepted only if it parses: a cut inside a string or a nested value leaves quotes or brackets open, so what
parses is whole events. What does not parse is mended (NaN, control characters, bad escapes, bad UTF-8) or,
where that fails, read event by event with what was skipped counted and its position kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import orjson

from profiling.trace.malformed import faults, loads_or_none, mend
from profiling.trace.source import Source

PIECE_BYTES = 1 << 18
"""Small enough for its objects to stay in the cache: larger pieces parse more slowly."""
MAX_EXTENSIONS = 50
"""How often a piece that was cut in the wrong place is made longer before it counts as broken."""
MAX_TAIL_BYTES = 64 << 20
# 2**43 us: from here a float64 of microseconds no longer holds every nanosecond.
LONG_TS = re.compile(rb'("ts"\s*:\s*)(-?(?:\d{14,}|9\d{12}|8[7-9]\d{11})\.\d*[1-9]\d*)')
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_NEXT_EVENT = re.compile(r'\}?\s*,?\s*(\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|args|s|bp)"\s*:)')
_END = re.compile(r'\}\s*\](?=\s*(?:,\s*"|\}|$))')
NOT_EVENT = "not an event"
Parse = Callable[[bytes], list[Any]]


def pieces(source: Source, parse: Parse = orjson.loads) -> Iterator[list[Any]]:
    """Lists of events, in file order; sets `source.tail` at the end.

    `parse` makes events of a JSON list, or fails with a ValueError; it is asked first, and what it cannot
    read, or what had to be mended, it gets again as clean JSON.
    """
    while source.tail is None:
        if not _at_event(source):
            where = source.position
            source.warn(f"the file ends at byte {where} before its events do: it is cut")
            return
        piece, ends = _cut(source)
        events = None
        if ends is not None:
            with suppress(ValueError, RecursionError):
                events = parse(b"[%b]" % _exact(source, piece))
                source.at += ends
        if events is None:
            events = _carefully(source, parse)
        if events:
            yield events


def _at_event(source: Source) -> bool:
    """Go on to the next byte that is neither space nor comma; False at the end of the text."""
    while True:
        text, at = source.text, source.at
        while at < len(text) and text[at] in b" \t\r\n,":
            at += 1
        source.at = at
        if at < len(text):
            return True
        if not source.more():
            return False


def _cut(source: Source, least: int = PIECE_BYTES) -> tuple[bytes, int | None]:
    """Text of at least `least` bytes that ends where an event may end, and how far on the next one begins.

    The rest of the text and None where no further event begins.
    """
    while True:
        boundary = _BETWEEN.search(source.text, source.at + least)
        if boundary:
            return source.text[source.at : boundary.start() + 1], boundary.end() - source.at
        if not source.more():
            return source.text[source.at :], None


def _exact(source: Source, piece: bytes) -> bytes:
    """The piece with times in quotes where a float64 would lose their digits: one clock writes all of a file.

    After the first piece only its ends are looked at.
    """
    if not source.long_times:
        seen = len(piece) if source.position < PIECE_BYTES else 4096
        source.long_times = any(LONG_TS.search(part) for part in (piece[:seen], piece[-4096:]))
    return LONG_TS.sub(rb'\1"\2"', piece) if source.long_times else piece


def _carefully(source: Source, parse: Parse) -> list[Any]:
    """Events of the next piece, which does not parse as it stands; sets `source.tail` at the end."""
    least = PIECE_BYTES
    for attempt in range(MAX_EXTENSIONS):
        piece, ends = _cut(source, least)
        text = _exact(source, piece)
        try:
            events, tail = _parse_or_mend(source, text, ends is not None)
            break
        except orjson.JSONDecodeError as error:
            cut_inside = ends is not None and error.msg.startswith("unexpected end of data")
            if not cut_inside or attempt == MAX_EXTENSIONS - 1:
                events, tail = _one_by_one(source, text, source.position, ends is None)
                break
            least = len(piece)  # the cut was inside a string or a nested list
    source.at += len(piece)
    if tail is not None:
        source.tail = (tail + source.rest())[:MAX_TAIL_BYTES]
    good = [event for event in events if type(event) is dict]
    source.skip(NOT_EVENT, len(events) - len(good))
    return good if parse is orjson.loads else _as_clean_json(source, good, parse)


def _as_clean_json(source: Source, events: list[Any], parse: Parse) -> list[Any]:
    """What `parse` makes of events that Python could read; half a surrogate pair becomes a question mark."""

    def clean(some: list[Any]) -> list[Any]:
        return parse(json.dumps(some, ensure_ascii=False).encode(errors="replace"))

    try:
        return clean(events)
    except (ValueError, RecursionError):
        read = []
        for event in events:
            try:
                read += clean([event])
            except (ValueError, RecursionError):
                source.skip("event that is not valid JSON")
        return read


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
        except (ValueError, RecursionError) as error:
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
    """What the file says beside its events; {} for a list or where that part cannot be read.

    A second document behind the first is not read, and that is said.
    """
    is_list = source.head.lstrip()[:1] == b"["
    text = b"[]" if is_list else source.head + b"]"
    text += source.tail if source.tail is not None else (b"" if is_list else b"}")
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("unexpected content after document"):
            source.warn("the file holds more than one JSON document; what follows the first one is not read")
            text = text.decode("utf-8", "replace")[: error.pos].encode()
        document = loads_or_none(text)
    if isinstance(document, dict):
        document.pop("traceEvents", None)
        return document
    if not is_list:
        source.warn("the part beside the events is not valid JSON and is left out")
    return {}
