# ruff: noqa: E501 (a line per bug)
"""Twelve planted bugs, each of which the checks of this project must catch: are the proofs worth anything?

Each mutant is a copy of the package with one line changed, imported under another name.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton compiles here, so nothing is interpreted", allow_module_level=True)

import torch

import variants.backends.triton_step
from tests.triton_emulator import Emulated
from tests.triton_reference import Case
from variants.config import GPTConfig

PACKAGE = Path(variants.backends.triton_step.__file__).parent
CONFIG = GPTConfig(n_layer=2, n_head=4, n_embd=24, n_kv_head=2, n_ctx=24, vocab_size=37, n_inner=40)
FUSED, EMULATED = "a kernel per phase", "one launch, interleaved"


class Bug(NamedTuple):
    file: str
    right: str
    wrong: str
    shows_in: str = FUSED


BUGS = {
    "off by one at a tile's edge": Bug("tiles.py", "mask=(n < end) & (k < K), other=0)", "mask=(n <= end) & (k < K - 1), other=0)"),
    "new key left out": Bug("attention.py", "newest = split == live - 1", "newest = split == live"),
    "old tail visible": Bug("attention.py", "end = tl.minimum((split + 1) * keys, length)\n    d =", "end = (split + 1) * keys\n    d ="),
    "splits weighted alike": Bug("attention.py", "shares = tl.exp(logs - tl.max(logs, 0))", "shares = tl.where(s < live, 1.0, 0.0)"),
    "heads of a group mixed up": Bug("attention.py", "(pair % H) // GROUP", "(pair % H) % HEADS"),
    "key appended one slot late": Bug("linear.py", "* CAPACITY + slot) * D", "* CAPACITY + slot + 1) * D"),
    "residual overwritten": Bug("linear.py", 'cache_modifier=".cg") + y, mask', 'cache_modifier=".cg") * 0 + y, mask'),
    "ties to the highest index": Bug("finish.py", "tl.min(tl.where(top == tl.max(top, 0), at, NO_INDEX), 0)", "tl.max(tl.where(top == tl.max(top, 0), at, -1), 0)"),
    "barrier counts one too few": Bug("persistent.py", "        target += PROGRAMS\n        weights_up", "        target += PROGRAMS - 1\n        weights_up", EMULATED),
    "no barrier before the residual": Bug("persistent.py", "        polls = wait(barrier, target, polls, stamps, at + 8)\n        linear(first_down", "        linear(first_down", EMULATED),
    "arrivals not put back": Bug("sync.py", "        tl.store(counter, 0)", "        tl.store(counter, 1)"),
    "barrier not put back": Bug("finish.py", "tl.store(counters + 1, 0)", "tl.store(counters + 1, 1)"),
}  # fmt: skip


def mutant(name: str, bug: Bug, folder: Path) -> ModuleType:
    """The package with one bug, under a name and an operator namespace of its own."""
    package = "mutant_" + "".join(c if c.isalnum() else "_" for c in name)
    shutil.copytree(PACKAGE, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (folder / package).glob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.name == bug.file:
            assert text.count(bug.right) == 1, f"the line to break is not there once: {bug.right}"
            text = text.replace(bug.right, bug.wrong)
        text = text.replace("variants.backends.triton_step", package).replace(
            '"triton_step::', f'"{package}::'
        )
        file.write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        importlib.import_module(f"{package}.steps")
        return sys.modules[package]
    finally:
        sys.path.remove(str(folder))


def fused(package: Any) -> None:
    """Two steps of a kernel per phase; twins in the vocabulary make ties."""
    case = Case(CONFIG, "float32", 13)
    backend = package.steps.TritonStep(case.model, case.cache, programs=9, block=4)
    for _ in range(2):
        case.check_step(backend)
    tied = Case(CONFIG, "float32", 5)
    with torch.no_grad():
        tied.model.wte.weight.copy_(tied.model.wte.weight[:1].expand(CONFIG.vocab_size, -1).clone())
    package.steps.TritonStep(tied.model, tied.cache, programs=9, block=4).step(tied.token)
    assert int(tied.token) == 0, "the lowest index wins a tie"


def interleaved(package: Any) -> None:
    """Steps of one launch with four programs, under several schedules."""
    real = package.persistent.one_step
    for seed in range(4):
        package.persistent.one_step = Emulated(real, 100 * seed, limit=20_000)
        case = Case(CONFIG, "float32", 9)
        backend = package.steps.PersistentStep(case.model, case.cache, programs=4, resident=4, block=4)
        case.check_step(backend)


QUICK = ("old tail visible",)  # the others are marked slow
CHECKS = {FUSED: fused, EMULATED: interleaved}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if b.shows_in == EMULATED else n for n, b in BUGS.items()],
)
def test_a_planted_bug_is_caught(name: str, tmp_path: Path) -> None:
    bug = BUGS[name]
    package = mutant(name, bug, tmp_path)
    with pytest.raises((AssertionError, RuntimeError)):
        CHECKS[bug.shows_in](package)


@pytest.mark.slow
def test_the_same_checks_pass_without_a_bug(tmp_path: Path) -> None:
    package = mutant("without a bug", Bug("finish.py", "held + 1", "held + 1"), tmp_path)
    fused(package)


@pytest.mark.slow
def test_the_interleaved_check_passes_without_a_bug(tmp_path: Path) -> None:
    package = mutant("without a bug, interleaved", Bug("finish.py", "held + 1", "held + 1"), tmp_path)
    interleaved(package)
