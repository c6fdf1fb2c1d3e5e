"""One measured step of a machine says what the machine is like; the other modes follow from it."""

from __future__ import annotations

from dataclasses import replace

from profiling.forecast.constants import Values
from profiling.forecast.engines import Mode
from profiling.forecast.job import Job
from profiling.forecast.step import Limit, Setup, step
from variants.errors import UserError

MOST = 2.5  # times the model's device time: beyond, it is another step than the one described

MOST_HOST_US = 200  # per launch: ten times the slowest machine that is known here


def anchored(job: Job, setup: Setup, step_ms: float, values: Values) -> Setup:
    """`setup` as the measured step shows it: its host's time per launch where the host set that step,
    otherwise how much longer than modelled the device takes. Raises UserError for a step that this cannot
    be."""
    parts = step(job, replace(setup, host_us=1.0), values)
    # launches from C++ are seldom what a step waits for
    launched_by_host = setup.mode is Mode.EAGER or step(job, setup, values).sets_it is Limit.HOST
    if launched_by_host and step_ms > parts.device:
        host_us = (step_ms - parts.between) / parts.host
        if host_us > MOST_HOST_US:
            raise UserError(
                f"an anchor of {step_ms:g} ms would be {host_us:,.0f} us of host time per launch, "
                f"more than {MOST_HOST_US}: another model or mode was measured"
            )
        return replace(setup, host_us=host_us)
    scale = step_ms / parts.device
    if not 1 / MOST <= scale <= MOST:
        raise UserError(
            f"an anchor of {step_ms:g} ms is {scale:.2g} times what the device alone should take "
            f"({parts.device:.3g} ms): another model, device, precision or mode was measured"
        )
    return replace(setup, scale=scale)
