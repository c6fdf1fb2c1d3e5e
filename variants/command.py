"""How does every command of this project end? Bad input, Ctrl-C and a closed pipe without a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from variants.errors import UserError

Main = Callable[[Sequence[str] | None], int | None]


def run(main: Main, argv: Sequence[str] | None = None) -> None:
    """Run `main` and exit: bad input is one line and code 2, Ctrl-C is 130, a closed pipe is no fault."""
    code: str | int | None = 0
    try:
        code = _code(main, argv)
        sys.stdout.flush()
    except BrokenPipeError:  # `... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _code(main: Main, argv: Sequence[str] | None) -> str | int | None:
    try:
        return main(argv)
    except SystemExit as stop:  # of --help, whose text is still to be flushed, or of rich at a closed pipe
        return 0 if isinstance(stop.__context__, BrokenPipeError) else stop.code
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
