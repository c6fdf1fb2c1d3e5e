"""What the commands do, from Python: `study` measures a decode step, `explain` reads a trace.

    from profiling import explain, study

Importing this imports no torch; `study` does when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from profiling.analysis.explanation import Explanation
    from profiling.measure.runner import Runner
    from profiling.results.record import FloorRecord
    from variants.model import Model
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
    model: nn.Module | str | Path = "gpt2",
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

    `model`: one of `variants.model`, a causal model of transformers, which runs in its own code (`hf` and the
    rungs from it), or a name as on the command line: a preset, a folder, hub:ORG/NAME. `variants`: names of
    rungs or engines, PATH.py:NAME or a class for code of your own; none stands for the command's default.
    `contexts` in tokens; `rounds`: as the command does; `seconds`: of the duel at most. The run folder is
    made below `out`.
    Raises `variants.errors.UserError` for what cannot be measured.
    """
    from profiling.measure.runner import Runner
    from profiling.results.folder import RunFolder
    from profiling.results.record import FloorRecord, Workload
    from profiling.results.record.workload import FLOOR_ROUNDS

    _check(variants, contexts, rounds)
    name = str(model) if isinstance(model, str | Path) else type(model).__name__
    chosen, (first, *beside) = _rungs_and_models(model, variants, max(contexts, default=1), seed)
    workload = Workload(
        contexts=tuple(sorted(set(contexts))),
        rounds=FLOOR_ROUNDS if rounds is None else rounds,
        seed=seed,
        prompt=min(100, first.config.n_ctx // 2),
    )
    workload.check(first.config)
    run = RunFolder.create(Path(out), FloorRecord, first.device.type)
    run.update(command=f"profiling.study({name!r}, {[rung.name for rung in chosen]})")
    runner = Runner(run, workload, first, chosen, *beside)
    try:
        phases(runner, name, seconds, traces)
    finally:
        run.release()
    return run.record


def _check(variants: object, contexts: object, rounds: object) -> None:
    """Raises UserError for what a script may hand in by mistake, before a model is built."""
    from variants.errors import UserError

    def listed(given: object, kind: Callable[[object], bool]) -> bool:
        return isinstance(given, Collection) and not isinstance(given, str) and all(map(kind, given))

    if not listed(variants, lambda one: isinstance(one, str) or hasattr(one, "__qualname__")):
        raise UserError(f"variants: a list of names, functions or classes is needed, got {variants!r}")
    if not listed(contexts, lambda one: isinstance(one, int)):
        raise UserError(f"contexts: a list of whole numbers is needed, got {contexts!r}")
    if not isinstance(rounds, int | None):
        raise UserError(f"rounds: a whole number is needed, got {rounds!r}")


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


def _rungs_and_models(
    model: nn.Module | str | Path, wanted: Sequence[str | Callable[..., object]], longest: int, seed: int
) -> tuple[list[Variant], list[Model]]:
    """The rungs, and the models that they run: a name is built once they are known."""
    import torch

    from profiling.measure.models import POSITIONS, Wanted
    from variants import hub
    from variants.backends.transformers_model import TransformersModel, of_module
    from variants.decoder import runs
    from variants.errors import UserError
    from variants.ladder import THEIRS
    from variants.model import GPT

    positions = max(POSITIONS, 2 * longest)
    if isinstance(model, str | Path):
        chosen, name = _rungs(wanted, "float32"), hub.fetched(str(model))
        named = Wanted(name, torch.float32, torch.device("cpu"), positions, seed)
        return chosen, named.models(chosen, longest=longest)
    given = model if isinstance(model, GPT | TransformersModel) else of_module(model, positions)
    theirs = isinstance(given, TransformersModel)
    default = (THEIRS.baseline, "hf-static", "hf-tape") if theirs else ()
    chosen = _rungs(wanted or default, str(given.dtype).removeprefix("torch."))
    for rung in chosen:
        if not runs(rung, given):
            needed = "our decoder's model" if theirs else "a model of transformers, or the name of a model"
            raise UserError(f"{rung.name} does not run a {type(model).__name__}: {needed} is needed")
    return chosen, [given]


def _rungs(wanted: Sequence[str | Callable[..., object]], precision: str) -> list[Variant]:
    """The rungs of these names and classes, with what they are compared with."""
    from functools import partial

    from profiling.peers.engines import engine_rungs
    from variants.backends.plugin import Source
    from variants.ladder import ladder, plugin_rung, select, transformers_ladder, with_plugins

    names = [name for name in wanted if isinstance(name, str)]
    every = ladder(precision) | transformers_ladder(precision) | engine_rungs()
    known, called = with_plugins(names, every)
    for plugin in wanted:
        if not isinstance(plugin, str):
            code: Any = plugin
            source = Source(code.__name__, f"{code.__module__}:{code.__qualname__}", partial(_itself, code))
            known[source.name] = plugin_rung(source, known)
            called.append(source.name)
    return select(called, known)[0]


def _itself(plugin: Any) -> Any:
    return plugin
