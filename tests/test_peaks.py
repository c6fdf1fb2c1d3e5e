"""A device: what it is set to, what a graph's node adds to its kernel, reads that are not mostly syncs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from records import entry, setting
from torch._C._autograd import DeviceType

from profiling.analysis.predict import Costs
from profiling.measure.clock import Clock
from profiling.measure.environment import answers, gpu, smi
from profiling.measure.peaks import _kernel_us, times_ms
from profiling.measure.tracing import _replay_costs
from profiling.results.metrics import Measured
from profiling.results.peaks import rates
from profiling.results.record import FloorRecord, Peaks, Sample, StepPrediction, replaced
from reports.sections.about import _gpu


def peaks(node_us: float | None, kernel_us: float | None) -> Peaks:
    rates = {"read_gb_per_s": 600.0, "matmul_flop_per_s": 1e13, "launch_us": 4.0}
    return Peaks(**rates, graph_node_us=node_us, tape_op_us=None, graph_kernel_us=kernel_us)


@pytest.mark.parametrize(
    ("node_us", "kernel_us", "gap_us"),
    [
        (2.3, 1.5, 0.8),
        (1.4, 1.5, 0.0),  # of a profiler that stretches kernels
        (2.3, None, None),  # nothing says which part of it is the kernel's
        (None, None, None),
    ],
)
def test_the_gap_of_a_node_does_not_hold_the_kernel_s_own_time(
    node_us: float | None, kernel_us: float | None, gap_us: float | None
) -> None:
    """Its kernels are in the predicted replay's busy time already."""
    costs = _replay_costs(peaks(node_us, kernel_us))
    assert ("node_gap_us" in costs.measured) == (gap_us is not None)
    expected = Costs().node_gap_us if gap_us is None else (gap_us,) * 3
    assert costs.node_gap_us == pytest.approx(expected)


def test_a_kernel_s_own_time_is_read_from_the_device_s_events() -> None:
    def event(device: DeviceType, us: float) -> SimpleNamespace:
        return SimpleNamespace(device_type=device, time_range=SimpleNamespace(elapsed_us=lambda: us))

    on_host = [event(DeviceType.CPU, 99)] * 9
    on_device = [event(DeviceType.CUDA, us) for us in (1.4, 1.5, 40)]
    assert _kernel_us([*on_host, *on_device]) == 1.5
    assert _kernel_us(on_host) is None


class Stopwatch(Clock):
    """Of a device where a sync costs 12 and a read 58."""

    def __init__(self) -> None:
        self.reads = 0

    def each_ms(self, action: Callable[[], object], times: int) -> list[float]:
        return [self.pipelined_ms(action, 1) for _ in range(times)]

    def pipelined_ms(self, action: Callable[[], object], times: int) -> float:
        for _ in range(times):
            action()
            self.reads += 1
        return 58 + 12 / times


def test_the_memory_floor_of_a_gpu_is_not_mostly_syncs() -> None:
    clock = Stopwatch()
    assert times_ms(clock, torch.device("cpu"), lambda: None, 3) == [70] * 3
    assert clock.reads == 3
    assert times_ms(clock, torch.device("cuda"), lambda: None, 3) == pytest.approx([58] * 3, rel=0.05)


UUID = "1c5a1b2c"
SMI = "GPU-1c5a1b2c, 580.65.06, 1980, 2619, 700.00, Disabled, Enabled"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SMI, ["580.65.06", "1980", "2619", "700.00", "Disabled", "Enabled"]),
        (f"GPU-other, 1, 1, 1, 1, Enabled, Enabled\n{SMI}\n", ["580.65.06", "1980"]),
        (SMI.replace("1c5a1b2c", "hidden"), ["580.65.06"]),  # the only one, whatever it is called
        ("GPU-a, 1, 1, 1, 1, E, E\nGPU-b, 2, 2, 2, 2, E, E", [None]),  # neither is ours
        (SMI.replace("700.00", "[N/A]"), ["580.65.06", "1980", "2619", None]),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", [None] * 6),
        ("", [None] * 6),
    ],
)
def test_what_the_driver_s_tool_does_not_say_of_this_device_is_unknown(
    text: str, expected: list[str | None]
) -> None:
    assert answers(text, UUID)[: len(expected)] == expected


def test_a_gpu_s_settings_are_recorded_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(
        major=9, minor=0, multi_processor_count=132, L2_cache_size=60 << 20, uuid=UUID
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr("profiling.measure.environment.smi", lambda uuid: answers(SMI, uuid))
    seen = gpu(torch.device("cuda"))
    assert seen is not None and (seen.capability, seen.power_limit_w, seen.mig) == (
        "9.0",
        700,
        "Disabled",
    )
    assert "driver 580.65.06" in _gpu(seen) and "power up to 700 W" in _gpu(seen)
    assert gpu(torch.device("cpu")) is None


def test_without_the_driver_s_tool_nothing_is_known_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert smi(UUID) == [None] * 6


def test_rates_are_those_of_the_median_step_and_energy_that_of_a_token() -> None:
    expected = StepPrediction(4_000_000, 1, 1.0, 1.0)
    proven = entry(status="proven", prediction={0: expected, 10: expected}, slots={10: 11})
    samples = [
        Sample(
            round=n,
            variant="cat",
            width=8,
            context=10,
            batch=2,
            steps_ms=[3.0, 4.0, 5.0],
            pipelined_ms=None,
            energy_j=joules,
        )
        for n, joules in enumerate((0.6, 0.6, 1.2))
    ]
    fields = {**setting(contexts=(10,), batch=2), "variants": {"cat": proven}}
    at_context = rates(Measured(FloorRecord(**fields, samples=samples)), "cat", 10)
    assert at_context.tokens_per_s == pytest.approx(500) and at_context.gb_per_s == pytest.approx(1.0)
    assert at_context.joules_per_token and at_context.joules_per_token.contains(0.1)
    silent = [replaced(sample, energy_j=None) for sample in samples]
    assert rates(Measured(FloorRecord(**fields, samples=silent)), "cat", 10).joules_per_token is None
    assert rates(Measured(FloorRecord(**fields)), "cat", 10).tokens_per_s is None
