"""What should a step take on this device, launched this way? Host or device, whichever takes longer.

    device = weights / (bandwidth x reach) + cache / (bandwidth x its reach) + kernels x what each adds
    host   = launches x host time of one

plus, for engines that schedule on the host between two steps, that time. Weights of an engine whose kernels
do not fill the memory system take at least what a multiprocessor handles per clock; the two limits meet
smoothly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from profiling.forecast.constants import Constant, Values
from profiling.forecast.devices import Device, Host, Memory
from profiling.forecast.engines import COMPILED_REST, LLAMA_CPP, Counts, Engine, Mode
from profiling.forecast.job import Job
from variants.errors import UserError

UNEXPLAINED = (
    1.12  # factor around a prediction whose constants are all known, nine of ten: see the validation
)
UNKNOWN_HOST = 1.7  # factor around the geometric mean of both kinds of host
ANCHORED = 1.12  # factor around a host time that was read from a step of the same machine
PIECES = 3  # launches a layer where attention stands outside the graphs
SHARPNESS = 4  # of the smooth maximum of two limits

REACH = {
    Memory.GDDR: Constant.REACH_GDDR,
    Memory.GDDR_ECC: Constant.REACH_GDDR_ECC,
    Memory.HBM2: Constant.REACH_HBM2,
    Memory.HBM3: Constant.REACH_HBM3,
    Memory.CDNA: Constant.REACH_CDNA,
}


class Limit(StrEnum):
    """What sets a step's time."""

    HOST = "host"
    CHAIN = "chain of kernels"
    BYTES = "bytes"
    ENGINE = "engine between steps"


@dataclass(frozen=True)
class Setup:
    """Where and how it runs. `host_us`: a host time per launch that is known (the anchor's). `between`: the
    engine's host work between two steps is not hidden. `scale`: what the device takes longer than the model
    says (anchor)."""

    device: Device
    engine: Engine
    mode: Mode
    between: bool = False
    host_us: float | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Parts:
    """Milliseconds of one step. `host` runs beside the device, `between` after it."""

    host: float
    weights: float
    cache: float
    chain: float
    between: float

    @property
    def device(self) -> float:
        return self.weights + self.cache + self.chain

    @property
    def total(self) -> float:
        return max(self.host, self.device) + self.between

    @property
    def sets_it(self) -> Limit:
        if self.host > max(self.device, self.between):
            return Limit.HOST
        sizes = {
            Limit.BYTES: self.weights + self.cache,
            Limit.CHAIN: self.chain,
            Limit.ENGINE: self.between,
        }
        return max(sizes, key=lambda limit: sizes[limit])


@dataclass(frozen=True)
class Prediction:
    """Low and high hold the truth in nine of ten cases, if the constants' spreads are right."""

    low_ms: float
    expected_ms: float
    high_ms: float
    parts: Parts

    @property
    def sets_it(self) -> Limit:
        return self.parts.sets_it


def predict(job: Job, setup: Setup, values: Values) -> Prediction:
    """A step's time with its interval: every constant's spread, one at a time, summed in squares of
    logarithms."""
    parts = step(job, setup, values)
    spreads = [_change(job, setup, values, parts.total, constant) for constant in Constant]
    spreads += [math.log(UNEXPLAINED), _host_spread(job, setup, values, parts.total)]
    factor = math.exp(math.sqrt(sum(change * change for change in spreads)))
    return Prediction(parts.total / factor, parts.total, parts.total * factor, parts)


def _change(job: Job, setup: Setup, values: Values, total: float, constant: Constant) -> float:
    other = {**values, constant: values[constant] * constant.value.spread}
    return math.log(step(job, setup, other).total / total)


def _host_spread(job: Job, setup: Setup, values: Values, total: float) -> float:
    """Beyond the spread of a kind of host: that its kind is not known, or what is left after an anchor."""
    factor = UNKNOWN_HOST if setup.device.host is Host.UNKNOWN else 1.0
    factor = factor if setup.host_us is None else ANCHORED
    slower = replace(setup, host_us=host_us(setup, values) * factor)
    return math.log(step(job, slower, values).total / total)


def step(job: Job, setup: Setup, values: Values) -> Parts:
    """The parts of one step. Raises UserError where the engine has no such mode."""
    if setup.mode not in setup.engine.modes:
        known = ", ".join(setup.engine.modes)
        raise UserError(f"{setup.engine.name} has no {setup.mode} step here; it has {known}")
    host = host_us(setup, values)
    between = values[Constant.BETWEEN_STEPS] * host if setup.between else 0.0
    return Parts(
        _launches(job, setup, values) * host / 1e3,
        _weights_us(job, setup, values) * setup.scale / 1e3,
        _cache_us(job, setup, values) * setup.scale / 1e3,
        _chain_us(job, setup, values) * setup.scale / 1e3,
        between / 1e3,
    )


def host_us(setup: Setup, values: Values) -> float:
    """Host time per launch: given, or that of the hosts that such devices stand in."""
    if setup.host_us is not None:
        return setup.host_us
    older, newer = values[Constant.HOST_OLDER], values[Constant.HOST_NEWER]
    return {Host.OLDER: older, Host.NEWER: newer, Host.UNKNOWN: math.sqrt(older * newer)}[setup.device.host]


def _count(counts: Counts, job: Job) -> float:
    count = counts[job.family] if isinstance(counts, dict) else counts
    return count.of(job.layers)


def _launches(job: Job, setup: Setup, values: Values) -> float:
    """Launches of the host in a step, each as long as one of PyTorch."""
    if setup.mode is Mode.EAGER:
        saved = 0.0 if job.casts else setup.engine.casts.of(job.layers)
        return _count(setup.engine.host, job) - saved
    if setup.mode is Mode.ONE_LAUNCH_EAGER:
        return values[Constant.TRITON_LAUNCH]
    if setup.mode is Mode.STREAM:
        return _count(setup.engine.kernels, job) * values[Constant.STREAM_LAUNCH]
    return PIECES * job.layers if setup.mode is Mode.PIECEWISE else 1.0


def reach(setup: Setup, values: Values) -> float:
    """GB/s that a matrix-vector product reaches."""
    return setup.device.bandwidth_gb_per_s * values[REACH[setup.device.memory]]


def _weights_us(job: Job, setup: Setup, values: Values) -> float:
    limits = [job.weight_bytes / reach(setup, values) / 1e3]
    per_us = setup.device.multiprocessors * setup.device.clock_ghz * 1e3  # clocks of all multiprocessors
    if setup.engine is LLAMA_CPP:
        limits.append(job.weight_bytes / (per_us * values[Constant.LLAMA_CPP_BYTES]))
    elif job.packed and setup.engine.unpacks:
        limits.append(job.weights / (per_us * values[Constant.DEQUANTISED]))
    return float(sum(limit**SHARPNESS for limit in limits) ** (1 / SHARPNESS))


def _cache_us(job: Job, setup: Setup, values: Values) -> float:
    if setup.mode in setup.engine.unsplit:
        return job.cache_bytes / values[Constant.CACHE_UNSPLIT] / 1e3
    share = Constant.CACHE_LLAMA_CPP if setup.engine is LLAMA_CPP else Constant.CACHE
    return job.cache_bytes / (setup.device.bandwidth_gb_per_s * values[share]) / 1e3


def _chain_us(job: Job, setup: Setup, values: Values) -> float:
    """Time that kernels (or phases of one) add beside their bytes, us."""
    engine, layers, mode = setup.engine, job.layers, setup.mode
    if mode in (Mode.ONE_LAUNCH, Mode.ONE_LAUNCH_EAGER):
        return engine.phases.of(layers) * values[Constant.PHASE]
    if mode is Mode.DEPENDENT:
        early = setup.device.dependent_launches
        fused = Constant.DEPENDENT_KERNEL if early else Constant.PRODUCT_KERNEL
        return engine.fused.of(layers) * values[fused]
    if engine.each:
        saved = values[Constant.LLAMA_CPP_GRAPH] if engine is LLAMA_CPP and mode is Mode.GRAPH else 1.0
        return _count(engine.kernels, job) * values[engine.each] * saved
    products = _count(engine.products, job)
    compiled = mode in (Mode.COMPILED, Mode.PIECEWISE)
    small = COMPILED_REST.of(layers) if compiled else _count(engine.kernels, job) - products
    return products * values[Constant.PRODUCT_KERNEL] + small * values[Constant.SMALL_KERNEL]
