"""The one exception whose message is meant for the person at the keyboard."""


class UserError(Exception):
    """Bad input: the message says what is wrong, where, and what to do.

    The command line prints it as one line and exits with code 2; nothing has been written.
    """
