"""What a visit of a round stores."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from profiling.results.record.part import Count, Ms, Numbers, Part, Size, Us

AGAIN_SUFFIX = " again"  # of the second name under which the baseline is visited


class Sample(Part, frozen=True, kw_only=True):
    """Single steps of one variant at one context. `pipelined_ms`: mean step with one sync at the end, None
    where a step is done when its call returns. `energy_j`: what processor and memory took during all of
    `steps_ms`, None where the machine does not tell.
    """

    round: Count
    variant: str
    width: Size
    context: Size
    batch: Size
    steps_ms: Numbers
    pipelined_ms: Ms | None
    energy_j: Us | None = None


class FloorRead(Part, frozen=True, kw_only=True):
    """Plain reads of so many bytes that lie on pages of one size."""

    round: Count
    bytes: Size
    pages: str
    ms: Numbers


class MatmulSample(Part, frozen=True, kw_only=True):
    """Products of large square matrices in the model's dtype, of so many floating point operations each."""

    round: Count
    flops: Size
    ms: Numbers


class FirstToken(Part, frozen=True, kw_only=True):
    """A prefill of the workload's prompt."""

    round: Count
    variant: str
    ms: Ms


class PrefillSample(Part, frozen=True, kw_only=True):
    """A prefill of `prompt` tokens."""

    round: Count
    variant: str
    prompt: Size
    ms: Ms


class GenerationSample(Part, frozen=True, kw_only=True):
    """A whole generation, every token timed with a sync; the first is the prefill's."""

    round: Count
    variant: str
    prompt: Size
    tokens_ms: Numbers


class PassSample(Part, frozen=True, kw_only=True):
    """Passes over `tokens` new tokens behind `context` held ones, with the argmax after each; of 1: steps."""

    round: Count
    variant: str
    context: Size
    tokens: Size
    ms: Numbers


class WrittenSample(Part, frozen=True, kw_only=True):
    """A text of `tokens` ids, the first by an untimed prefill, the others by passes with and without drafts.

    By pass what it took, and how many tokens were proposed to it; what it wrote beyond one of them was kept.
    """

    round: Count
    variant: str
    drafted: bool
    passes_ms: Numbers
    proposed: list[Count]
    tokens: Annotated[list[int], Meta(min_length=1)]
