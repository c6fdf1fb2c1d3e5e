"""What sets the time of one decode step here, which single change lowers it, and how far is the limit?

Measures the ladder of decoder variants, each one slot from its parent: proves every variant equal to the
reference, times them in interleaved rounds against the memory floor read in the same rounds, traces a few
steps, and writes a run folder with report.md and the verdict.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from experiments.shared import cli
from experiments.shared.measured import with_flags
from profiling import phases
from profiling.peers.engines import engine_rungs
from profiling.results.record import FloorRecord, Workload
from profiling.results.record.page import Table
from profiling.results.record.workload import FLOOR_ROUNDS
from reports import export
from variants.backends.plugin import installed, runs_elsewhere
from variants.config import GPTConfig
from variants.errors import UserError
from variants.ladder import DEFAULT, ladder, select, transformers_ladder, with_plugins
from variants.spec import Variant

if TYPE_CHECKING:
    from profiling.measure.runner import Runner
    from profiling.results.folder import RunFolder

EXAMPLES = (
    *("", "--quick", "--variant tape --context 10,100", "--list", "--resume runs/FOLDER"),
    *("--resume runs/FOLDER --max-time 2m", "--variant sdpa,onelaunch,llama.cpp,openvino"),
)
DUEL_SECONDS, QUICK_DUEL_SECONDS = 60.0, 10.0
USUAL = Workload(rounds=FLOOR_ROUNDS)
QUICK = Workload(contexts=(10, 100), rounds=4, gate_steps=4, brief_gate=True, ttft_rounds=1, naive_rounds=1)


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser("experiments.floor", __doc__ or "", EXAMPLES, USUAL, QUICK)
    add = parser.add_argument
    add(
        "--variant",
        action="append",
        metavar="NAME,NAME",
        help="rungs, engines of others, PATH.py:NAME of your own code, or all (default: the exact rungs)",
    )
    export.add_flags(parser)
    add("--list", action="store_true", help="show the variants and stop")
    add("--no-trace", action="store_true", help="skip the profiler")
    add(
        "--resume", type=Path, metavar="RUN", help="continue an interrupted run, or add blocks to a whole one"
    )
    add(
        "--max-time",
        type=cli.seconds,
        metavar="60s",
        help="for the steps in alternation that decide, at most (default 60s, 10s with --quick)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    export.check(arguments)
    resumed = _resume(arguments) if arguments.resume else None
    variants, wanted = with_plugins(cli.names(arguments.variant), _every(arguments.precision))
    chosen, added = select(wanted, variants)
    from experiments.shared.setup import device_for, silence_libraries
    from profiling.results.summary import summary
    from reports.build import study
    from reports.printers.console import print_blocks, show
    from reports.sections.brief import brief

    silence_libraries()
    device = device_for(arguments.device)
    console = cli.console(arguments)
    if arguments.list:
        print_blocks(console, [_list(variants, device.type), *_installed()])
        return 0
    if resumed is None:  # a record also holds what could not run, with its reason
        _refuse_impossible(wanted, variants, device.type)
    runner = _runner(arguments, chosen, device, resumed)
    if resumed is None:
        _note_choice(arguments, runner, variants, added)
    _measure(arguments, runner, console)
    show(console, brief(study(runner.run)), f"Report: {runner.run.path / 'report.md'}, report.html")
    if arguments.json:
        cli.print_json(summary(runner.run))
    export.write_samples(arguments, runner.record)
    return 0


def _every(precision: str) -> dict[str, Variant]:
    """What has a name here: our rungs, those of transformers, and engines of others."""
    return ladder(precision) | transformers_ladder(precision) | engine_rungs()


def _list(variants: dict[str, Variant], device: str) -> Table:
    """Every variant: parent, slot changed, what it should remove, and why it cannot run here."""
    rows = []
    for variant in variants.values():
        changed = variant.difference
        what = f"{changed[0]}: {changed[2]}" if changed else "the root"
        reason = variant.why_not(device)
        about = f"not here: {reason}" if reason else variant.removes
        rows.append((variant.name, variant.parent.name if variant.parent else "", f"{what}\n{about}"))
    heads = ("variant", "from", "what it changes, and what that should remove")
    return Table(heads, rows, text_columns=3, title="Variants")


def _installed() -> list[Table]:
    """Plug-ins that packages bring. Nothing of them is imported."""
    rows = [(source.name, source.at) for source in installed().values()]
    return (
        [Table(("plug-in", "where"), rows, text_columns=2, title="Installed, by name only")] if rows else []
    )


def _runner(
    arguments: argparse.Namespace, chosen: list[Variant], device: Any, resumed: RunFolder[FloorRecord] | None
) -> Runner[FloorRecord]:
    """A runner over a new run folder, which is only made once nothing can be refused any more."""
    from experiments.shared.setup import models_for
    from profiling.measure.runner import Runner
    from profiling.results.folder import RunFolder

    model, *beside = models_for(arguments, device, chosen)
    stored = resumed.record.workload if resumed else None
    workload = stored or _workload(arguments, model.config)
    if arguments.quick and not arguments.variant:  # what compiles for minutes does not fit into a minute
        chosen = [variant for variant in chosen if not variant.executor.compiles]
    run = resumed or RunFolder.create(arguments.out, FloorRecord, device.type)
    return Runner(run, workload, model, chosen, *beside)


def _note_choice(
    arguments: argparse.Namespace, runner: Runner[FloorRecord], variants: dict[str, Variant], added: list[str]
) -> None:
    """Say in the record what was added for comparison, or left for a request, or proven less."""
    from experiments.shared.setup import limit_of

    if runner.workload.brief_gate:
        runner.run.warn(
            f"--quick: {runner.workload.rounds} rounds, and variants are proven over "
            f"{runner.workload.gate_steps} greedy and as many random tokens only"
        )
    limit, built = limit_of(arguments), runner.model.config.n_ctx
    if limit and limit > built:
        runner.run.warn(f"built for the first {built:,} of the model's {limit:,} positions")
    for model in runner.models:
        for note in model.notes(runner.workload.buckets(model.config)[-1]):
            runner.run.warn(note)
    if added:
        runner.run.warn(f"added for comparison: {', '.join(added)}")
    if arguments.variant:
        return
    others = [name for name in variants if name not in runner.record.variants]
    left_out = [name for name in others if name in DEFAULT]
    if left_out:
        runner.run.warn(f"left out by --quick, since it compiles for minutes: {', '.join(left_out)}")
    ours = [name for name in others if not runs_elsewhere(variants[name].backend)]
    on_request = [name for name in ours if name not in DEFAULT]
    runner.run.warn(f"measured on request only, by name or with --variant all: {', '.join(on_request)}")


def _resume(arguments: argparse.Namespace) -> RunFolder[FloorRecord]:
    """The interrupted run; its own settings replace the flags, so that its samples belong together."""
    from profiling.results.folder import RunFolder

    run = RunFolder.resume(arguments.resume, FloorRecord)
    record = run.record
    if record.model is None or record.workload is None or record.environment is None or not record.variants:
        raise UserError(f"{run.path} was interrupted before it measured anything: start anew")
    if record.status == "complete" and (arguments.max_time is None or record.duel is None):
        raise UserError(f"{run.path} is complete: add blocks with --max-time")
    arguments.model, arguments.precision = record.model.name, record.model.precision
    arguments.seed, arguments.device = record.workload.seed, record.environment.device
    asked = {name.rpartition(":")[2]: name for name in cli.names(arguments.variant)}
    precision = record.model.precision or "float32"
    for name in record.variants.keys() - _every(precision).keys() - asked.keys():
        raise UserError(
            f"{run.path} measured the plug-in {name}: name it with --variant again, since a record may not "
            "ask for code to be run"
        )
    arguments.threads = record.environment.threads
    arguments.variant = [asked.get(name, name) for name in record.variants]
    return run


def _refuse_impossible(wanted: list[str], variants: dict[str, Variant], device: str) -> None:
    """A variant that was asked for by name and cannot run here is bad input; else it is only skipped."""

    for name in set(wanted) & set(variants):
        reason = variants[name].why_not(device)
        if reason:
            raise UserError(f"--variant {name}: {reason}")


def _workload(arguments: argparse.Namespace, config: GPTConfig) -> Workload:
    """Flags over `--quick` over defaults; checked against the model."""
    workload = QUICK if arguments.quick else USUAL
    workload = with_flags(replace(workload, batch=arguments.batch, seed=arguments.seed), arguments)
    # the defaults are GPT-2's: a smaller model keeps what fits
    fitting = [n for n in workload.contexts if n <= config.n_ctx - workload.tokens_after]
    contexts = arguments.context or fitting or workload.contexts
    prompt = min(workload.prompt, config.n_ctx // 2)
    workload = replace(workload, contexts=tuple(sorted(set(contexts))), prompt=prompt)
    workload.check(config)
    return workload


def _measure(arguments: argparse.Namespace, runner: Runner[FloorRecord], console: Any) -> None:
    """All phases. Ctrl-C leaves a run folder that can be reported and resumed."""
    from experiments.shared.progress import ProgressLine
    from profiling.results.metrics import Measured
    from reports.build import build, study
    from reports.printers.console import rich_tables, show_section
    from reports.sections.brief import ladder_table, predicted_steps

    def ladder_so_far() -> Any:
        table = ladder_table(Measured(runner.record))
        return rich_tables(table, console.width)[0] if table else None

    seconds = arguments.max_time
    if seconds is None:
        seconds = QUICK_DUEL_SECONDS if arguments.quick else DUEL_SECONDS
    try:
        with ProgressLine(arguments.quiet, ladder_so_far) as progress:
            runner.progress = progress

            def proven() -> None:
                progress.pause()
                show_section(console, predicted_steps(study(runner.run)))

            phases(runner, arguments.model, seconds, not arguments.no_trace, proven)
    except KeyboardInterrupt:
        runner.run.save()
        console.print(f"interrupted; continue with --resume {runner.run.path}")
        raise
    finally:
        runner.run.release()
        build(runner.run.path, runner.drawn)


if __name__ == "__main__":
    cli.run(main)
