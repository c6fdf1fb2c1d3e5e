"""What `experiments.sizing` prints: shape, cache over context and batch, heads, precisions, plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.table import Table

from experiments.shared.ruled import ruled
from profiling.sizing.capacity import GIB, Plan, doubling
from profiling.sizing.model_shape import KV_FORMATS, KvFormat, ModelShape, kv_bytes, kv_token_bytes


def headline(shape: ModelShape, kv_name: str, kv: KvFormat) -> Iterator[str]:
    """The shape and what a token costs."""
    yield (
        f"{shape.name}: {shape.n_layer} layers, {shape.n_head} query heads, {shape.n_kv_head} KV heads, "
        f"head_dim {shape.head_dim}"
    )
    windowed = [window for window in shape.windows if window is not None]
    if windowed:
        sizes = ", ".join(f"{window:,}" for window in sorted(set(windowed)))
        yield f"{len(windowed)} of {shape.n_layer} layers keep a window of {sizes} tokens only"
    parameters = f"{shape.parameters / 1e9:.3f}B parameters" if shape.parameters else "parameters unknown"
    weights = f"{shape.weights_bytes / GIB:.2f} GiB" if shape.weights_bytes else "size unknown"
    yield f"weights: {parameters}, {weights} ({shape.dtype or 'dtype unknown'})"
    token = kv_token_bytes(shape, kv)
    yield f"cache per token: {token:,} bytes = {token / 1024:g} KiB ({kv_name})"


def outgrown(at: Mapping[int, int | None]) -> Iterator[str]:
    """By batch, the context `at` which the cache exceeds the weights."""
    for batch, tokens in at.items():
        where = f"from {tokens:,} tokens of context" if tokens else "never, or the weights' size is not known"
        yield f"The cache outgrows the weights at batch {batch}: {where}."


def sizes_table(shape: ModelShape, kv: KvFormat, contexts: Sequence[int], batches: Sequence[int]) -> Table:
    """Cache over context and batch, the largest batch against the weights."""
    columns = [f"batch {batch}" for batch in batches]
    columns.append(f"batch {batches[-1]} / weights")
    table = ruled("Cache, GiB", ("context",), tuple(columns))
    for n in contexts:
        sizes = [kv_bytes(shape, n, kv, batch) for batch in batches]
        ratio = f"{sizes[-1] / shape.weights_bytes:.2f}x" if shape.weights_bytes else "unknown"
        table.add_row(f"{n:,}", *(f"{size / GIB:.2f}" for size in sizes), ratio)
    return table


def heads_table(shape: ModelShape, kv: KvFormat, context: int, batch: int) -> Table:
    """The cache with as many KV heads as query heads, with eight, with one, and as the model is."""
    title = f"KV heads, at {context:,} tokens and batch {batch}"
    table = ruled(title, ("attention",), ("KV heads", "bytes/token", "GiB", "smaller by"))
    names = {shape.n_head: "multi-head", 1: "multi-query"}
    if shape.n_head % 8 == 0:
        names.setdefault(8, "grouped")
    names[shape.n_kv_head] = f"{names.get(shape.n_kv_head, 'grouped')} (this model)"
    for heads, name in sorted(names.items(), reverse=True):
        other = replace(shape, n_kv_head=heads)
        size = kv_bytes(other, context, kv, batch)
        table.add_row(
            name,
            str(heads),
            f"{kv_token_bytes(other, kv):,}",
            f"{size / GIB:.2f}",
            f"{shape.n_head / heads:g}x",
        )
    return table


def dtypes_table(shape: ModelShape, context: int, batch: int) -> Table:
    """The cache in every precision; int8 carries a float32 scale per token and KV head."""
    table = ruled(f"KV dtype, {context:,} tokens, batch {batch}", ("stored as",), ("bytes/token", "GiB"))
    for name, kv in KV_FORMATS.items():
        size = kv_bytes(shape, context, kv, batch)
        table.add_row(name, f"{kv_token_bytes(shape, kv):,}", f"{size / GIB:.2f}")
    return table


def doubling_table(shape: ModelShape, kv: KvFormat, context: int) -> Table:
    """What doubles when the context doubles, and what quadruples."""
    table = ruled(f"Context doubled, from {context:,} tokens", ("what",), ("becomes",))
    for what, times in doubling(shape, kv, context).items():
        table.add_row(what, f"{times:.2f}x")
    return table


def plan_lines(
    shape: ModelShape, plans: dict[int, Plan], memory: tuple[float, float, float]
) -> Iterator[str | Table]:
    """How many tokens and requests fit. `memory`: device GiB, usable share, GiB for other things."""
    device_gib, utilisation, other_gib = memory
    some = next(iter(plans.values()))
    yield (
        f"Of {device_gib:g} GiB x {utilisation:g} the weights and {other_gib:g} GiB for other things leave\n"
        f"{some.free_bytes / GIB:.2f} GiB for the cache"
        + (f" = {some.tokens:,} tokens" if some.tokens is not None else "")
        + ("" if other_gib else " (activations and graphs not counted: --other-gib)")
    )
    table = ruled("Plan", ("context",), ("one request, GiB", "requests at once"))
    for n, fits in plans.items():
        beyond = shape.max_context is not None and n > shape.max_context
        name = f"{n:,}{' (beyond the model)' if beyond else ''}"
        table.add_row(name, f"{fits.request_bytes / GIB:.2f}", f"{fits.requests:,}")
    yield table
    longest = "any length" if some.longest is None else f"{some.longest:,} tokens"
    yield f"Longest single request that fits: {longest}"
