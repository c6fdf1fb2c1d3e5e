"""The report's sections in order. A new section is one function from a Study to a Section, listed here.

A function returns None where the run has nothing to say about its question.
"""

from __future__ import annotations

from collections.abc import Callable

from profiling.results.record.page import Section
from reports.sections.about import environment, not_measured, reproduce, traces, warnings
from reports.sections.answer import answer, judging, next_steps
from reports.sections.cost import drift, gate, price
from reports.sections.floor import excess, memory_floor, prediction, replay
from reports.sections.ladder import context, effects, expectations, ladder
from reports.sections.parts import parts, phases, timeline
from reports.study import Study

SECTIONS: tuple[Callable[[Study], Section | None], ...] = (
    answer,
    judging,
    ladder,
    effects,
    expectations,
    parts,
    timeline,
    phases,
    excess,
    memory_floor,
    prediction,
    replay,
    context,
    price,
    drift,
    next_steps,
    not_measured,
    warnings,
    gate,
    environment,
    reproduce,
    traces,
)


def sections(study: Study) -> list[Section]:
    """The sections that have something to say, in the order of the report."""
    return [section for make in SECTIONS if (section := make(study)) is not None]
