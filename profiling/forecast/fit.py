"""How far are the predictions from what others measured, and what would the constants be without some of the
rows?

A fit moves the constants from what their sources say (`prior`, as likely off as their spread says) towards
the published steps. Rows of one source, model and mode count together as one measurement each, whatever their
number: a page with a hundred rows is one machine. A cross-validation fits without a device (or a model) and
predicts its rows. One measured step of a machine, an anchor, says what that machine is like; the other modes
follow from it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from profiling.forecast.constants import Constant, Values, priors
from profiling.forecast.devices import Host
from profiling.forecast.engines import Mode
from profiling.forecast.job import Job
from profiling.forecast.step import Limit, Prediction, Setup, predict, step
from profiling.forecast.table import OutOfRange, Row, job_of, setup_of
from variants.errors import UserError

# of a measured step around the model, one standard deviation; an eager one is as fast as its host, and hosts
# differ
SCATTER, HOST_SCATTER = math.log(1.1), math.log(1.3)
NINE_OF_TEN = 1.645  # standard deviations
WITHIN = 0.15
MAX_SCALE = 2.5  # times the model's device time: beyond, it is another step than the one described
MAX_HOST_US = 200  # per launch: ten times the slowest machine that is known here


@dataclass(frozen=True)
class Measured:
    """One row that is in range. `device`: chips of one design together; `model`: shapes, whatever their
    name."""

    id: str
    source: str
    mode: str
    device: str
    model: str
    native: bool
    context: int
    job: Job
    setup: Setup
    step_ms: float


@dataclass(frozen=True)
class Held:
    """A measured step beside the prediction that knew nothing of its fold."""

    row: Measured
    prediction: Prediction

    @property
    def ratio(self) -> float:
        return self.prediction.expected_ms / self.row.step_ms

    @property
    def near(self) -> bool:
        return abs(self.ratio - 1) <= WITHIN

    @property
    def covered(self) -> bool:
        return self.prediction.low_ms <= self.row.step_ms <= self.prediction.high_ms


def rows_in_range(rows: Iterable[Row]) -> tuple[list[Measured], Counter[str]]:
    """Rows in range, and how often each reason put one out of it."""
    in_range, reasons = [], Counter[str]()
    for row in rows:
        try:
            setup = setup_of(row)
        except OutOfRange as reason:
            reasons[str(reason)] += 1
            continue
        job = job_of(row)
        in_range.append(
            Measured(
                row.text("id"),
                row.text("source"),
                row.text("mode"),
                setup.device.name.split("-")[0].removesuffix(" PCIe").removesuffix(" Ti"),
                "/".join(row.text(name) for name in ("layers", "hidden", "inter", "vocab")),
                not job.packed,
                int(row.number("context")),
                job,
                replace(setup, host_us=None),
                row.number("step_ms"),
            )
        )
    return in_range, reasons


def _machine(row: Measured) -> tuple[str, ...]:
    """Rows that count as one: eager steps of a source show one host, whatever the model."""
    return (row.source, row.mode) if row.setup.mode is Mode.EAGER else (row.source, row.mode, row.model)


def fit(rows: Sequence[Measured], loss: str = "cauchy") -> Values:
    """Constants that fit the rows, held to their priors; a constant that no row touches keeps its prior.

    `loss`, of scipy's least_squares: one that gives up on a row which nothing explains, instead of bending
    everything to it.
    """
    from scipy.optimize import least_squares

    start, members = priors(), list(Constant)
    looseness = [math.log(constant.value.spread) / NINE_OF_TEN for constant in members]
    many = Counter(_machine(row) for row in rows)
    weights = [
        1 / math.sqrt(many[_machine(row)]) / (HOST_SCATTER if row.setup.mode is Mode.EAGER else SCATTER)
        for row in rows
    ]

    def values(logs: Sequence[float]) -> Values:
        return {c: start[c] * math.exp(x) for c, x in zip(members, logs, strict=True)}

    def residuals(logs: Sequence[float]) -> list[float]:
        now = values(logs)
        from_priors = [x / one for x, one in zip(logs, looseness, strict=True)]
        return from_priors + [
            weight * math.log(step(row.job, row.setup, now).total / row.step_ms)
            for row, weight in zip(rows, weights, strict=True)
        ]

    return values(least_squares(residuals, [0.0] * len(members), loss=loss).x)


def cross_validate(
    rows: Sequence[Measured], fold: Callable[[Measured], str], loss: str = "cauchy"
) -> list[Held]:
    """Every row predicted with constants that never saw its fold."""
    held = []
    for name in sorted({fold(row) for row in rows}):
        values = fit([row for row in rows if fold(row) != name], loss)
        held += [Held(row, predict(row.job, row.setup, values)) for row in rows if fold(row) == name]
    return held


def after_an_anchor(rows: Sequence[Measured]) -> list[Held]:
    """Steps that the host launches, each predicted after the first of its machine (a source and a device)."""
    machines: dict[tuple[str, str], list[Measured]] = {}
    for row in rows:
        if row.setup.mode is Mode.EAGER:
            machines.setdefault((row.source, row.setup.device.name), []).append(row)
    held = []
    for first, *others in machines.values():
        without = fit([row for row in rows if row.source != first.source])
        machine = anchored_setup(first.job, first.setup, first.step_ms, without)
        for row in others:
            known = replace(row.setup, host_us=machine.host_us, scale=machine.scale)
            held.append(Held(row, predict(row.job, known, without)))
    return held


def with_one_kind_of_host(rows: Iterable[Measured]) -> list[Measured]:
    """The rows, as if nothing were known of any host: one time per launch for all of them."""
    unknown = Host.UNKNOWN
    return [replace(r, setup=replace(r.setup, device=replace(r.setup.device, host=unknown))) for r in rows]


def near_in_hindsight(rows: Sequence[Measured], values: Values) -> int:
    """How many of these steps are near if each kind of host has the time per launch that suits most of them.

    Chosen with the measured steps in sight: no constant of a kind of host can do better.
    """
    kinds: dict[Host, list[Measured]] = {}
    for row in rows:
        kinds.setdefault(row.setup.device.host, []).append(row)

    def near(us: float, row: Measured) -> bool:
        total = step(row.job, replace(row.setup, host_us=us), values).total
        return abs(total / row.step_ms - 1) <= WITHIN

    count = 0
    for some in kinds.values():
        # where a row enters the range or leaves it, less what rounding may take
        ends = [
            row.step_ms
            * (1 + end * (WITHIN - 1e-9))
            / step(row.job, replace(row.setup, host_us=1.0), values).host
            for row in some
            for end in (-1, 1)
        ]
        count += max(sum(near(us, row) for row in some) for us in ends)
    return count


def anchored_setup(job: Job, setup: Setup, step_ms: float, values: Values) -> Setup:
    """`setup` as the measured step shows it: its host's time per launch where the host set that step,
    otherwise how much longer than modelled the device takes. Raises UserError for a step that this cannot
    be."""
    parts = step(job, replace(setup, host_us=1.0), values)
    # launches from C++ are seldom what a step waits for
    launched_by_host = setup.mode is Mode.EAGER or step(job, setup, values).sets_it is Limit.HOST
    if launched_by_host and step_ms > parts.device:
        host_us = (step_ms - parts.between) / parts.host
        if host_us > MAX_HOST_US:
            raise UserError(
                f"an anchor of {step_ms:g} ms would be {host_us:,.0f} us of host time per launch, "
                f"more than {MAX_HOST_US}: another model or mode was measured"
            )
        return replace(setup, host_us=host_us)
    scale = step_ms / parts.device
    if not 1 / MAX_SCALE <= scale <= MAX_SCALE:
        raise UserError(
            f"an anchor of {step_ms:g} ms is {scale:.2g} times what the device alone should take "
            f"({parts.device:.3g} ms): another model, device, precision or mode was measured"
        )
    return replace(setup, scale=scale)
