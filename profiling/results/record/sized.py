"""Models as shapes, and what `experiments.sizing` keeps of them."""

from __future__ import annotations

from profiling.results.record.base import Record
from profiling.results.record.part import Part, Size


class ModelShape(Part, frozen=True):
    """Sizes of one model; `windows` has one entry per layer, None for full attention."""

    name: str
    n_head: Size
    n_kv_head: Size
    head_dim: Size
    windows: tuple[int | None, ...]
    max_context: int | None  # tokens; None: the config does not say
    parameters: int | None
    weights_bytes: int | None
    dtype: str | None  # of the weights, as the config names it
    model_type: str = ""  # as the config names it
    # that a decode step of one row reads; None: not known, or not always the same
    step_parameters: int | None = None
    # numbers of the one vector that a layer keeps per token instead of keys and values (MLA)
    latent: Size | None = None

    @property
    def n_layer(self) -> int:
        """Layers, whatever their windows."""
        return len(self.windows)


class FittingPlan(Part, frozen=True):
    """What fits beside the weights."""

    usable_bytes: int  # device memory times utilisation
    free_bytes: int  # of that, for the cache; negative where the weights alone do not fit
    tokens: int | None  # of all requests together; None where windows make it depend on the lengths
    requests: int  # of the planned context each, or of the mix
    request_bytes: int  # of one, on average, beside what it shares with all others
    longest: int | None  # the longest single request, in tokens; None: any length
    devices: int | None = None  # fewest of this size that hold the weights and one request; None: unknown


class RequestMix(Part, frozen=True):
    """Requests of different lengths, and how many of them fit at once."""

    requests: Size  # in the file
    mean: float  # tokens
    longest: Size
    plan: FittingPlan


class Latency(Part, frozen=True):
    """Predicted times of a request, ms."""

    token: tuple[float, float, float]  # low, expected, high: one request alone
    loaded: float | None  # the least that a step of all requests that fit takes: its bytes
    first: float | None  # the prompt's arithmetic at the stated peak; None: the peak is not known here


class Sizing(Part, frozen=True, kw_only=True):
    """Cache bytes by context and batch, where they outgrow the weights, and plans by context."""

    model: ModelShape
    kv_dtype: str
    kv_bytes_per_token: int
    cache_bytes: dict[int, dict[int, int]]
    overtakes_weights_at_tokens: dict[int, int | None]
    doubling: dict[str, float]
    plan: dict[int, FittingPlan]
    vllm: str | None
    shared_prefix: int = 0  # tokens that all requests begin with, kept once
    mix: RequestMix | None = None
    latency: dict[int, Latency] = {}


class SizingRecord(Record, frozen=True, kw_only=True, tag="sizing"):
    """How large the cache gets, and what fits."""

    sizing: Sizing | None = None
