"""Parts of the page of `experiments.sizing`: shape, cache over context and batch, heads, precisions, plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from profiling.results.record import FittingPlan, ModelShape, Sizing, replaced
from profiling.results.record.page import Code, Figure, Section, Sentence, Table
from profiling.results.record.pictures import Curves, level
from profiling.sizing.capacity import GIB, doubling
from profiling.sizing.model_shape import KV_FORMATS, KvFormat, kv_bytes, kv_token_bytes
from reports.numbers import number


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
    if shape.latent:
        expanded = replaced(shape, latent=None)
        times = kv_token_bytes(expanded, kv) / kv_token_bytes(shape, kv)
        yield (
            f"a layer keeps one latent vector of {shape.latent} numbers per token (MLA), as vLLM and SGLang "
            f"do: {times:.3g} times less than keys and values of all heads"
        )
    token = kv_token_bytes(shape, kv)
    yield f"cache per token: {token:,} bytes = {token / 1024:g} KiB ({kv_name})"


def outgrown(at: Mapping[int, int | None]) -> Iterator[str]:
    """By batch, the context `at` which the cache exceeds the weights."""
    for batch, tokens in at.items():
        where = f"from {tokens:,} tokens of context" if tokens else "never, or the weights' size is not known"
        yield f"The cache outgrows the weights at batch {batch}: {where}."


def sizes(
    shape: ModelShape, kv: KvFormat, contexts: Sequence[int], batches: Sequence[int]
) -> tuple[Figure | Table, ...]:
    """The cache over context and batch, and what sharing heads, fewer bytes and more context change."""
    return (
        sizes_figure(shape, kv, contexts, batches),
        sizes_table(shape, kv, contexts, batches),
        *([] if shape.latent else [heads_table(shape, kv, contexts[0], batches[-1])]),
        dtypes_table(shape, contexts[0], batches[-1]),
        doubling_table(shape, kv, contexts[0]),
    )


def sizes_table(shape: ModelShape, kv: KvFormat, contexts: Sequence[int], batches: Sequence[int]) -> Table:
    """Cache over context and batch, the largest batch against the weights."""
    heads = ("context", *(f"batch {batch}" for batch in batches), f"batch {batches[-1]} / weights")
    rows = []
    for n in contexts:
        sizes = [kv_bytes(shape, n, kv, batch) for batch in batches]
        ratio = f"{sizes[-1] / shape.weights_bytes:.2f}x" if shape.weights_bytes else "unknown"
        rows.append((f"{n:,}", *(f"{size / GIB:.2f}" for size in sizes), ratio))
    return Table(heads, rows, title="Cache, GiB")


def heads_table(shape: ModelShape, kv: KvFormat, context: int, batch: int) -> Table:
    """The cache with as many KV heads as query heads, with eight, with one, and as the model is."""
    title = f"KV heads, at {context:,} tokens and batch {batch}"
    rows = []
    names = {shape.n_head: "multi-head", 1: "multi-query"}
    if shape.n_head % 8 == 0:
        names.setdefault(8, "grouped")
    names[shape.n_kv_head] = f"{names.get(shape.n_kv_head, 'grouped')} (this model)"
    for heads, name in sorted(names.items(), reverse=True):
        other = replaced(shape, n_kv_head=heads)
        size = kv_bytes(other, context, kv, batch)
        cells = (f"{kv_token_bytes(other, kv):,}", f"{size / GIB:.2f}", f"{shape.n_head / heads:g}x")
        rows.append((name, str(heads), *cells))
    return Table(("attention", "KV heads", "bytes/token", "GiB", "smaller by"), rows, title=title)


def dtypes_table(shape: ModelShape, context: int, batch: int) -> Table:
    """The cache in every precision; int8 carries a float32 scale per token and KV head."""
    rows = []
    for name, kv in KV_FORMATS.items():
        size = kv_bytes(shape, context, kv, batch)
        rows.append((name, f"{kv_token_bytes(shape, kv):,}", f"{size / GIB:.2f}"))
    title = f"KV dtype, {context:,} tokens, batch {batch}"
    return Table(("stored as", "bytes/token", "GiB"), rows, title=title)


def doubling_table(shape: ModelShape, kv: KvFormat, context: int) -> Table:
    """A table of what doubles when the context doubles, and what quadruples."""
    rows = [(what, f"{times:.2f}x") for what, times in doubling(shape, kv, context).items()]
    return Table(("what", "becomes"), rows, title=f"Context doubled, from {context:,} tokens")


def sizes_figure(shape: ModelShape, kv: KvFormat, contexts: Sequence[int], batches: Sequence[int]) -> Figure:
    """The cache over context, a line per batch, beside the weights."""
    lines = {f"batch {b}": [(n, kv_bytes(shape, n, kv, b) / GIB) for n in contexts] for b in batches}
    weights = {} if shape.weights_bytes is None else {"weights": level(contexts, shape.weights_bytes / GIB)}
    caption = "The cache grows with context times batch, the weights do not."
    return Figure("sizing", caption, [Curves("context, tokens a request", "GiB", lines, weights)])


def plan_section(sizing: Sizing, device_gib: float, utilisation: float, other_gib: float) -> Section:
    """What fits into `device_gib` of which a share is used, `other_gib` for neither weights nor cache."""
    some = next(iter(sizing.plan.values()))
    tokens = "" if some.tokens is None or some.free_bytes < 0 else f" = {some.tokens:,} tokens"
    others = "" if other_gib else " (activations and graphs not counted: --other-gib)"
    longest = "any length" if some.longest is None else f"{some.longest:,} tokens"
    return Section(
        "What fits",
        [
            Sentence(
                f"Of {device_gib:g} GiB x {utilisation:g} the weights and {other_gib:g} GiB for other things "
                f"{'lack' if some.free_bytes < 0 else 'leave'} {abs(some.free_bytes) / GIB:.2f} GiB "
                f"for the cache{tokens}{others}."
            ),
            _plan_table(sizing),
            Sentence(f"Longest single request that fits: {longest}."),
            *_answer(sizing, device_gib),
        ],
    )


def _plan_table(sizing: Sizing) -> Table:
    limit = sizing.model.max_context
    rows = []
    for n, fits in sizing.plan.items():
        beyond = limit is not None and n > limit
        rows.append((f"{n:,}{' (beyond the model)' if beyond else ''}", *_plan_cells(fits)))
    if sizing.mix:
        name = f"mix of {sizing.mix.requests:,}, mean {sizing.mix.mean:,.0f}, at most {sizing.mix.longest:,}"
        rows.append((name, *_plan_cells(sizing.mix.plan)))
    shared = f", beside the {sizing.shared_prefix:,} tokens that all share" if sizing.shared_prefix else ""
    heads = ("context, tokens", f"one request, GiB{shared}", "requests at once", "devices for one")
    return Table(heads, rows)


def _plan_cells(fits: FittingPlan) -> tuple[str, str, str]:
    devices = "none" if fits.devices is None else str(fits.devices)
    return f"{fits.request_bytes / GIB:.2f}", f"{fits.requests:,}", devices


def _answer(sizing: Sizing, device_gib: float) -> list[Sentence | Code]:
    """The command; or why there is none, and how many devices would do."""
    if sizing.vllm:
        return [Sentence("In vLLM:"), Code(sizing.vllm)]
    limit = sizing.model.max_context
    allowed = {n: fits for n, fits in sizing.plan.items() if limit is None or n <= limit}
    if any(fits.requests for fits in allowed.values()):
        kinds = f"{sizing.kv_dtype} cache beside {sizing.model.dtype} weights"
        return [Sentence(f"No command for vLLM: it keeps no {kinds}.")]
    if not allowed:
        return [Sentence(f"All of these contexts are beyond the model's {limit:,} tokens.")]
    n, fits = next(iter(allowed.items()))
    several = f"no number of them holds one of {n:,} tokens"
    if fits.devices is not None:
        several = f"{fits.devices} of them hold one of {n:,} tokens"
    return [Sentence(f"No request of these contexts fits into one device of {device_gib:g} GiB; {several}.")]


def latency_section(sizing: Sizing, device: str) -> Section:
    """How long a request waits for its tokens, predicted."""
    rows = [
        (
            f"{n:,}",
            " to ".join(number(ms) for ms in (times.token[0], times.token[2])),
            number(times.token[1]),
            "unknown" if times.first is None else number(times.first),
            "-" if times.loaded is None else number(times.loaded),
        )
        for n, times in sizing.latency.items()
    ]
    heads = ("context, tokens", "ms per token, alone", "expected", "prompt, at its peak", "full, at least")
    return Section(
        "How fast",
        [
            Sentence(
                f"**PREDICTION** for {device}, one step replayed as a graph by a serving engine, from "
                "constants held against published steps (docs/validation.md). The prompt: its arithmetic at "
                "the stated peak of dense 16-bit products, of which engines reach a part. Full: the bytes of "
                "a step of all requests that fit. An engine's work between two steps, and waiting in its "
                "queue, come on top."
            ),
            Table(heads, rows, title="Milliseconds"),
        ],
    )
