"""The library of C++ kernels, built once for this machine's instruction sets and loaded; and its plain read.

Half a minute at first use; afterwards the library is found by its key, which names the compiler too (see
`variants.build_cache`). One compiler call and no build system, so nothing can be left half done or locked.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from variants import build_cache
from variants.backends.backend import why_no_one_launch
from variants.errors import UserError

SOURCES = Path(__file__).parent / "csrc"  # `build_from` takes others
LIBRARY = "one_launch.so"
# isystem: warnings of torch's own headers are not ours
TORCH = Path(torch.__file__).parent
FLAGS = ("-std=c++20", "-fno-math-errno", "-isystem", str(TORCH / "include"))
OPTIMISED = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-shared")
LINK = (f"-L{TORCH / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{TORCH / 'lib'}")


def compile_command(source: str, output: Path, flags: Sequence[str], link: Sequence[str] = LINK) -> list[str]:
    """The compiler call that makes `output` from one file of csrc/."""
    return [str(build_cache.compiler()), *flags, *FLAGS, str(SOURCES / source), "-o", str(output), *link]


def build_from(folder: Path) -> None:
    """Take other sources, in a process that has not loaded the kernels yet: to see their faults caught."""
    global SOURCES
    assert not load.cache_info().currsize
    SOURCES = folder


@functools.cache
def load() -> None:
    """Make torch.ops.decode_floor and torch.classes.decode_floor available, or raise UserError."""
    reason = why_no_one_launch("cpu")
    if reason:
        raise UserError(reason)
    library = _library()
    if not library.exists():
        _build(library).finish()
    torch.ops.load_library(str(library))


def begin() -> None:
    """Start the compiler where there is something to build, so that `load` waits less or not at all."""
    library = _library()
    if not library.exists():
        _build(library)


def _library() -> Path:
    texts = [path.read_bytes() for path in sorted(SOURCES.iterdir())]
    return build_cache.folder("one_launch", *FLAGS, *OPTIMISED, *texts) / LIBRARY


@functools.cache
def _build(library: Path) -> _Build:
    return _Build(library)


class _Build:
    """The compiler at work, for what no one else needs a core for.

    It writes under a name of its own, and is moved then: builds may race or die, none is seen half done.
    """

    def __init__(self, library: Path) -> None:
        print("building the one-launch kernels, once per machine (half a minute)", file=sys.stderr)
        library.parent.mkdir(parents=True, exist_ok=True)
        self.library = library
        self.scratch = tempfile.TemporaryDirectory(dir=library.parent)
        self.fresh = Path(self.scratch.name) / LIBRARY
        command = ["nice", "-n", "19", *compile_command("op.cpp", self.fresh, OPTIMISED)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def finish(self) -> None:
        """Wait for the library; raises UserError where it cannot be built."""
        with self.scratch:
            _, said = self.process.communicate()
            if self.process.returncode:
                errors = [line for line in said.splitlines() if "error" in line] or ["no message"]
                raise UserError(f"building the one-launch kernels failed: {errors[0]}")
            self.fresh.replace(self.library)


class PlainRead:
    """Reads every byte of some contiguous CPU tensors once per call, with all of torch's threads.

    Laid end to end in the order given, the tensors are split into one consecutive part per thread, in whole
    cache lines. A thread reads its part tensor by tensor, each as eight stretches side by side. Where the
    tensors lie is looked up here: passing hundreds of them in every call would take longer than reading a
    narrow model.
    Raises UserError where the kernels cannot be built, ValueError for other tensors.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        load()
        if not all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in tensors):
            raise ValueError("a plain read takes contiguous CPU tensors")
        self.tensors = list(tensors)  # alive, and where they were
        places = [[tensor.data_ptr(), tensor.nbytes] for tensor in tensors]
        self.places = torch.tensor(places, dtype=torch.int64).view(-1, 2)

    def __call__(self) -> int:
        """The sum of all bytes as 64-bit words modulo 2^64 (signed), each tensor's tail padded with zeros."""
        checksum: int = torch.ops.decode_floor.read_bytes.default(self.places)
        return checksum
