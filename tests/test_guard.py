"""The machine is watched while it is measured, and each disturbance says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from msgspec.structs import replace
from records import MADE

from profiling.measure import guard
from profiling.results.guard import disturbances
from profiling.results.record import Environment, FloorRecord, MachineLook


def look(**changes: float | None) -> MachineLook:
    quiet: dict[str, float | None] = {
        "busy_elsewhere": 0.0,
        "stolen": 0.0,
        "swapped_bytes": 0,
        "throttled": 0,
    }
    return MachineLook(round=0, **(quiet | changes))  # type: ignore[arg-type]


ENVIRONMENT = Environment(
    device="cpu",
    device_name="cpu",
    cpu="cpu",
    cores=2,
    threads=2,
    simd="",
    memory_bytes=1,
    huge_pages=None,
    os="",
    python="",
    packages={},
    load_at_start=0.0,
)


def record(*looks: MachineLook) -> FloorRecord:
    return FloorRecord(**MADE, environment=ENVIRONMENT, machine=list(looks))


@pytest.mark.parametrize(
    "changes,said",
    [
        ({"busy_elsewhere": 0.11}, "up to 0.1 cores busy (in 1 of 3 rounds): end them"),
        ({"stolen": 0.03}, "up to 3% of the cores' time"),
        ({"swapped_bytes": 3 << 20}, "3 MiB were swapped"),
        ({"throttled": 4}, "throttled for heat 4 times"),
    ],
)
def test_every_disturbance_is_said_with_what_to_do(changes: dict[str, float], said: str) -> None:
    (found,) = disturbances(record(look(), look(**changes), look()))
    assert said in found and ": " in found


@pytest.mark.parametrize(
    "changes", [{"busy_elsewhere": 0.1}, {"stolen": 0.02}, {"stolen": None, "throttled": None}]
)
def test_a_quiet_machine_or_one_that_does_not_tell_is_not_blamed(changes: dict[str, float | None]) -> None:
    assert disturbances(record(*[look(**changes)] * 3)) == [] and disturbances(record()) == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A machine of two cores whose counters a test sets, seconds."""
    machine = SimpleNamespace(seconds=0.0, user=0.0, idle=0.0, steal=0.0, ours=0.0, swapped=0)
    monkeypatch.setattr(guard.time, "monotonic", lambda: machine.seconds)
    monkeypatch.setattr(
        psutil,
        "cpu_times",
        lambda: SimpleNamespace(user=machine.user, system=0.0, idle=machine.idle, steal=machine.steal),
    )
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(sin=machine.swapped, sout=0))
    process = SimpleNamespace(
        cpu_times=lambda: SimpleNamespace(
            user=machine.ours, system=0.0, children_user=0.0, children_system=0.0
        )
    )
    monkeypatch.setattr(psutil, "Process", lambda: process)
    yield machine


def test_a_look_covers_what_happened_since_the_last(clock: SimpleNamespace, tmp_path: Path) -> None:
    file = tmp_path / "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
    file.parent.mkdir(parents=True)
    file.write_text("7\n")
    watched = guard.Guard(tmp_path)
    clock.seconds, clock.user, clock.ours, clock.idle, clock.steal, clock.swapped = 10, 15, 10, 4, 1, 4096
    file.write_text("9\n")
    look = watched.look(3)
    assert (look.round, look.busy_elsewhere, look.swapped_bytes, look.throttled) == (3, 0.5, 4096, 2)
    assert look.stolen == pytest.approx(1 / 20)
    again = watched.look(4)
    assert (again.busy_elsewhere, again.stolen, again.swapped_bytes, again.throttled) == (0, None, 0, 0)


def test_a_machine_that_does_not_tell_of_heat_is_unknown(clock: SimpleNamespace, tmp_path: Path) -> None:
    assert guard.Guard(tmp_path).look(0).throttled is None


def test_what_makes_a_process_slow_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 2)
    assert guard.unfit(2) == []
    (found,) = guard.unfit(4)
    assert "4 threads on 2 physical cores" in found and "--threads 2" in found
    monkeypatch.setattr(torch.version, "debug", True)
    assert len(guard.unfit(4)) == 2


@pytest.mark.parametrize("load,said", [(2.0, False), (2.1, True)])
def test_a_load_before_the_run_is_said(load: float, said: bool) -> None:
    loaded = replace(ENVIRONMENT, cores=2, load_at_start=load)
    lines_ = disturbances(replace(record(), environment=loaded))
    assert bool(lines_) is said and all("the load was 2.1 before anything ran" in text for text in lines_)


# -- energy ---------------------------------------------------------------------------------------


def zone(sys: Path, folder: str, name: str, uj: int) -> Path:
    path = sys / "class" / "powercap" / folder
    path.mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", str(uj)), ("max_energy_range_uj", "999")):
        (path / file).write_text(f"{text}\n")
    return path / "energy_uj"


def test_energy_is_that_of_packages_and_memory_over_a_wrap(tmp_path: Path) -> None:
    package = zone(tmp_path, "intel-rapl:0", "package-0", 900)
    memory = zone(tmp_path, "intel-rapl:0:1", "dram", 5)
    cores = zone(tmp_path, "intel-rapl:0:0", "core", 1)
    energy = guard.Energy(tmp_path)
    before = energy.read()
    for file, uj in ((package, 100), (memory, 15), (cores, 500)):  # the cores are part of the package
        file.write_text(str(uj))
    assert energy.joules_since(before) == pytest.approx((200 + 10) / 1e6)


def test_energy_that_nobody_tells_is_unknown(tmp_path: Path) -> None:
    assert guard.Energy(tmp_path).joules_since([]) is None
    zone(tmp_path, "intel-rapl:0", "package-0", 1).unlink()
    assert guard.Energy(tmp_path).joules_since([]) is None


def test_the_most_memory_that_was_held_does_not_shrink() -> None:
    before = guard.peak_resident_bytes()
    held = torch.ones(1 << 24)
    after = guard.peak_resident_bytes()
    assert before is None or (after is not None and after >= before and after >= held.nbytes)
