"""Programs that run at the same time: the grid barrier, the last to arrive, and a program that is lost.

Several programs are interleaved by tests/triton_emulator.py. Errors of memory ordering cannot show there.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton compiles here, so nothing is interpreted", allow_module_level=True)

import numpy as np
import torch

from profiling.measure.phases import LAYER_PHASES, phases
from tests.triton_emulator import Emulated
from tests.triton_reference import Case
from variants.backends.triton_step import kernels, persistent, steps
from variants.config import GPTConfig

CONFIG = GPTConfig(n_layer=2, n_head=3, n_embd=24, n_ctx=24, vocab_size=37, n_inner=40)


def one_launch(case: Case, programs: int, **options: Any) -> steps.PersistentStep:
    return steps.PersistentStep(
        case.model, case.cache, programs=programs, resident=programs, block=4, **options
    )


@pytest.mark.parametrize(
    ("programs", "length", "seed"),
    [
        (2, 0, 0),
        (3, 9, 1),
        pytest.param(4, 23, 2, marks=pytest.mark.slow),
        pytest.param(7, 13, 3, marks=pytest.mark.slow),
    ],
)
def test_one_launch_of_several_programs(
    programs: int, length: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent, "one_step", Emulated(persistent.one_step, seed))
    case = Case(CONFIG, "float32", length)
    backend = one_launch(case, programs)
    for _ in range(1 if length == 23 else 2):
        case.check_step(backend)
    backend.verify()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_one_launch_of_a_batch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent, "one_step", Emulated(persistent.one_step, seed))
    case = Case(CONFIG, "float32", 9, batch=2)
    case.check_step(one_launch(case, 3))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kernel_per_phase_with_its_programs_interleaved(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of one head and programs of the head finish in any order."""
    for name in ("attend_kernel", "head_kernel", "qkv_kernel"):
        monkeypatch.setattr(kernels, name, Emulated(getattr(kernels, name), seed))
    case = Case(CONFIG, "float32", 17)
    case.check_step(steps.TritonStep(case.model, case.cache, programs=9, block=4))


class PartlyResident(Emulated):
    """Launches fewer programs than the kernel was planned for, as if the others never got a place."""

    def __getitem__(self, grid: tuple[int]):  # type: ignore[no-untyped-def]
        return super().__getitem__((grid[0] - 1,))


def test_a_program_that_never_runs_is_an_error_and_not_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    real = persistent.one_step
    monkeypatch.setattr(persistent, "one_step", PartlyResident(real))
    case = Case(CONFIG, "float32", 9)
    token, held = case.token.clone(), int(case.cache.length)
    backend = one_launch(case, 3, polls=40)
    backend.step(case.token)
    with pytest.raises(RuntimeError, match=r"grid barrier timed out after 40 polls: not all 3 programs"):
        backend.verify()
    monkeypatch.setattr(persistent, "one_step", Emulated(real))
    backend.polls = steps.POLLS
    case.token.copy_(token)
    case.cache.rewind(held)
    case.check_step(backend)  # the barrier has been put back, and the step works again
    backend.verify()


def test_without_the_watchdog_it_would_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent, "one_step", PartlyResident(persistent.one_step, limit=2000))
    case = Case(CONFIG, "float32", 9)
    with pytest.raises(Exception, match=r"Hang.*hand-overs"):
        one_launch(case, 3).step(case.token)


def test_the_grid_is_clamped_to_what_is_resident() -> None:
    case = Case(CONFIG, "float32", 9)
    backend = steps.PersistentStep(case.model, case.cache, programs=1000, resident=5)
    assert backend.geometry.programs == 5
    assert (
        steps.PersistentStep(case.model, case.cache).geometry.programs == 1
    )  # the interpreter runs one at a time


def test_scratch_is_poisoned_so_that_reading_what_no_phase_wrote_shows() -> None:
    case = Case(CONFIG, "float32", 9)
    backend = steps.TritonStep(case.model, case.cache, programs=2, block=4)
    assert all(torch.isnan(t).all() for t in backend.scratch if t.is_floating_point())


def test_every_program_stamps_its_arrival_at_each_barrier_and_when_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is behind a barrier before all have arrived, and every phase of a step is between two stamps."""
    monkeypatch.setattr(persistent, "one_step", Emulated(persistent.one_step, 5))
    case, programs = Case(CONFIG, "float32", 9), 3
    backend = one_launch(case, programs, stamped=True)
    case.check_step(backend)
    assert backend.stamps is not None
    stamps = backend.stamps.numpy()
    assert (np.diff(stamps) > 0).all() and len(np.unique(stamps)) == stamps.size and stamps.min() > 0
    at_barriers = stamps[:, 1:-1].reshape(programs, CONFIG.n_layer * len(LAYER_PHASES), 2)
    assert (at_barriers[..., 0].max(0) < at_barriers[..., 1].min(0)).all()
    whole_us = (stamps[:, -1] - stamps[:, 0]).mean() / 1e3
    read = phases(stamps[None])
    assert sum(phase.us for phase in read) == pytest.approx(whole_us)
    assert sum(phase.share for phase in read) == pytest.approx(1)


def test_phases_are_told_from_stamps() -> None:
    """Two programs, two layers: phase p of layer l takes them 10 p + l + 1 and twice that, in us; the barrier
    ends 3 us after the slower one. The head takes 7 and 9."""
    stamps, now = np.zeros((1, 2, 22), np.int64), 1000
    stamps[:, :, 0] = now
    for layer in range(2):
        for number in range(len(LAYER_PHASES)):
            work = 1000 * (10 * number + layer + 1)
            place = 1 + 10 * layer + 2 * number
            stamps[0, :, place] = now + work, now + 2 * work
            now += 2 * work + 3000
            stamps[0, :, place + 1] = now
    stamps[0, :, -1] = now + 7000, now + 9000
    read = phases(stamps)
    assert [phase.phase for phase in read] == [*LAYER_PHASES, "head"]
    for number, phase in enumerate(read[:-1]):
        once = sum(10 * number + layer + 1 for layer in range(2))
        assert (phase.work_us, phase.slowest_us) == pytest.approx((1.5 * once, 2 * once))
        assert (phase.us, phase.barrier_us) == pytest.approx((2 * once + 6, 6))
    assert (read[-1].us, read[-1].slowest_us, read[-1].barrier_us) == pytest.approx((8, 9, 0))
