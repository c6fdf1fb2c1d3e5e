"""What should a step cost on a device that is not here? The floor model, from the kernels' own costs.

    python -m profiling.cost.predict_device [--precision bfloat16] [--context 100] [--bandwidth 696]

Everything printed is a PREDICTION. A replayed step takes its bytes at the bandwidth that such kernels reach,
and a gap and a ramp per kernel; an eager step is limited by the host too. Where kernels start before their
predecessor ends (PDL), `triton` lies between two cases: all of its gaps are hidden, or none. So does one
launch: the weights stream behind the chain of phases, or nothing overlaps.
No torch and no Triton here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace

from variants.backends.triton_step import cost
from variants.backends.triton_step.plan import Geometry, Setting, plan
from variants.command import run
from variants.config import PRESETS, GPTConfig

Range = tuple[float, float]
"""Low and high, where one number would pretend to know."""


@dataclass(frozen=True)
class Device:
    """Constants of one device, in GB/s and us, with where they come from."""

    name: str
    bandwidth_gb_per_s: float
    source: str
    multiprocessors: int
    dependent_launches: bool = False  # PDL: compute capability 9.0
    host_us_per_op: float = (
        6.5  # assumed: PyTorch's dispatch and launch of one kernel on a current server CPU
    )
    node_gap_us: float = 1.3  # between two kernels of a graph, measured on H100: Hazy Research, "No Bubbles"
    ramp_us: Range = (1.0, 2.0)  # assumed: a kernel's start, its first loads and its drain, beside its bytes
    phase_us: Range = (1.5, 2.6)  # assumed: grid barrier, first loads past it, a block-wide sum
    reached: Range = (0.80, 0.95)  # assumed: share of the bandwidth that kernels of this kind reach


DEVICES = {
    device.name: device
    for device in (
        Device("A40", 696, "datasheet", 84, host_us_per_op=15.8),  # calibrated: 4.95 ms eager step, article 2
        Device("A100", 2039, "datasheet, 80 GB SXM", 108),
        Device("H100", 3350, "datasheet, SXM", 132, dependent_launches=True),
        Device("H200", 4300, "measured read; datasheet 4800", 132, dependent_launches=True),
    )
}
# operations of one GPT-2 small step counted in a run on CPU: launching and view-only ones
EAGER_OPS = {"cat": (210, 411), "static": (198, 255)}
VIEW_SHARE = 0.25  # assumed: host time of a view, as a share of that of a launch
COMPILED_KERNELS_PER_LAYER = 10  # assumed: 5 products, fused attention, 4 fused elementwise and norm kernels
PHASES_PER_LAYER = 5


@dataclass(frozen=True)
class Prediction:
    """ms of one step per rung as (low, high); `memory_floor_ms` is the bytes at full bandwidth."""

    device: Device
    precision: str
    context: int
    memory_floor_ms: float
    rungs_ms: dict[str, Range]


def geometry(config: GPTConfig, precision: str, programs: int) -> Geometry:
    """The plan of the kernels for this model, as they would run there. `precision`: of the weights."""
    shape = (
        config.n_layer,
        config.n_head,
        config.n_kv_head,
        config.n_embd,
        config.n_inner,
        config.vocab_size,
    )
    bytes_each = {"float32": 4, "bfloat16": 2, "int8": 1}[precision]
    setting = Setting(*shape, config.n_ctx, 1, bytes_each, precision == "bfloat16", programs)
    return plan(setting, config.layer_norm_epsilon)


def predict(
    device: Device,
    config: GPTConfig,
    precision: str = "float32",
    context: int = 100,
    kernels_per_layer: int = cost.KERNELS_PER_LAYER,
) -> Prediction:
    """Every rung that is limited by launches or bytes, for a batch of 1. `kernels_per_layer`: of `triton`."""
    g = geometry(config, precision, device.multiprocessors)
    moved = cost.total(g, context)
    full_us = moved.read_bytes / device.bandwidth_gb_per_s / 1e3
    bytes_us = (full_us / device.reached[1], full_us / device.reached[0])
    layers = config.n_layer
    scale = layers / PRESETS["gpt2"].n_layer

    def replayed(nodes: float, hidden_us: float = 0.0) -> Range:
        low, high = (device.node_gap_us + ramp for ramp in device.ramp_us)
        return bytes_us[0] + nodes * (low - hidden_us), bytes_us[1] + nodes * high

    def eager(kind: str) -> Range:
        launches, views = (scale * count for count in EAGER_OPS[kind])
        host_us = (launches + VIEW_SHARE * views) * device.host_us_per_op
        low, high = replayed(launches)
        return max(host_us, low), max(host_us, high)

    phases = PHASES_PER_LAYER * layers
    one_launch = (
        max(bytes_us[0], phases * device.phase_us[0]),  # weights stream behind the chain of phases
        bytes_us[1] + phases * device.phase_us[1],  # nothing overlaps
    )
    rungs = {
        "cat": eager("cat"),
        "static": eager("static"),
        "cudagraph": replayed(scale * EAGER_OPS["static"][0]),
        "compile-cudagraph": replayed(COMPILED_KERNELS_PER_LAYER * layers + 5),
        "triton": replayed(
            kernels_per_layer * layers + 1, device.node_gap_us if device.dependent_launches else 0.0
        ),
        "onelaunch": one_launch,
    }
    in_ms = {name: (low / 1e3, high / 1e3) for name, (low, high) in rungs.items()}
    return Prediction(device, precision, context, full_us / 1e3, in_ms)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16", "int8"))
    parser.add_argument("--context", type=int, default=100)
    parser.add_argument("--kernels-per-layer", type=int, default=cost.KERNELS_PER_LAYER, help="of triton")
    parser.add_argument("--model", default="gpt2", choices=PRESETS)
    parser.add_argument(
        "--bandwidth", type=float, metavar="GB/S", help="a device of your own: its read bandwidth"
    )
    parser.add_argument("--launch-us", type=float, help="its host time per launched operation")
    parser.add_argument("--node-gap-us", type=float, help="its gap between two kernels of a graph")
    arguments = parser.parse_args(argv)
    devices = list(DEVICES.values())
    if arguments.bandwidth:
        own = replace(DEVICES["H100"], name="yours", bandwidth_gb_per_s=arguments.bandwidth, source="given")
        given = {"host_us_per_op": arguments.launch_us, "node_gap_us": arguments.node_gap_us}
        devices = [replace(own, **{name: us for name, us in given.items() if us is not None})]
    print(f"PREDICTION, ms per step: {arguments.model}, {arguments.precision}, context {arguments.context}")
    for device in devices:
        config = PRESETS[arguments.model]
        found = predict(device, config, arguments.precision, arguments.context, arguments.kernels_per_layer)
        print(f"\n{device.name}: {device.bandwidth_gb_per_s:.0f} GB/s ({device.source})")
        print(f"  {'memory floor':18} {found.memory_floor_ms:6.3f}")
        for name, (low, high) in found.rungs_ms.items():
            print(
                f"  {name:18} {low:6.3f} to {high:6.3f}"
                f"  {low / found.memory_floor_ms:5.2f} to {high / found.memory_floor_ms:5.2f} floors"
            )


if __name__ == "__main__":
    run(main)
