"""Question: how often is the instrument wrong, and how far off are its times, on this machine?

Claim: a step beside itself is called different in at most 5 % of the duels; a wait of known length, spun once
per step in Python, before every op or inside a kernel, is found within 5 % or 20 us and on the right side of
the gap; and on truths that are made, with the noise of this machine, the verdict gives no wrong word.

Duels of single steps as in a run. The waits are injected into a narrow model of few layers, where 20 us can
be told at all; the baseline is compared with itself at full size. `--run` adds finished runs: their answers
stand side by side, and their tables hold an A/A ratio each.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from experiments.shared import cli
from experiments.shared.outcome import page_of, publish
from profiling.results.record import (
    CalibrateRecord,
    FalseAlarms,
    FloorRecord,
    InjectedWait,
    Model,
    RunAnswer,
    StepDifference,
    Truth,
    WordsGiven,
    Workload,
)
from profiling.results.record.page import Block, Bullets, Table
from profiling.results.record.workload import FLOOR_ROUNDS
from profiling.results.stats import Interval
from reports.numbers import interval
from variants.errors import UserError

if TYPE_CHECKING:
    from profiling.measure.calibration import Bench
    from variants.model import GPT

EXAMPLES = ("", "--quick", "--run runs/A --run runs/B")
VARIANT = "sdpa"  # the step whose gap decides on a CPU
WAITS_MS = (0.2, 1.0, 3.0)
WAIT_LAYERS = 4  # of the model that waits are injected into: its step is about as long as they are
DUELS, BLOCKS, SIMULATED = 20, 40, 400
QUICK_DUELS, QUICK_BLOCKS, QUICK_SIMULATED = 4, 10, 40
SERIES, QUICK_SERIES = 2000, 50  # drawn per noise, for each estimator
WAIT_SECONDS, QUICK_WAIT_SECONDS = 30.0, 1.0  # at most, for the duel of one wait
MAX_FALSE = 0.05
CONTEXT = 10


def parser() -> argparse.ArgumentParser:
    parser = cli.common_parser("experiments.calibrate", __doc__ or "", EXAMPLES, used=())
    parser.add_argument(
        "--run", type=Path, action="append", default=[], help="a finished floor run, for its answer and A/A"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.batch != 1:
        raise UserError(f"--batch {arguments.batch}: the calibration times one row, so 1")
    from experiments.shared.measured import model_on_device
    from profiling.measure.environment import environment
    from profiling.results.folder import RunFolder

    runs = [_answered(path) for path in arguments.run]
    model, device = model_on_device(arguments)
    run = RunFolder.create(arguments.out, CalibrateRecord, device.type)
    run.update(
        environment=environment(device), model=Model(arguments.model, arguments.precision, model.config)
    )
    full, narrow = _benches(arguments, model)
    entropy = secrets.randbits(53)
    run.update(entropy=entropy, runs=runs, beside_itself=_beside_itself(arguments, full, entropy))
    run.save()
    run.update(injected=_injected(arguments, narrow, entropy))
    run.save()
    run.update(simulated=_simulated(arguments, run.record), estimators=_estimators(arguments, run.record))
    record = run.record
    page = page_of(__doc__ or "", run, _answer(record), _tables(record))
    return publish(arguments, run, page, injected=record.injected, made=record.simulated)


def _answered(path: Path) -> RunAnswer:
    from profiling.results.folder import RunFolder
    from profiling.results.metrics import Measured
    from profiling.results.verdict import verdict

    run = Measured(RunFolder.load(path, FloorRecord).record)
    judged, ratio = verdict(run), run.aa_ratio
    return RunAnswer(
        run.record.started,
        run.record.workload.rounds if run.record.workload else 0,
        judged.word,
        judged.headline,
        judged.bounds["launching"] if judged.bounds else None,
        None if ratio is None else (ratio.low, ratio.mid, ratio.high),
    )


def _benches(arguments: argparse.Namespace, model: GPT) -> tuple[Bench, Bench]:
    """The model at full size, and the small one for waits."""
    from profiling.measure.calibration import bench
    from profiling.measure.cases import narrow_config
    from profiling.measure.peaks import peaks
    from variants.ladder import ladder
    from variants.model import random_model

    variant = ladder(arguments.precision)[VARIANT]
    workload = Workload(contexts=(CONTEXT,), seed=arguments.seed)
    rates = peaks(model.device, model.dtype)
    small = replace(narrow_config(model.config), n_layer=min(WAIT_LAYERS, model.config.n_layer))
    narrow = random_model(small, arguments.seed, model.dtype, model.device)
    return bench(variant, model, workload, rates), bench(variant, narrow, workload, rates)


def _beside_itself(arguments: argparse.Namespace, bench: Bench, entropy: int) -> list[StepDifference]:
    duels, blocks = (QUICK_DUELS, QUICK_BLOCKS) if arguments.quick else (DUELS, BLOCKS)
    return [bench.beside_itself(blocks, entropy + number) for number in range(duels)]


def _injected(arguments: argparse.Namespace, bench: Bench, entropy: int) -> list[InjectedWait]:
    from profiling.measure.calibration import WAITS

    seconds = QUICK_WAIT_SECONDS if arguments.quick else WAIT_SECONDS
    sizes = WAITS_MS[1:2] if arguments.quick else WAITS_MS
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.pt.trace.json.gz"
        return [bench.injected(kind, ms, seconds, entropy, path) for kind in WAITS for ms in sizes]


def _simulated(arguments: argparse.Namespace, record: CalibrateRecord) -> list[WordsGiven]:
    """Words on made truths: a machine whose step and noise are the measured ones."""
    from profiling.results.calibration import Noise, words

    times = QUICK_SIMULATED if arguments.quick else SIMULATED
    shares = [share for duel in record.beside_itself for share in duel.shares]
    gaps = [gap / median(wait.gaps_plain_ms) - 1 for wait in record.injected for gap in wait.gaps_plain_ms]
    noise = Noise(shares, gaps)
    return [
        WordsGiven(truth, loaded, words(truth, noise, times, loaded, arguments.seed))
        for truth in _truths(record.beside_itself[0].step_ms)
        for loaded in (False, True)
    ]


def _estimators(arguments: argparse.Namespace, record: CalibrateRecord) -> list[FalseAlarms]:
    from profiling.results.calibration import false_alarms

    times = QUICK_SERIES if arguments.quick else SERIES
    shares = [share for duel in record.beside_itself for share in duel.shares]
    return false_alarms(shares, (FLOOR_ROUNDS, BLOCKS), times, arguments.seed)


def _truths(step: float) -> list[Truth]:
    """Steps of twice their memory floor, ms."""
    excess = step / 2
    return [
        Truth("no drop, a small gap", step, 0.0, 0.05 * excess, excess, "REFUTED"),
        Truth("a drop that closes a small gap", step, 0.05 * excess, 0.06 * excess, excess, "REFUTED"),
        Truth("a third of the excess is launching", step, 0.25 * excess, 0.33 * excess, excess, "PARTLY"),
        Truth("launching is the excess", step, 0.85 * excess, 0.9 * excess, excess, "CONFIRMED"),
    ]


# -- what is shown ----------------------------------------------------------------------------


def _answer(record: CalibrateRecord) -> str:
    from profiling.results.calibration import (
        false_alarm,
        placed,
        recovered,
        share_interval,
        wrong_words,
    )

    duels, waits = record.beside_itself, record.injected
    alarms, recoveries = sum(map(false_alarm, duels)), sum(map(recovered, waits))
    sides = [placed(wait) for wait in waits]
    runs, wrong = sum(given.runs for given in record.simulated), sum(map(wrong_words, record.simulated))
    holds = (
        share_interval(alarms, len(duels)).low <= MAX_FALSE
        and recoveries == len(waits)
        and False not in sides
        and wrong <= MAX_FALSE * runs
    )
    return (
        f"Claim {'holds' if holds else 'does not hold'} here: {alarms} of {len(duels)} duels of a step with "
        f"itself alarm, {recoveries} of {len(waits)} waits are recovered, {sides.count(True)} put on the "
        f"right side of the gap and {sides.count(False)} on the wrong one, {wrong} of {runs} made runs get a "
        "wrong word."
    )


def _tables(record: CalibrateRecord) -> list[Block]:
    step = median(wait.difference.step_ms - wait.ms for wait in record.injected)
    return [
        *([_runs_table(record.runs)] if record.runs else []),
        _alarms_table(record),
        _waits_table(record.injected),
        _simulated_table(record.simulated),
        _estimators_table(record.estimators),
        Bullets(
            [
                f"waits were injected into a narrow model of {WAIT_LAYERS} layers on one thread: a step of "
                f"{step:.3g} ms without them"
            ]
        ),
    ]


def _runs_table(runs: Sequence[RunAnswer]) -> Table:
    rows = []
    for run in runs:
        launching = "unknown" if run.launching is None else "{:.0%} to {:.0%}".format(*run.launching)
        ratio = None if run.aa_ratio is None else Interval(*run.aa_ratio)
        rows.append([run.headline, run.started[:16], str(run.rounds), launching, interval(ratio)])
    heads = ["answer", "begun", "rounds", "launching, of the excess", "A/A of its table"]
    return Table(heads, rows, text_columns=2, title="Runs of the study, side by side")


def _alarms_table(record: CalibrateRecord) -> Table:
    from profiling.results.calibration import false_alarm, share_interval, table_alarms

    counts = [("duel", sum(map(false_alarm, record.beside_itself)), len(record.beside_itself))]
    if any(run.aa_ratio for run in record.runs):
        counts.append(("table of a run", *table_alarms(record.runs)))
    rows = []
    for name, hits, of in counts:
        low, _, high = share_interval(hits, of)
        rows.append([name, str(hits), str(of), f"{low:.0%} to {high:.0%}"])
    return Table(["a step beside itself", "alarms", "of", "95 % interval"], rows, title="False alarms")


def _waits_table(waits: Sequence[InjectedWait]) -> Table:
    from profiling.results.calibration import recovered, removed_ms, share_in_gap

    rows = []
    for wait in waits:
        ms = removed_ms(wait.difference)
        removed = "unknown" if ms is None else f"{ms.mid:.3f} [{ms.low:.3f}, {ms.high:.3f}]"
        said = "yes" if recovered(wait) else "no"
        share = share_in_gap(wait)
        gap = "unknown" if share is None else f"{share.mid:.0%} [{share.low:.0%}, {share.high:.0%}]"
        rows.append([wait.kind, f"{wait.ms:.1f}", removed, said, gap])
    heads = ["wait", "injected, ms", "found, ms", "recovered", "put into the gap"]
    return Table(heads, rows, title="Injected waits")


def _simulated_table(given: Sequence[WordsGiven]) -> Table:
    from profiling.results.calibration import wrong_words
    from profiling.results.rules import UNDECIDED

    rows = []
    for one in given:
        load = ", under a load that comes and goes" if one.loaded else ""
        shares = [one.words.get(word, 0) / one.runs for word in (one.truth.word, UNDECIDED)]
        shares.append(wrong_words(one) / one.runs)
        rows.append([one.truth.name + load, one.truth.word, *(f"{share:.1%}" for share in shares)])
    heads = ["truth", "right word", "right", "undecided", "wrong"]
    return Table(heads, rows, text_columns=2, title="The verdict on made truths")


def _estimators_table(rates: Sequence[FalseAlarms]) -> Table:
    """A row per estimator and number of values, a column per noise: false alarms, and the width."""
    cells: dict[tuple[str, int], dict[str, str]] = {}
    for one in rates:
        text = f"{one.alarms / one.of:.1%} ({one.width:.2g})"
        cells.setdefault((one.estimator, one.values), {})[one.noise] = text
    columns = list(dict.fromkeys(one.noise for one in rates))
    rows = [[name, str(n), *(of[noise] for noise in columns)] for (name, n), of in cells.items()]
    title = "Estimators: false alarms of a 95 % interval (and its width over the noise's median deviation)"
    return Table(["estimator", "values", *columns], sorted(rows, key=lambda row: int(row[1])), title=title)


if __name__ == "__main__":
    cli.run(main)
