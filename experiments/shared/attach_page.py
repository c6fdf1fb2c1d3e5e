"""The page of `experiments.attach`: what was measured, what is predicted beside it, what is unknown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiling.forecast.constants import fitted
from profiling.forecast.devices import DEVICES
from profiling.forecast.engines import ENGINES, Mode
from profiling.forecast.job import job_of
from profiling.forecast.scope import why_not
from profiling.forecast.step import Prediction, Setup, predict
from profiling.results.record import OnDevice
from profiling.results.record.page import Block, Bullets, Figure, Section, Sentence, Table
from profiling.results.record.pictures import Curves
from profiling.results.stats import Interval
from profiling.results.streamed import Row, Streamed
from reports.numbers import UNKNOWN, code, interval, number


@dataclass(frozen=True)
class Beside:
    """What is known without the server, of the steps of one row: floor, ms, and each way to launch them."""

    row: Row
    floor_ms: float
    steps: dict[Mode, Prediction]

    @property
    def over_floor(self) -> Interval | None:
        return self.row.token_ms and self.row.token_ms.scaled(1 / self.floor_ms)

    @property
    def graph_saves_ms(self) -> Interval | None:
        """What is measured less what one graph is predicted to take, from its high to its low."""
        measured, graph = self.row.token_ms, self.steps.get(Mode.GRAPH)
        if measured is None or graph is None:
            return None
        mid = measured.mid - graph.expected_ms
        return Interval(measured.low - graph.high_ms, mid, measured.high - graph.low_ms)


def beside(on: OnDevice, row: Row) -> Beside:
    """The floor and the predictions of a row."""
    held = round(min(row.steps_at, on.shape.max_context or math.inf))
    job, device, engine = job_of(on.shape, on.precision, held), DEVICES[on.device], ENGINES[on.engine]
    modes = [mode for mode in engine.modes if why_not(engine, mode, on.precision) is None]
    steps = {mode: predict(job, Setup(device, engine, mode), fitted()) for mode in modes}
    return Beside(row, job.floor_ms(device), steps)


def answer(streamed: Streamed, known: Sequence[Beside]) -> str:
    """One sentence: a token at the shortest context, what context adds, and how far from the floor."""
    timed = [row for row in streamed.rows if row.token_ms]
    if not timed:
        first = next((row for row in streamed.rows if row.first_ms), None)
        said = (
            f"the first token takes {interval(first.first_ms)} ms" if first else "no token was seen to arrive"
        )
        return f"The time between tokens is unknown; {said}."
    parts = [f"a token takes {interval(row.token_ms)} ms at context {row.context}" for row in timed[:1]]
    if (slope := streamed.slope_ms) is not None:
        parts.append(f"1,000 tokens of context add {interval(slope.scaled(1e3))} ms")
    over = [each.over_floor for each in known if each.row.context == timed[0].context]
    parts.append(f"it takes {interval(over[0])} times its memory floor" if over else "its floor is not known")
    return f"Measured: {'; '.join(parts)}."


def measured(streamed: Streamed) -> Iterator[Block]:
    """What came from the server."""
    rows = [
        (
            _counted(row),
            interval(row.first_ms),
            interval(row.token_ms),
            number(row.tokens_per_s),
            number(row.gap_p99_ms),
        )
        for row in streamed.rows
    ]
    heads = ("context", "first token, ms", "per token, ms", "tokens/s", "p99 gap, ms")
    yield Table(heads, rows)
    yield Bullets([*_notes(streamed), *(f"Unknown: {what}" for what in streamed.unknown())])


def _notes(streamed: Streamed) -> Iterator[str]:
    record = streamed.record
    yield (
        f"{record.repeats} rounds over the contexts in drawn order, each a greedy answer of at most "
        f"{record.tokens} tokens from {record.path}, one at a time; trimmed means of "
        "logarithms over rounds with their 95 % intervals"
    )
    yield (
        "first token: from sending the request to the first chunk with text, network and queue included; per "
        "token: (last - first arrival) / (tokens - 1), by the tokens that the server counts; gaps: of chunks"
    )
    for row in streamed.rows:
        if row.per_chunk and row.per_chunk > 1.05 and row.token_ms_at_most:
            yield (
                f"at context {row.context} a chunk carries {row.per_chunk:.1f} tokens: a token takes at most "
                f"{number(row.token_ms_at_most)} ms, where the first chunk held more than one"
            )
    for context, reason in record.left_out.items():
        yield f"context {context} is left out: {reason}"


def _counted(row: Row) -> str:
    """The context that was asked for, and what the server counted where that is another."""
    if row.prompt_tokens is None:
        return f"{row.context}\nnot counted"
    low, high = row.prompt_tokens
    counted = str(low) if low == high else f"{low} to {high}"
    return str(row.context) if counted == str(row.context) else f"{row.context}\ncounted {counted}"


def section(streamed: Streamed, known: Sequence[Beside]) -> Section:
    """The floor and the predictions, or how to get them."""
    on = streamed.record.on_device
    if on is None:
        text = "Unknown: which model this is and on which device it runs. --model and --device say it."
        return Section("Beside it", [Sentence(text), Sentence(BARE_LOOP)])
    device = DEVICES[on.device]
    rows = [
        (
            str(each.row.context),
            number(each.floor_ms),
            interval(each.over_floor),
            _predicted(each.steps.get(Mode.GRAPH)),
            interval(each.graph_saves_ms),
        )
        for each in known
    ]
    heads = ("context", "floor, ms", "x floor", "one graph, ms", "it saves, ms")
    blocks: list[Block] = [
        Sentence(
            f"**Floor and PREDICTION** of {code(on.shape.name)} in {on.precision} on {device.name}, run by "
            f"{on.engine}, at the middle of the timed steps. Floor: the bytes of weights and cache at "
            f"{device.bandwidth_gb_per_s:,.0f} GB/s as stated."
        ),
        Table(heads, rows, title="Floor, measured over floor, and one graph"),
        _modes(known[0]),
        Bullets(list(_meaning(known))),
    ]
    if sum(each.row.token_ms is not None for each in known) > 1:
        blocks.append(_figure(known))
    return Section("Beside it", [*blocks, Sentence(BARE_LOOP)])


BARE_LOOP = (
    "Not done: our bare loop on the server's machine. `python -m experiments.floor --shape CONFIG`, run "
    "there while the server rests, measures it."
)


def _predicted(step: Prediction | None) -> str:
    if step is None:
        return UNKNOWN
    return f"{number(step.expected_ms)} ({number(step.low_ms)} to {number(step.high_ms)})"


def _modes(one: Beside) -> Table:
    mid = one.row.token_ms.mid if one.row.token_ms else None
    rows = [
        (
            mode.value,
            number(step.low_ms),
            number(step.expected_ms),
            number(step.high_ms),
            step.sets_it,
            number(None if mid is None else mid / step.expected_ms),
        )
        for mode, step in one.steps.items()
    ]
    heads = ("launched as", "low", "expected", "high", "set by", "measured / expected")
    return Table(heads, rows, title=f"Predicted ms per token at context {one.row.context}")


def _meaning(known: Sequence[Beside]) -> Iterator[str]:
    yield (
        "it saves: measured less predicted, each at its ends; where that holds 0, the prediction is not "
        "sharp enough to say that a graph would help. Sampling, detokenising and the network are measured, "
        "not predicted"
    )
    if any(each.over_floor and each.over_floor.high < 1 for each in known):
        yield (
            "below the floor: several tokens a step (speculation), another precision, model or device than "
            "was said, or answers that something held back and sent in one piece"
        )


def _figure(known: Sequence[Beside]) -> Figure:
    timed = [(each, ms) for each in known if (ms := each.row.token_ms)]
    points = [(each.row.steps_at, ms.mid, ms.low, ms.high) for each, ms in timed]
    bounds = {"memory floor": [(each.row.steps_at, each.floor_ms) for each, _ in timed]}
    graph = [
        (each.row.steps_at, each.steps[Mode.GRAPH].expected_ms)
        for each, _ in timed
        if Mode.GRAPH in each.steps
    ]
    if graph:
        bounds["one graph, predicted"] = graph
    caption = (
        "A token over the context that its step holds: measured, beside the floor and a predicted graph."
    )
    return Figure(
        "attach", caption, [Curves("context, tokens", "ms per token", {"measured": points}, bounds)]
    )


def as_json(streamed: Streamed, known: Sequence[Beside]) -> dict[str, object]:
    """Everything that is shown, with intervals as [low, mid, high]."""
    predicted = {each.row.context: each for each in known}
    contexts = {}
    for row in streamed.rows:
        near = predicted.get(row.context)
        contexts[row.context] = {
            "answers": row.answers,
            "prompt_tokens": row.prompt_tokens,
            "first_ms": row.first_ms,
            "token_ms": row.token_ms,
            "token_ms_at_most": row.token_ms_at_most,
            "tokens_per_chunk": row.per_chunk,
            "floor_ms": near and near.floor_ms,
            "over_floor": near and near.over_floor,
            "graph_saves_ms": near and near.graph_saves_ms,
            "predicted_ms": near and {m: (s.low_ms, s.expected_ms, s.high_ms) for m, s in near.steps.items()},
        }
    record = streamed.record
    about = {"url": record.url, "served": record.served, "path": record.path}
    rest = {"slope_ms": streamed.slope_ms, "left_out": record.left_out, "unknown": list(streamed.unknown())}
    return {**about, "contexts": contexts, **rest}
