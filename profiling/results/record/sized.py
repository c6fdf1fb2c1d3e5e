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

    @property
    def n_layer(self) -> int:
        """Layers, whatever their windows."""
        return len(self.windows)


class FittingPlan(Part, frozen=True):
    """What fits beside the weights."""

    usable_bytes: int  # device memory times utilisation
    free_bytes: int  # of that, for the cache
    tokens: int | None  # of all requests together; None where windows make it depend on the lengths
    requests: int  # of the planned context each
    request_bytes: int
    longest: int | None  # the longest single request, in tokens; None: any length


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


class SizingRecord(Record, frozen=True, kw_only=True, tag="sizing"):
    """How large the cache gets, and what fits."""

    sizing: Sizing | None = None
