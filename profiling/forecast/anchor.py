"""One measured step of a machine says what the machine is like; the other modes follow from it."""

from __future__ import annotations

from dataclasses import replace

from profiling.forecast.constants import Values
from profiling.forecast.engines import Mode
from profiling.forecast.job import Job
from profiling.forecast.step import Setup, step
from variants.errors import UserError

MOST = 2.5  # times the model's device time: beyond, it is another step than the one described


def anchored(job: Job, setup: Setup, step_ms: float, values: Values) -> Setup:
    """`setup` as the measured step shows it: its host's time per launch where the host set that step,
    otherwise how much longer than modelled the device takes. Raises UserError for a step that this cannot
    be."""
    parts = step(job, replace(setup, host_us=1.0), values)
    launched_by_host = setup.mode in (Mode.EAGER, Mode.STREAM)
    if launched_by_host and step_ms > parts.device:
        return replace(setup, host_us=(step_ms - parts.between) / parts.host)
    scale = step_ms / parts.device
    if not 1 / MOST <= scale <= MOST:
        raise UserError(
            f"an anchor of {step_ms:g} ms is {scale:.2g} times what the device alone should take "
            f"({parts.device:.3g} ms): another model, device, precision or mode was measured"
        )
    return replace(setup, scale=scale)
