"""How does every command of this project end? Bad input, Ctrl-C and a closed pipe without a traceback."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from variants import interrupted
from variants.errors import UserError, printable
from variants.version import version


class Help(argparse.RawDescriptionHelpFormatter):
    """Says what is done without a flag that takes a value, unless the flag's own text says it."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        value = action.default
        if action.help is None or action.nargs == 0 or "default" in action.help or value in (None, []):
            return action.help
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return f"{action.help} (default {text})".replace("%", "%%")


class _Version(argparse.Action):
    """Prints it and ends; nothing is looked up before."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        sys.stdout.write(f"{version()}\n")
        parser.exit()


class Parser(argparse.ArgumentParser):
    """Refuses bad flags as all bad input is refused: in one line. Knows --version."""

    def __init__(self, prog: str, description: str, epilog: str | None = None) -> None:
        super().__init__(prog, description=description, epilog=epilog, formatter_class=Help)
        self.add_argument("--version", action=_Version, nargs=0, help="whose code this is, and stop")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


LONGEST = 1000  # characters of a message: a file may hold a name of a million
Main = Callable[[Sequence[str] | None], int | None]


def run(main: Main, argv: Sequence[str] | None = None) -> None:
    """Run `main` and exit: bad input is one line and code 2, Ctrl-C is 130, a closed pipe is no fault."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a console that lacks a sign shows another, and goes on
        sys.stdout.reconfigure(errors="replace")
    code: str | int | None = 0
    try:
        code = _code(main, argv)
        sys.stdout.flush()
    except BrokenPipeError:  # `... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _code(main: Main, argv: Sequence[str] | None) -> str | int | None:
    try:
        _check(sys.argv[1:] if argv is None else argv)
        return main(argv)
    except SystemExit as stop:  # of --help, whose text is still to be flushed, or of rich at a closed pipe
        return 0 if isinstance(stop.__context__, BrokenPipeError) else stop.code
    except BrokenPipeError:
        raise
    except (UserError, OSError) as error:
        sys.stderr.write(refusal(error))
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(interrupted.SAID)
        return interrupted.CODE


def _check(words: Sequence[str]) -> None:
    """What is no text can be no name in a record or on a page."""
    for word in words:
        if "\0" in word or any("\ud800" <= character <= "\udfff" for character in word):
            raise UserError(f"{ascii(word)[:80]} is not valid UTF-8, or holds a NUL character")


def refusal(error: Exception) -> str:
    """What is printed of bad input, or of what the system refuses: a full disk, no right to read."""
    message = str(error)
    if isinstance(error, OSError) and error.strerror is not None:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    line = printable(" ".join(message.splitlines()))
    return (
        f"error: {line if len(line) <= LONGEST else f'{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}'}\n"
    )
