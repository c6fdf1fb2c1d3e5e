"""Ctrl-C while a command still imports what it needs: one line and exit code 130, as later.

Packages that hold commands import this before anything else; it needs nothing that Python has not loaded.
"""

import sys
from types import TracebackType

SAID, CODE = "interrupted\n", 130


def from_the_first_line() -> None:
    """Answer Ctrl-C so from here on, where Python was started for a command, not to use us as a library."""
    program = sys.argv[0] if sys.argv else ""
    if program == "-m" or program.endswith(("decode-floor", "decode-floor.exe")):
        sys.excepthook = _excepthook


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        return sys.__excepthook__(kind, error, trace)
    sys.stderr.write(SAID)
    raise SystemExit(CODE)
