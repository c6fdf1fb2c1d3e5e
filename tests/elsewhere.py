"""Runs an experiment as on another system, as far as Linux can play it.

    python tests/elsewhere.py darwin floor --model tiny

What only Linux has is gone: Triton, /proc and /sys, flags of mmap and, as on Windows, parts of `os`.
Libraries are loaded before that, since they choose their own code by platform.
"""

from __future__ import annotations

import importlib
import mmap
import os
import pathlib
import sys
from importlib.metadata import packages_distributions
from types import ModuleType

import matplotlib.pyplot
import pandas
import psutil
import rich.console
import rich.live
import scipy.stats
import torch

LOADED = (matplotlib, pandas, psutil, rich, scipy, torch, packages_distributions)
GONE = {
    "darwin": [(mmap, "MADV_HUGEPAGE"), (os, "sched_getaffinity"), (os, "memfd_create")],
    "win32": [
        *((mmap, name) for name in ("MADV_HUGEPAGE", "MAP_PRIVATE", "MAP_ANONYMOUS")),
        *((os, name) for name in ("sched_getaffinity", "sysconf", "getloadavg", "fork", "uname")),
    ],
}


class Msvcrt(ModuleType):
    """What Windows alone has: nobody else holds a lock."""

    LK_NBLCK = 2

    @staticmethod
    def locking(file: int, mode: int, length: int) -> None:
        assert (mode, length) == (Msvcrt.LK_NBLCK, 1)


class NoTriton:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide_folders() -> None:
    exists, opened = pathlib.Path.exists, pathlib.Path.open

    def hidden(path: pathlib.Path) -> bool:
        return path.as_posix().startswith(("/proc", "/sys"))

    def open_if_there(path: pathlib.Path, *args: object, **kwargs: object) -> object:
        if hidden(path):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return opened(path, *args, **kwargs)

    pathlib.Path.exists = lambda path, **kwargs: not hidden(path) and exists(path, **kwargs)
    pathlib.Path.open = open_if_there


def main() -> None:
    sys.meta_path.insert(0, NoTriton())
    hide_folders()
    sys.platform = sys.argv[1]
    for module, name in GONE[sys.platform]:
        delattr(module, name)
    if sys.platform == "win32":
        sys.modules["msvcrt"] = Msvcrt("msvcrt")
    from variants import command

    command.run(importlib.import_module(f"experiments.{sys.argv[2]}").main, sys.argv[3:])


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path.cwd()))
    main()
