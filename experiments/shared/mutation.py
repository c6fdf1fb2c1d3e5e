"""Right JSON and bytes, made wrong as a seed draws it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3.0, 1e300, -1e-300, float("nan"), float("inf"), 2**31, 2**63, 2**70,
    "", "x", "../../x", "/etc/passwd", "C:\\x", "\0", "\ud800", "<b>", "a\nb", "|", "x" * 10_000, "9" * 5000,
    [], {}, [[]], {"a": {}}, [None] * 1000, [1e308, -1e308],
)  # fmt: skip
SNIPPETS = (
    b"\0", b"\xff\xfe", b'"', b"\\", b"{", b"]", b"NaN", b"1e999", b"-", b"[" * 100_000, b'{"a":' * 50_000,
)  # fmt: skip


def changed(raw: Any, random: Random) -> Any:
    """A copy with one thing in it replaced, removed or doubled; where is drawn level by level."""
    if not isinstance(raw, dict | list) or not raw or random.random() < 0.1:
        return random.choice(VALUES)
    copied: Any = raw.copy()
    key = random.choice([*raw]) if isinstance(raw, dict) else random.randrange(len(raw))
    match random.randrange(10):
        case 0:
            del copied[key]
        case 1 if isinstance(raw, list):
            copied.append(raw[key])
        case 1:
            copied[f"{key}x"] = raw[key]
        case _:
            copied[key] = changed(raw[key], random)
    return copied


def scrambled(content: bytes, random: Random) -> bytes:
    """Cut, with a byte changed, with something put in, or with a piece of it twice."""
    at, end = sorted(random.randrange(len(content) + 1) for _ in range(2))
    match random.randrange(4):
        case 0:
            return content[:at]
        case 1:
            return content[:at] + bytes([random.randrange(256)]) + content[at + 1 :]
        case 2:
            return content[:at] + random.choice(SNIPPETS) + content[at:]
    return content[:end] + content[at:end][:10_000] + content[end:]


def wrong(raw: Any, random: Random) -> bytes:
    """JSON with one to three things wrong, in its values or in its bytes."""
    for _ in range(random.randint(0, 3)):
        raw = changed(raw, random)
    content = json.dumps(raw).encode()
    return scrambled(content, random) if random.random() < 0.3 else content
