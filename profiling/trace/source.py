"""The text of a trace file, read in chunks and inflated where it is gzip, and where its events start."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import orjson

from profiling.trace.malformed import GZIP, HEAD_BYTES, UTF_16, loads_or_none, refuse_others
from variants.errors import UserError

CHUNK_BYTES = 4 << 20
MAX_HEAD_BYTES = 64 << 20
"""Events begin before this byte, or the file is no trace."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOM = b"\xef\xbb\xbf"


@dataclass
class Source:
    """A trace's text, of which a window is held in memory, and what was noticed while reading it.

    `head`: the text up to and with the `[` of the events. `text[at:]`: what is read and not yet used;
    `base`: the byte of the whole text at which `text` begins.
    """

    path: Path
    chunks: Iterator[bytes]
    head: bytes = b""
    text: bytes = b""
    at: int = 0
    base: int = 0
    size: int = 0
    """Bytes of text that have been read from the file."""
    long_times: bool = False
    """Whether timestamps have digits that a float64 would lose."""
    warnings: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    tail: bytes | None = None
    """The text behind the events, once they have been read; None where the file ends before they do."""

    @property
    def position(self) -> int:
        """The byte of the whole text up to which it has been used."""
        return self.base + self.at

    def more(self) -> bool:
        """Take as much text again into the window, at least a chunk, and drop what has been used."""
        held = self.text[self.at :]
        taken, size = [held], 0
        for chunk in self.chunks:
            taken.append(chunk)
            size += len(chunk)
            if size >= len(held):
                break
        self.base, self.at, self.text = self.position, 0, b"".join(taken)
        return size > 0

    def rest(self) -> bytes:
        """All text that has not been used."""
        return b"".join([self.text[self.at :], *self.chunks])

    def skip(self, why: str, count: int = 1) -> None:
        if count:
            self.skipped[why] = self.skipped.get(why, 0) + count

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)


def open_source(path: Path, progress: Callable[[float], None] | None = None) -> Source:
    """A trace file up to where its events start; UserError where there are none.

    `progress` is called with the share of the file that has been read.
    """
    source = Source(path, iter(()))
    source.chunks = _text(path, source, progress)
    try:
        source.more()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    if source.text[:3] == _BOM:
        source.text = source.text[3:]
    refuse_others(path, source.text[:HEAD_BYTES])
    start = _find_events(source)
    source.head, source.at = source.text[:start], start
    return source


def _text(path: Path, source: Source, progress: Callable[[float], None] | None) -> Iterator[bytes]:
    """The file's text in chunks: inflated, and in UTF-8."""
    with path.open("rb") as file:
        size = path.stat().st_size
        start = file.read(2)
        file.seek(0)
        chunks = _inflated(file, source) if start == GZIP else iter(lambda: file.read(CHUNK_BYTES), b"")
        if start in UTF_16:
            source.warn("the file is UTF-16 and was read as that")
            decode = codecs.getincrementaldecoder("utf-16")("replace").decode
            chunks = (decode(chunk).encode() for chunk in chunks)
        for chunk in chunks:
            source.size += len(chunk)
            yield chunk
            if progress:
                progress(file.tell() / size)


def _inflated(file: BinaryIO, source: Source) -> Iterator[bytes]:
    """Gzip by its first bytes, not by its name; a cut or damaged file gives what can be inflated."""
    inflater, inflated, data = zlib.decompressobj(wbits=31), 0, b""
    while data := data or file.read(CHUNK_BYTES // 4):
        before = inflater.copy()
        try:
            text = inflater.decompress(data, CHUNK_BYTES)
        except zlib.error as error:
            source.warn(f"gzip data is damaged ({error}); read as far as it goes")
            text = _inflate_slowly(before, data)
            inflated += len(text)
            yield text
            break
        inflated += len(text)
        data = inflater.unconsumed_tail
        if text:
            yield text
        if inflater.eof:  # another member may follow, as `cat a.gz b.gz` writes it
            data = (inflater.unused_data or file.read(CHUNK_BYTES // 4)).lstrip(b"\0")
            if data[:2] != GZIP:
                break
            inflater = zlib.decompressobj(wbits=31)
    else:
        if not inflater.eof:
            source.warn("gzip data ends early: the file is cut; read as far as it goes")
    if not inflated:
        raise UserError(
            f"{source.path}: gzip data is damaged at its start and nothing can be read; fetch the file again"
        )


def _inflate_slowly(inflater: zlib._Decompress, data: bytes) -> bytes:
    """What comes out before the damage, in small steps since an error loses the step it happens in."""
    out = bytearray()
    try:
        for at in range(0, len(data), 1024):
            out += inflater.decompress(data[at : at + 1024])
    except zlib.error:
        pass
    return bytes(out)


def _find_events(source: Source) -> int:
    """Position in `source.text` behind the `[` of the events; reads on until it is found."""
    while True:
        text = source.text
        first = len(text) - len(text.lstrip())
        if text[first : first + 1] == b"[":
            return first + 1
        candidates = [m.end() for m in _ARRAY.finditer(text)]
        for start in candidates:
            if isinstance(loads_or_none(text[:start] + b"]}"), dict):
                return start
        if len(text) >= MAX_HEAD_BYTES or not source.more():
            break
    if candidates and text[first : first + 1] == b"{":
        source.warn("the part before the events is not valid JSON and is left out")
        return candidates[0]
    raise _refusal(source.path, text)


def _refusal(path: Path, text: bytes) -> UserError:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return UserError(
            f'{path}: no "traceEvents" found, and it is not JSON from byte {error.pos} on ({error.msg}); '
            "give a Kineto or Chrome trace (*.json or *.json.gz)"
        )
    return UserError(
        f'{path}: valid JSON without "traceEvents"; give a Kineto or Chrome trace (*.json or *.json.gz)'
    )
