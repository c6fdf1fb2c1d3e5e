"""What can be put right in broken JSON without guessing."""

from __future__ import annotations

import re
from typing import Any

import orjson

_NOT_NUMBERS = re.compile(rb"([:\[,]\s*)[-+]?(?:NaN|nan|Infinity|inf|INF)(?=\s*[,\]}])")
_ESCAPE = re.compile(rb'(\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})|\\')
_DANGLING_COMMA = re.compile(rb",(?=\s*[\]}])")
_CONTROLS_TO_SPACE = bytes(c if c >= 32 else 32 for c in range(256))


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
