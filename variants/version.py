"""Whose code runs here: the commit of the checkout, and the version of what is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

NAME = "decode-floor"


def checkout() -> str | None:
    """The commit of the checkout that this code runs from, with "-changed" where files differ from it; None
    where it runs from none, or git is not there.
    """
    here = Path(__file__)

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(here.parent), *words], capture_output=True, text=True)
        except OSError:
            return None
        return None if done.returncode else done.stdout.strip()

    if git("ls-files", "--error-unmatch", here.name) is None:  # installed, if inside of another checkout
        return None
    return git("describe", "--always", "--abbrev=12", "--dirty=-changed", "--exclude=*")


def version() -> str:
    """Name, version and, in a checkout, commit: what `--version` prints."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        known = installed(NAME)
    except PackageNotFoundError:  # run from a checkout that nothing was installed from
        known = "not installed"
    commit = checkout()
    return f"{NAME} {known}" + (f", commit {commit}" if commit else "")
