"""What `experiments.predict` shows: every mode of a device, and devices side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiling.forecast.devices import Device
from profiling.forecast.engines import Mode
from profiling.forecast.step import Prediction
from profiling.results.record.page import Block, Sentence, Table
from reports.numbers import number

TITLES = {
    Mode.EAGER: "eager",
    Mode.STREAM: "launches from C++",
    Mode.GRAPH: "graph",
    Mode.PIECEWISE: "piecewise graphs",
    Mode.COMPILED: "compile + graph",
    Mode.DEPENDENT: "fused + graph",
    Mode.ONE_LAUNCH: "one launch",
}


@dataclass(frozen=True)
class Forecast:
    """Every mode of one device. `host_us`: per launch, known from `machine`. `left_out`: modes out of range,
    with the reason."""

    device: Device
    memory_floor_ms: float
    host_us: float
    machine: str
    steps: dict[Mode, Prediction]
    left_out: dict[Mode, str]

    @property
    def cached(self) -> bool:
        """What a step reads fits into the second-level cache."""
        return self.memory_floor_ms * self.device.bandwidth_gb_per_s < self.device.cache_mb


def of_device(found: Forecast) -> Iterator[Block]:
    """A table of modes, with what each saves against the first, and what to know about the device."""
    first = next(iter(found.steps.values())).expected_ms
    rows = [
        (
            TITLES[mode],
            *(number(ms) for ms in (step.low_ms, step.expected_ms, step.high_ms)),
            f"{step.expected_ms / found.memory_floor_ms:.2f}",
            number(first - step.expected_ms),
            step.sets_it,
        )
        for mode, step in found.steps.items()
    ]
    heads = ("mode", "low", "expected", "high", "x floor", "saves", "set by")
    yield Table(heads, rows, title=f"{found.device.name}, ms per step")
    rate = f"{found.device.bandwidth_gb_per_s:,.0f} GB/s as stated"
    yield Sentence(f"Memory floor: {number(found.memory_floor_ms)} ms at {rate}.")
    yield Sentence(f"Host: {found.host_us:.1f} us per launch ({found.machine}).")
    for mode, reason in found.left_out.items():
        yield Sentence(f"Not predicted, {TITLES[mode]}: {reason}.")
    if found.cached:
        yield Sentence(
            f"All that a step reads fits into the second-level cache ({found.device.cache_mb:g} MB): "
            "repeated steps read less from memory than the floor says."
        )


def over_devices(found: Sequence[Forecast]) -> Table:
    """Expected ms by device and mode."""
    modes = list(found[0].steps)
    rows = [
        (
            each.device.name,
            number(each.memory_floor_ms),
            *(number(each.steps[mode].expected_ms) for mode in modes),
        )
        for each in found
    ]
    heads = ("device", "memory floor", *(TITLES[mode] for mode in modes))
    return Table(heads, rows, title="Expected ms per step")
