"""Which steps are read together: prefill apart from decode, and odd ones apart from the usual."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import pandas as pd

_PREFILLS = re.compile(r"context_(\d+)|_new_(\d+)|(\d+) ctx")
_DECODES = re.compile(r"generation_(\d+)|cached_(\d+)|(\d+) gen")
"""Requests of each phase in the names of vLLM's, SGLang's and TensorRT-LLM's steps."""
_PREFILL_WORD = re.compile(r"(?i)(?:^|[^a-z])(?:prefill|extend|context)(?:[^a-z]|$)")
_DECODE_WORD = re.compile(r"(?i)(?:^|[^a-z])(?:decode|generat\w+|token)(?:[^a-z]|$)")
_BATCH = re.compile(r"bs=(\d+)")
ODD_FACTOR = 2
"""A step this many times as long as the usual one, or as short, is read apart."""
MIN_OF_BATCH = 3


@dataclass(frozen=True)
class MeanStep:
    """What the steps that are read together take on the mean: the one length of a step that is ever named.

    `steps`: their numbers; `parts_us`: us of each part, which sum to the length.
    """

    steps: list[int] = field(default_factory=list)
    parts_us: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, parts_ns: pd.DataFrame) -> MeanStep:
        """`parts_ns`: a row per step, by its number, with a column per part."""
        means = (parts_ns.mean() / 1000).fillna(0.0)
        return cls(parts_ns.index.tolist(), dict(zip(map(str, means.index), means.tolist(), strict=True)))

    @property
    def length_us(self) -> float:
        return sum(self.parts_us.values())


def phase(name: str) -> str:
    """ "prefill", "decode", both, or "" where a step's name does not say."""
    prefill, decode = _requests(_PREFILLS, name), _requests(_DECODES, name)
    if prefill is None and decode is None:
        named = (_PREFILL_WORD.search(name) is not None, _DECODE_WORD.search(name) is not None)
    else:
        named = (bool(prefill), bool(decode))
    return " and ".join(word for word, there in zip(("prefill", "decode"), named, strict=True) if there)


def _requests(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.search(name)
    return next(int(n) for n in match.groups() if n is not None) if match else None


def kinds_of(names: pd.Series[str]) -> pd.Series[str]:
    """Per step what it is read with: its phase, and its batch size where each has enough steps."""
    phases = names.map(phase)
    batch = names.map(lambda name: batch_size(name) or 0)
    counts = batch.groupby([phases, batch]).transform("size")
    split = counts.groupby(phases).transform("min") >= MIN_OF_BATCH
    several = batch.groupby(phases).transform("nunique") > 1
    sized = phases + " of " + batch.astype(str)
    return phases.where(~(split & several & (batch > 0)), sized)


def batch_size(name: str) -> int | None:
    """Requests that a step decodes together, None where its name does not say."""
    match = _BATCH.search(name)
    return int(match[1]) if match else _requests(_DECODES, name)


def odd(length_ns: pd.Series[int]) -> pd.Series[bool]:
    """Per step of one kind whether its length is out of proportion to the (lower) median."""
    usual = float(length_ns.quantile(0.5, interpolation="lower"))
    return (length_ns > ODD_FACTOR * usual) | (ODD_FACTOR * length_ns < usual)
