"""Question: what would a decode step take on a device that is not here, and what would a graph buy there?

Everything printed is a PREDICTION: bytes over the bandwidth that is reached, kernels times what each adds,
launches times the host's time, from constants that were held against published steps (docs/validation.md says
how far they are off). Low and high are meant to hold nine of ten machines. An anchor, one measured step of
yours, puts your machine in the place of an average one. `--table` predicts the rows of a CSV file, one JSON
line each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from experiments.shared.cli import console, names, plain_parser, print_json, run
from profiling.forecast import hosts, table
from profiling.forecast.constants import fitted
from profiling.forecast.devices import DEVICES, Device, find
from profiling.forecast.engines import ENGINES, OURS, Engine, Mode
from profiling.forecast.fit import anchored_setup
from profiling.forecast.job import NATIVE_BITS, PACKED_BITS, Job, job_of
from profiling.forecast.scope import why_not
from profiling.forecast.step import Prediction, Setup, host_us, predict
from profiling.results.record.page import Block, Sentence, Table
from profiling.sizing.read_shape import read_shape
from reports.numbers import number
from reports.printers.console import print_blocks
from variants.errors import UserError

EXAMPLES = (
    "--model llama-3-8b --device H100 --context 2000",
    "--model gpt2 --precision float32 --device A40 --engine ours",
    "--model gpt2 --precision float32 --device A40 --anchor 4.95:eager",
    "--table steps.csv",
)
SHOWN_DEVICES = ("A40", "L4", "RTX 4090", "A100-80GB", "H100", "H200", "B200")
TITLES = {
    Mode.EAGER: "eager",
    Mode.STREAM: "launches from C++",
    Mode.GRAPH: "graph",
    Mode.PIECEWISE: "piecewise graphs",
    Mode.COMPILED: "compile + graph",
    Mode.DEPENDENT: "fused + graph",
    Mode.ONE_LAUNCH: "one launch",
    Mode.ONE_LAUNCH_EAGER: "one launch, no graph",
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
        """Whether all that a step reads fits into the second-level cache."""
        return self.memory_floor_ms * self.device.bandwidth_gb_per_s < self.device.cache_mb


def parser() -> argparse.ArgumentParser:
    parser = plain_parser("experiments.predict", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add("--model", default="gpt2", help="a name, a config.json, a folder with one, or hub:ORG/NAME")
    add("--device", action="append", metavar="NAME,NAME", help=f"default {', '.join(SHOWN_DEVICES)}")
    add("--precision", default="bfloat16", help=f"of the weights: {', '.join([*NATIVE_BITS, *PACKED_BITS])}")
    add("--context", type=int, default=100, help="tokens in the cache")
    add("--engine", choices=ENGINES, default="hf", help="what runs the model")
    machine = parser.add_mutually_exclusive_group()
    machine.add_argument("--host-us", type=float, metavar="US", help="host time per launch, views included")
    machine.add_argument(
        "--anchor", metavar="STEP_MS:MODE", help="one measured step of this model and device"
    )
    add("--table", type=Path, metavar="FILE.csv", help="predict its rows instead, one JSON line each")
    return parser


def forecast_for(job: Job, device: Device, engine: Engine, arguments: argparse.Namespace) -> Forecast:
    """The forecast of every mode that the engine has, on one device."""
    values = fitted()
    base, source = Setup(device, engine, engine.modes[0], host_us=arguments.host_us), "given"
    machine = hosts.machine(hosts.ARTICLES, device.name) if engine is OURS else None
    if arguments.anchor:
        step_ms, mode = _anchor(arguments.anchor)
        base = anchored_setup(job, replace(base, mode=mode), step_ms, values)
        source = (
            "by the anchor"
            if base.host_us
            else f"{device.host}; the device {base.scale:.2f} times as modelled"
        )
    elif machine and not base.host_us:
        base, source = replace(base, host_us=machine.host_us), machine.read_from
    elif not base.host_us:
        source = device.host.value
    reasons = {mode: why_not(engine, mode, arguments.precision) for mode in Mode if mode in engine.modes}
    left_out = {mode: reason for mode, reason in reasons.items() if reason}
    if arguments.anchor and (reason := reasons[base.mode]):
        raise UserError(f"--anchor {arguments.anchor}: {reason}")
    steps = {mode: predict(job, replace(base, mode=mode), values) for mode in reasons if mode not in left_out}
    return Forecast(device, job.floor_ms(device), host_us(base, values), source, steps, left_out)


def _anchor(text: str) -> tuple[float, Mode]:
    """'4.95:eager' -> (4.95, Mode.EAGER)."""
    step_ms, _, mode = text.partition(":")
    try:
        value, known = float(step_ms), Mode(mode)
    except ValueError:
        modes = ", ".join(Mode)
        raise UserError(
            f"--anchor {text!r}: a step in ms and its mode are needed, 4.95:eager; modes: {modes}"
        ) from None
    if not 0 < value < float("inf"):
        raise UserError(f"--anchor: a step takes more than 0 ms, got {step_ms}")
    return value, known


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """A row each: what is predicted, or why nothing is."""
    for row in table.read(path):
        try:
            setup = table.setup_of(row)
        except table.OutOfRange as reason:
            yield {"id": row.text("id"), "out_of_range": str(reason)}
            continue
        step = predict(table.job_of(row), setup, fitted())
        yield {"id": row.text("id"), **_as_json(step)}


def _as_json(step: Prediction) -> dict[str, object]:
    bounds = {"low_ms": step.low_ms, "expected_ms": step.expected_ms, "high_ms": step.high_ms}
    return {name: round(value, 4) for name, value in bounds.items()} | {"sets_it": step.sets_it}


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser().parse_args(argv)
    if arguments.table:
        for line in list(lines(arguments.table)):  # all of them or none: a bad row prints nothing
            print_json(line)
        return
    if arguments.host_us is not None and not 0 < arguments.host_us < 1e6:
        raise UserError(f"--host-us must be above 0, got {arguments.host_us:g}")
    chosen = names(arguments.device)
    devices = [find(name) for name in chosen] or [DEVICES[name] for name in SHOWN_DEVICES]
    if arguments.anchor and len(devices) > 1:
        raise UserError("--anchor is a step that one device took: name it with --device")
    engine, job = (
        ENGINES[arguments.engine],
        job_of(read_shape(arguments.model), arguments.precision, arguments.context),
    )
    forecasts = [forecast_for(job, device, engine, arguments) for device in devices]

    if not arguments.quiet:
        blocks = [block for each in forecasts if chosen for block in of_device(each)]
        table_of_all = [over_devices(forecasts)] if len(forecasts) > 1 else []
        print_blocks(console(arguments), [_headline(arguments, job), *blocks, *table_of_all])
    if arguments.json:
        print_json(_everything(arguments, forecasts))


def of_device(forecast: Forecast) -> Iterator[Block]:
    """A table of modes, with what each saves against the first, and what to know about the device."""
    first = next(iter(forecast.steps.values())).expected_ms
    rows = [
        (
            TITLES[mode],
            *(number(ms) for ms in (step.low_ms, step.expected_ms, step.high_ms)),
            f"{step.expected_ms / forecast.memory_floor_ms:.2f}",
            number(first - step.expected_ms),
            step.sets_it,
        )
        for mode, step in forecast.steps.items()
    ]
    heads = ("mode", "low", "expected", "high", "x floor", "saves", "set by")
    yield Table(heads, rows, title=f"{forecast.device.name}, ms per step")
    rate = f"{forecast.device.bandwidth_gb_per_s:,.0f} GB/s as stated"
    yield Sentence(f"Memory floor: {number(forecast.memory_floor_ms)} ms at {rate}.")
    yield Sentence(f"Host: {forecast.host_us:.1f} us per launch ({forecast.machine}).")
    for mode, reason in forecast.left_out.items():
        yield Sentence(f"Not predicted, {TITLES[mode]}: {reason}.")
    if forecast.cached:
        yield Sentence(
            f"All that a step reads fits into the second-level cache ({forecast.device.cache_mb:g} MB): "
            "repeated steps read less from memory than the floor says."
        )


def over_devices(forecasts: Sequence[Forecast]) -> Table:
    """Expected ms by device and mode."""
    modes = list(forecasts[0].steps)
    rows = [
        (
            each.device.name,
            number(each.memory_floor_ms),
            *(number(each.steps[mode].expected_ms) for mode in modes),
        )
        for each in forecasts
    ]
    heads = ("device", "memory floor", *(TITLES[mode] for mode in modes))
    return Table(heads, rows, title="Expected ms per step")


def _headline(arguments: argparse.Namespace, job: Job) -> Sentence:
    megabytes = (job.weight_bytes + job.cache_bytes) / 1e6
    return Sentence(
        f"**PREDICTION** of one step of {arguments.model} in {arguments.precision} at {arguments.context:,} "
        f"tokens, run by {arguments.engine}; it reads {megabytes:,.0f} MB."
    )


def _everything(arguments: argparse.Namespace, forecasts: Sequence[Forecast]) -> dict[str, object]:
    devices = [
        {
            "device": each.device.name,
            "memory_floor_ms": each.memory_floor_ms,
            "host_us": each.host_us,
            "host": each.machine,
            "fits_second_level_cache": each.cached,
            "steps": {
                mode: {**_as_json(step), "parts_ms": asdict(step.parts)} for mode, step in each.steps.items()
            },
            "out_of_range": each.left_out,
        }
        for each in forecasts
    ]
    settings = {name: getattr(arguments, name) for name in ("model", "precision", "context", "engine")}
    return {"prediction": True, **settings, "devices": devices}


if __name__ == "__main__":
    run(main)
