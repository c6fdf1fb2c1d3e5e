"""What do streamed answers say of a server's steps? Time to the first token, and between tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from profiling.results.record import AttachRecord, StreamedAnswer
from profiling.results.stats import Interval, intercepts, quantiles, ratio_interval, robust_interval

# A server's next token takes longer than this, ms: chunks that come faster were held back and sent together.
SHORTEST_STEP_MS = 0.02


def behind_first(answer: StreamedAnswer) -> int | None:
    """Tokens that came after the first chunk with text: as the server counted them, else all but one. None
    where it counted none."""
    if answer.counted:
        return answer.counted[-1] - answer.counted[0]
    return None if answer.tokens is None else answer.tokens - 1


def token_ms(answer: StreamedAnswer) -> float | None:
    """(last - first arrival) / tokens behind the first. None where it is unknown: tokens that are not
    counted, or all of them in one piece."""
    behind, span = behind_first(answer), _span_ms(answer)
    return span / behind if behind and behind > 0 and span is not None else None


def token_ms_at_most(answer: StreamedAnswer) -> float | None:
    """The same, had every chunk behind the first held one token and the first all others."""
    span = _span_ms(answer)
    if span is None or token_ms(answer) is None:
        return None
    behind = behind_first(answer) or 1
    return span / (behind if answer.counted else min(behind, len(answer.arrivals_ms) - 1))


def _span_ms(answer: StreamedAnswer) -> float | None:
    at = answer.arrivals_ms
    span = at[-1] - at[0] if len(at) > 1 else 0.0
    return span if span > SHORTEST_STEP_MS * (len(at) - 1) else None


@dataclass(frozen=True)
class Row:
    """One context. Intervals are over answers; None is unknown. `steps_at`: tokens held in the middle of the
    timed steps; `per_chunk`: tokens that a chunk carried; gaps are between chunks."""

    context: int
    answers: int
    prompt_tokens: tuple[int, int] | None
    steps_at: float
    first_ms: Interval | None
    token_ms: Interval | None
    token_ms_at_most: float | None
    per_chunk: float | None
    gap_p99_ms: float | None

    @property
    def tokens_per_s(self) -> float | None:
        return None if self.token_ms is None else 1e3 / self.token_ms.mid


@dataclass(frozen=True)
class Streamed:
    """The numbers of a record."""

    record: AttachRecord

    @property
    def rows(self) -> list[Row]:
        """A row per context that was timed."""
        return [row for context in self.record.contexts if (row := self._row(context))]

    def _row(self, context: int) -> Row | None:
        answers = [answer for answer in self.record.answers if answer.context == context]
        if not answers:
            return None
        prompts = [a.prompt_tokens for a in answers if a.prompt_tokens is not None]
        at_most = [ms for a in answers if (ms := token_ms_at_most(a)) is not None]
        spread = [a.tokens / len(a.arrivals_ms) for a in answers if a.tokens and a.arrivals_ms]
        gaps = [gap for a in answers if token_ms(a) is not None for gap in _gaps(a)]
        return Row(
            context,
            len(answers),
            (min(prompts), max(prompts)) if prompts else None,
            float(np.mean([_steps_at(a) for a in answers])),
            _typical([a.arrivals_ms[0] for a in answers if a.arrivals_ms]),
            _typical([ms for a in answers if (ms := token_ms(a)) is not None]),
            max(at_most, default=None),
            float(np.mean(spread)) if spread else None,
            quantiles(gaps).p99 if gaps else None,
        )

    @property
    def slope_ms(self) -> Interval | None:
        """What one more token of context adds to a token, ms: least squares per round over its contexts. None
        for fewer than two contexts or rounds."""
        slopes = []
        for number in sorted({answer.round for answer in self.record.answers}):
            of_round = [a for a in self.record.answers if a.round == number]
            steps = {_steps_at(a): ms for a in of_round if (ms := token_ms(a)) is not None}
            if len(steps) > 1:
                slopes.append(float(intercepts([*steps], np.array([[*steps.values()]]))[1][0]))
        return robust_interval(slopes)

    def unknown(self) -> Iterator[str]:
        """What is not known, and why."""
        answers = self.record.answers
        if answers and all(a.tokens is None for a in answers):
            yield "tokens: the server reports no usage that counts them, so a token's time is not known"
        elif held := sum(token_ms(a) is None and (a.tokens or 0) > 1 for a in answers):
            yield (
                f"time between tokens of {held} of {len(answers)} answers: all text came in one piece, from "
                "the server or from what stands before it"
            )
        if any(a.prompt_tokens is None for a in answers):
            yield "length of the prompts: the server does not count them; one word is taken for one token"


def _typical(ms: list[float]) -> Interval | None:
    """Estimated of the logarithms: a time is above nothing, and so is its interval."""
    return ratio_interval(ms, np.ones(len(ms)))


def _steps_at(answer: StreamedAnswer) -> float:
    held = answer.context if answer.prompt_tokens is None else answer.prompt_tokens
    return held + (answer.tokens or 0) / 2


def _gaps(answer: StreamedAnswer) -> list[float]:
    return [after - before for before, after in itertools.pairwise(answer.arrivals_ms)]
