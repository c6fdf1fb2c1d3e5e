"""The one exception whose message is meant for the person at the keyboard."""


class UserError(Exception):
    """Bad input: the message says what is wrong, where, and what to do.

    The command line prints it as one line and exits with code 2; nothing has been written.
    """


def one_line(error: BaseException) -> str:
    """Type and first line of a message: what a table or a record says of a crash."""
    try:
        lines = str(error).strip().splitlines()
    except Exception:  # somebody else's error may not even say itself
        lines = []
    return printable(f"{type(error).__name__}: {lines[0] if lines else 'no message'}")


def printable(line: str) -> str:
    """The line without what moves a cursor or colours a console: a file's names may hold it."""
    return "".join(c if c.isprintable() else " " for c in line)
