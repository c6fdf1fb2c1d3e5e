"""What the measuring experiments of the articles share: from flags to a runner whose variants are proven."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from profiling.results.record import Measurement, Workload
from variants.config import GPTConfig
from variants.errors import UserError
from variants.ladder import BASELINE, ladder, select
from variants.spec import Variant

if TYPE_CHECKING:
    import torch

    from profiling.measure.runner import Runner
    from variants.model import GPT

M = TypeVar("M", bound=Measurement)

PROVEN_BRIEFLY = "the gate's checks but greedy and forced tokens"  # among what --quick leaves out


def model_on_device(arguments: argparse.Namespace) -> tuple[GPT, torch.device]:
    """Device and model of the flags; libraries are kept quiet."""
    from experiments.shared.setup import device_for, model_for, silence_libraries

    silence_libraries()
    device = device_for(arguments.device)
    return model_for(arguments, device), device


def chosen_variants(
    names: Iterable[str], precision: str, device: str, beside: Iterable[str] = ("naive", BASELINE)
) -> list[Variant]:
    """The named rungs and what they are compared with (no cache, the baseline), in ladder order.

    Raises UserError for a name that is not in the ladder or that cannot run on this kind of device.
    """

    rungs = ladder(precision)
    wanted = [*beside, *names]
    select(wanted, rungs)
    for name in wanted:
        reason = rungs[name].why_not(device)
        if reason:
            raise UserError(f"--variant {name}: {reason}")
    return [variant for variant in rungs.values() if variant.name in wanted]


def with_flags(workload: Workload, arguments: argparse.Namespace) -> Workload:
    """The workload with --steps and --rounds, where they were given."""
    flags = {name: getattr(arguments, name) for name in ("steps", "rounds")}
    return replace(workload, **{name: value for name, value in flags.items() if value is not None})


def contexts_that_fit(wanted: Iterable[int], config: GPTConfig, after: int) -> tuple[int, ...]:
    """The default contexts that this model holds with `after` tokens more; at least two, for a line."""
    limit = config.n_ctx - after
    fitting = tuple(n for n in wanted if n <= limit)
    return fitting if len(fitting) > 1 else tuple(sorted({max(1, limit // 4), limit}))


def proven_runner(
    arguments: argparse.Namespace,
    kind: type[M],
    model: GPT,
    workload: Workload,
    variants: list[Variant],
    measure: Callable[[Runner[M]], None],
) -> Runner[M]:
    """A run folder with peaks, every variant proven, then what `measure` adds. Ctrl-C keeps the record."""
    from experiments.shared.progress import ProgressLine
    from profiling.measure.runner import Runner
    from profiling.results.folder import RunFolder

    workload = replace(workload, brief_gate=arguments.quick)
    workload.check(model.config)
    run = RunFolder.create(arguments.out, kind, model.device.type)
    runner = Runner(run, workload, model, variants)
    with ProgressLine(arguments.quiet) as runner.progress:
        runner.describe(arguments.model)
        runner.prove()
        for name, entry in run.record.variants.items():
            if entry.status != "proven":
                run.warn(f"{name}: {entry.status}: {entry.reason}")
        run.save()
        chosen = {variant.name for variant in variants}
        missing = (chosen & {"naive", BASELINE} or chosen) - {case.name for case in runner.cases}
        if missing:
            reasons = "; ".join(run.record.warnings)
            raise UserError(f"nothing to compare with, what is not proven has no time: {reasons}")
        measure(runner)
        runner.repeat()
    return runner
