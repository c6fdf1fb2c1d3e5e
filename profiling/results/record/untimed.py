"""The records of experiments that a runner does not measure: counts, proofs, a text."""

from __future__ import annotations

from statistics import fmean
from typing import Literal

from profiling.results.record.base import Record
from profiling.results.record.part import Count, Numbers, Part, Positive, Size
from profiling.results.record.proof import GateResult


class CacheSizes(Part, frozen=True):
    """Bytes of a cache: its tensors; on CUDA what was requested of the allocator and what that took."""

    tensors: Count
    requested: int | None
    allocated: int | None


class HeldBytes(Part, frozen=True, kw_only=True):
    """Bytes that a decoder holds, over context: by `formula`, and of every cache by its tensors.

    `warm_up`: what the process's first step requests beyond the second's; with `graph_pool` CUDA only.
    """

    batch: Size
    layers: Size
    contexts: list[Size]
    weights: Count
    formula: list[Count]
    caches: dict[str, list[CacheSizes]]
    masks: dict[str, Count]
    warm_up: int | None
    graph_pool: Count | None


class MemoryRecord(Record, frozen=True, kw_only=True, tag="memory"):
    """What cache, masks and graphs hold."""

    memory: HeldBytes | None = None


class StepCounts(Part, frozen=True):
    """Of one step: MACs without a cache and with one, and bytes that the cached one reads."""

    naive_macs: Count
    cached_macs: Count
    read_bytes: Count


class CountedPass(Part, frozen=True):
    """One pass of one rung: MACs and matrix multiplications by formula and as executed."""

    variant: str
    what: Literal["prefill", "step"]
    context: Size
    formula_macs: Count
    executed_macs: Count
    formula_calls: Count
    executed_calls: Count

    @property
    def agrees(self) -> bool:
        """Whether MACs and calls were executed exactly as the formula says."""
        return (self.formula_macs, self.formula_calls) == (self.executed_macs, self.executed_calls)


class WorkRecord(Record, frozen=True, kw_only=True, tag="work"):
    """What a step computes and reads, by context; and what real passes executed."""

    steps: dict[int, StepCounts] = {}
    executed: list[CountedPass] = []


class Purity(Part, frozen=True, kw_only=True):
    """One context n of one kind of model; maxima are over all layers and heads of `texts` random texts.

    appended: change of the first n attention rows when a token is appended; kv: then, of the first n tokens'
    keys and values (None in records of before); replaced: change of those rows
    and of the first n tokens' keys and values when the appended token is another one; drift: difference of
    the new token's logits, cached against recomputed; flips: texts whose argmax differs; argmax: (recomputed,
    cached) of the first text that flips, else of the first; before, after: rows of layer 0, head 0. Of every
    text, empty in records of before: shown, the largest change of those rows, and drifts.
    """

    context: Size
    texts: Size
    appended: float
    replaced: float
    drift: float
    flips: Count
    argmax: tuple[int, int]
    before: list[list[float]]
    after: list[list[float]]
    kv: float | None = None
    shown: list[float] = []
    drifts: list[float] = []


class Agreement(Part, frozen=True):
    """A cached rung against naive: largest difference of logits, and whether the greedy tokens agree."""

    max: float
    same_tokens: bool


class PurityRecord(Record, frozen=True, kw_only=True, tag="purity"):
    """What a later token changes, by kind of model; and every cached rung against naive.

    `tokens`: a prompt and what the model wrote; `query_norms`: in each of those steps, of the last layer.
    """

    purity: dict[str, list[Purity]] = {}
    agreement: dict[str, Agreement] = {}
    tokens: list[int] = []
    query_norms: list[float] = []


class EqualityRecord(Record, frozen=True, kw_only=True, tag="equality"):
    """Ours beside transformers' model of the same weights: largest difference of the logits of one text, and
    the largest logit (None without transformers); and what each wrote, greedy, by rung."""

    apart: float | None = None
    largest: float | None = None
    tokens: dict[str, list[int]] = {}


class Finding(Part, frozen=True):
    """What one fault did. `caught_by`: names of checks that failed; `crashed`: what complained by itself."""

    fault: str
    source: str
    variant: str
    what: str
    right: list[int] | str
    broken: list[int] | str
    crashed: str
    caught_by: list[str]
    reason: str


class FaultsRecord(Record, frozen=True, kw_only=True, tag="faults"):
    """Which injected fault is caught by what."""

    faults: list[Finding] = []


class PlantedFault(Part, frozen=True):
    """A fault of one kind in one rung. `caught_by`: a check that failed, empty where none did."""

    kind: str
    fault: str
    rung: str
    caught_by: str
    reason: str


class CleanRung(Part, frozen=True):
    """A rung without a fault, on the texts of a seed. `refused_by`: the check that failed, if any."""

    rung: str
    seed: int
    refused_by: str
    reason: str


class PlantedRecord(Record, frozen=True, kw_only=True, tag="planted"):
    """Which faults the gate catches, by kind and rung, and which rungs it refuses without one."""

    seed: int = 0
    planted: list[PlantedFault] = []
    clean: list[CleanRung] = []


class ProveRecord(Record, frozen=True, kw_only=True, tag="prove"):
    """What the gate found of a model that transformers runs, by rung."""

    proofs: dict[str, GateResult] = {}


class Sampling(Part, frozen=True):
    """How a token is drawn; temperature 0 is greedy."""

    temperature: float
    top_k: Count
    top_p: float
    seed: int


class Generate(Part, frozen=True, kw_only=True):
    """A text as token ids. `tokens_ms`: latency of each; None where the variant was not proven."""

    variant: str
    sampling: Sampling
    prompt_ids: list[int]
    ids: list[int]
    proof: str
    tokens_ms: Numbers | None

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token; None where nothing was proven."""
        return self.tokens_ms[0] if self.tokens_ms else None

    @property
    def tpot_ms(self) -> float | None:
        """Mean of every token behind the first."""
        later = self.tokens_ms[1:] if self.tokens_ms else []
        return fmean(later) if later else None


class GenerateRecord(Record, frozen=True, kw_only=True, tag="generate"):
    """What a model wrote, and how long its tokens took; `further`: at the other temperatures asked for."""

    generate: Generate | None = None
    further: list[Generate] = []


class ExperimentResult(Part, frozen=True):
    """How one experiment ended; `failure` is empty where it did."""

    verdict: str
    failure: str


class ArticlesRecord(Record, frozen=True, kw_only=True, tag="articles"):
    """Every experiment of the articles, by name."""

    experiments: dict[str, ExperimentResult] = {}


class TraceReader(Part, frozen=True):
    """What a tool took to read one trace: medians over its runs."""

    seconds: Positive
    peak_bytes: Positive


class TraceReaders(Part, frozen=True):
    """Tools that read the same trace of so many bytes, by name; HTA is left out where it fails."""

    json_bytes: Size
    repeats: Size
    tools: dict[str, TraceReader]
    hta_failure: str | None


class ExplainBenchmarkRecord(Record, frozen=True, kw_only=True, tag="explain_benchmark"):
    """What reading a trace costs."""

    explain_benchmark: TraceReaders | None = None
