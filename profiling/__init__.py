"""What the commands do, from Python: `study` measures a decode step, `explain` reads a trace.

    from profiling import explain, study

Importing this imports no torch; `study` does when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiling.analysis.explanation import Explanation
    from profiling.measure.runner import Runner
    from profiling.results.record import FloorRecord
    from variants.model import GPT
    from variants.spec import Variant

__all__ = ["explain", "study"]


def explain(path: str | Path, step: str | None = None) -> Explanation:
    """Read a trace of Kineto, Chrome's format or Nsight Systems, as `python -m experiments.explain` does.

    `step`: name or pattern of what brackets a step; found without it in most traces. Raises
    `variants.errors.UserError` where nothing can be read. Imports no torch.
    """
    from profiling.analysis.explanation import explain as read

    return read(path, step)


def study(
    model: GPT | str = "gpt2",
    variants: Sequence[str | Callable[..., object]] = (),
    *,
    contexts: Sequence[int] = (10, 100),
    rounds: int | None = None,
    seconds: float = 10.0,
    traces: bool = False,
    seed: int = 0,
    out: str | Path = "runs",
) -> FloorRecord:
    """Prove and measure variants of a model: the record that `python -m experiments.floor` keeps.

    `model`: one of `variants.model`, or the name of a preset with seeded weights. `variants`: names of rungs,
    PATH.py:NAME or a class for code of your own; none stands for the command's default. `contexts` in tokens;
    `rounds`: as the command does; `seconds`: of the duel at most. The run folder is made below `out`.
    Raises `variants.errors.UserError` for what cannot be measured.
    """
    import torch

    from profiling.measure.runner import Runner
    from profiling.results.folder import RunFolder
    from profiling.results.record import FloorRecord, Workload
    from profiling.results.record.workload import FLOOR_ROUNDS
    from variants.config import PRESETS
    from variants.errors import UserError
    from variants.model import random_model

    name = model if isinstance(model, str) else type(model).__name__
    if isinstance(model, str):
        if model not in PRESETS:
            raise UserError(f"unknown model {model}; known: {', '.join(PRESETS)}, or one of variants.model")
        model = random_model(PRESETS[model], seed, torch.float32)
    chosen = _rungs(variants, str(model.dtype).removeprefix("torch."))
    workload = Workload(
        contexts=tuple(sorted(set(contexts))),
        rounds=FLOOR_ROUNDS if rounds is None else rounds,
        seed=seed,
        prompt=min(100, model.config.n_ctx // 2),
    )
    workload.check(model.config)
    run = RunFolder.create(Path(out), FloorRecord, model.device.type)
    run.update(command=f"profiling.study({name!r}, {[rung.name for rung in chosen]})")
    runner = Runner(run, workload, model, chosen)
    try:
        phases(runner, name, seconds, traces)
    finally:
        run.release()
    return run.record


def phases(
    runner: Runner[FloorRecord],
    model_name: str,
    seconds: float,
    traces: bool,
    proven: Callable[[], None] = lambda: None,
) -> None:
    """Everything that a study does, in order. `proven` is called once before anything is timed."""
    runner.describe(model_name)
    runner.prepare()
    proven()
    if traces:
        runner.predict_replay()
    runner.measure()
    runner.duel(seconds, traces=traces)
    if traces:
        runner.trace()
    runner.repeat()
    runner.run.finish()


def _rungs(wanted: Sequence[str | Callable[..., object]], precision: str) -> list[Variant]:
    """The rungs of these names and classes, with what they are compared with."""
    from functools import partial

    from variants.backends.plugin import Source
    from variants.ladder import ladder, plugin_rung, select, with_plugins

    names = [name for name in wanted if isinstance(name, str)]
    known, called = with_plugins(names, ladder(precision))
    for plugin in wanted:
        if not isinstance(plugin, str):
            code: Any = plugin
            source = Source(code.__name__, f"{code.__module__}:{code.__qualname__}", partial(_itself, code))
            known[source.name] = plugin_rung(source, known)
            called.append(source.name)
    return select(called, known)[0]


def _itself(plugin: Any) -> Any:
    return plugin
