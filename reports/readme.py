"""Puts the numbers of a published record into README.md, so that a command printed every one of them.

    python -m reports.readme reports/published/FOLDER

Between `<!-- measured: NAME -->` and `<!-- end -->` stands what the part of that name makes: of a floor
run of our rungs, of a `transformers` model beside them or of a real shape with seeded weights, of a
calibration or of the articles' claims.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from profiling.results.calibration import false_alarm, placed, recovered, share_interval, wrong_words
from profiling.results.folder import RunFolder, write_atomically
from profiling.results.metrics import Measured
from profiling.results.record import ArticlesRecord, CalibrateRecord, FloorRecord, Record
from reports.build import study
from reports.experiment import claims_sentence
from reports.numbers import UNKNOWN, at_commit, interval, number
from reports.sections.answer import said
from variants.command import Parser, run
from variants.errors import UserError
from variants.known_configs import SHAPE
from variants.ladder import THEIRS

README = Path("README.md")
BLOCK = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def picture(run: RunFolder[FloorRecord]) -> str:
    """The ladder figure with the report's own alt text."""
    image = re.search(r"!\[[^\]]*\]\(figures/ladder\.png\)", (run.path / "report.md").read_text("utf-8"))
    if image is None:
        raise UserError(f"{run.path}/report.md shows no ladder figure; make it with python -m reports.build")
    return image.group().replace("(figures/", f"({run.path.as_posix()}/figures/")


def source(run: RunFolder[FloorRecord]) -> str:
    """Where the numbers come from, and how long they took."""
    record = run.record
    where, workload, model = record.environment, record.workload, record.model
    if where is None or workload is None or model is None:
        raise UserError(f"{run.path} was interrupted before it measured anything")
    minutes = "unknown time"
    if record.finished is not None:
        took = datetime.fromisoformat(record.finished) - datetime.fromisoformat(record.started)
        minutes = f"{number(took.total_seconds() / 60, 2)} minutes"
    return (
        f"From the committed [report]({run.path.as_posix()}/report.md): {model.name}, {model.precision}, "
        f"batch {workload.batch}, {workload.rounds} interleaved rounds on {where.cpu} ({where.simd}, "
        f"{where.cores} cores), {minutes}{at_commit(record.commit)}. "
        "Times of one table compare by ratio only."
    )


def table(run: RunFolder[FloorRecord]) -> str:
    """Every measured rung: what it changed, its step per context, and its memory floor."""
    measured = Measured(run.record)
    heads = ["variant", "what changed", *(f"ctx {n}, ms" for n in measured.contexts), "memory floor, ms"]
    lines = [f"| {' | '.join([*heads, '× floor'])} |", f"|---|---|{'---:|' * (len(heads) - 1)}"]
    for rung in measured.ladder():
        if not rung.measured:
            continue
        change = f"{rung.difference.slot}: {rung.difference.after}" if rung.difference else "root: no cache"
        steps = [number(step.median) if step else UNKNOWN for step in rung.steps.values()]
        ratio = number(rung.ratio_to_memory_floor.mid) if rung.ratio_to_memory_floor else UNKNOWN
        cells = [f"`{rung.variant}`", change, *steps, number(rung.memory_floor_ms), ratio]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def judged(run: RunFolder[FloorRecord]) -> str:
    """The report's answer: for a manager, and to check."""
    return "\n\n".join(sentence.text for sentence in said(study(run)))


def own_code(run: RunFolder[FloorRecord]) -> str:
    """Rungs of a model in its own code beside ours: each over plain cached decoding, with 95 % intervals."""
    measured, record = Measured(run.record), run.record
    packages = record.environment.packages if record.environment else {}
    versions = ", ".join(f"{name} {packages.get(name) or UNKNOWN}" for name in ("transformers", "torch"))
    heads = ["variant", *(f"ctx {n}" for n in measured.contexts)]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * len(measured.contexts)}"]
    for name in filter(measured.has_times, record.variants):
        ratios = [
            measured.ratio(measured.steps(name, n), measured.steps(record.baseline, n))
            for n in measured.contexts
        ]
        lines.append(f"| {' | '.join([f'`{name}`', *(interval(ratio) for ratio in ratios)])} |")
    return f"{source(run)} {versions}. Steps over those of `{record.baseline}`:\n\n" + "\n".join(lines)


def shape(run: RunFolder[FloorRecord]) -> str:
    """Where each backend and precision stands above the memory floor of its bytes, with 95 % intervals."""
    measured = Measured(run.record)
    lines = ["| variant | step, ms | memory floor, ms | × floor |", "|---|---:|---:|---:|"]
    for rung in measured.ladder():
        roots = rung.variant in (run.record.baseline, THEIRS.baseline)
        other = rung.difference is not None and rung.difference.slot in ("backend", "precision")
        if rung.measured and (roots or other):
            step = rung.steps[measured.contexts[0]]
            ms = (number(step.median if step else None), number(rung.memory_floor_ms))
            ratio = interval(rung.ratio_to_memory_floor)
            lines.append(f"| {' | '.join([f'`{rung.variant}`', *ms, ratio])} |")
    return f"{source(run)} At context {measured.contexts[0]}:\n\n" + "\n".join(lines)


def accuracy(run: RunFolder[CalibrateRecord]) -> str:
    """How often the instrument was wrong where the truth was known, and what whole runs answered."""
    record = run.record
    duels, waits, truths, answers = record.beside_itself, record.injected, record.simulated, record.runs
    alarms = sum(map(false_alarm, duels))
    words = Counter(answer.word for answer in answers).most_common()
    bounded = sum(answer.launching is not None and answer.launching[1] < 1 / 2 for answer in answers)
    sides = [placed(wait) for wait in waits]
    most = share_interval(alarms, len(duels)).high
    judged = sum(one.runs for one in truths)
    return (
        f"From the committed [calibration]({run.path.as_posix()}/report.md): of {len(duels)} duels of a step "
        f"with itself {alarms} called it different (at most {most:.0%} do); of {len(waits)} waits of a known "
        f"length {sum(map(recovered, waits))} were found within 5 % or 20 us, {sides.count(True)} put into "
        f"the right part of the step and {sides.count(False)} into a wrong one; of {judged} verdicts on made "
        f"truths {sum(map(wrong_words, truths))} were wrong. All {len(answers)} whole runs said "
        f"{' or '.join(f'{word} ({n})' for word, n in words)}; {bounded} of them bound launching below half "
        f"of the excess."
    )


def articles(run: RunFolder[ArticlesRecord]) -> str:
    """What became of the articles' claims."""
    where = run.record.environment
    machine = f" on {where.cpu} ({where.simd}, {where.cores} cores)" if where else ""
    source_of = (
        f"From the committed [report]({run.path.as_posix()}/report.md){machine}{at_commit(run.record.commit)}"
    )
    return f"{source_of}: {claims_sentence(run.record.claims)}"


Part = Callable[[RunFolder[Any]], str]
PARTS: dict[type[Record], dict[str, Part]] = {
    FloorRecord: {"picture": picture, "source": source, "table": table, "verdict": judged},
    CalibrateRecord: {"accuracy": accuracy},
    ArticlesRecord: {"articles": articles},
}
OWN_CODE: dict[str, Part] = {"own_code": own_code}
OF_A_SHAPE: dict[str, Part] = {"shape": shape}


def parts_of(record: Record) -> dict[str, Part]:
    """What the README shows of such a record. Raises UserError where it shows nothing."""
    if type(record) not in PARTS:
        kinds = " or ".join(kind.kind() for kind in PARTS)
        raise UserError(f"the README shows no run of {record.kind()}, only {kinds}")
    if isinstance(record, FloorRecord) and record.model and record.model.name.startswith(SHAPE):
        return OF_A_SHAPE
    if isinstance(record, FloorRecord) and THEIRS.baseline in record.variants:
        return OWN_CODE
    return PARTS[type(record)]


def filled(text: str, run: RunFolder[Record]) -> str:
    """The text with every block that this kind of record makes made anew."""
    parts = parts_of(run.record)

    def replaced(block: re.Match[str]) -> str:
        return f"{block[1]}{parts[block[2]](run)}\n{block[3]}" if block[2] in parts else block[0]

    return BLOCK.sub(replaced, text)


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(prog="python -m reports.readme", description="Put a run into README.md.")
    parser.add_argument("run", type=Path, help="a published run folder, relative to the README")
    published = RunFolder.load(parser.parse_args(argv).run, Record)
    write_atomically(README, filled(README.read_text("utf-8"), published).encode())


if __name__ == "__main__":
    run(main)
