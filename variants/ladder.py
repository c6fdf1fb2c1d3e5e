"""The ladder: every variant that exists, each one slot from its parent. Torch-free.

A new variant is one `.then(...)` line here.
"""

from __future__ import annotations

from typing import NamedTuple

from variants.backends.backend import FUSED_TRITON, ONE_LAUNCH, TRANSFORMERS
from variants.backends.plugin import FILE, Source, in_file, installed, plugin_option, runs_elsewhere
from variants.errors import UserError
from variants.executors.executor import AOT, COMPILED, COMPILED_CPP, COMPILED_GRAPH, GRAPH, TAPE
from variants.option import declared
from variants.slots.attention import FUSED
from variants.slots.cache import CONCAT, PAGED, STATIC
from variants.slots.head import LAST
from variants.slots.kv import KV_BFLOAT16, KV_INT8, KvOption
from variants.slots.mask import COMPUTED, SHARED
from variants.slots.pages import HUGE
from variants.slots.precision import BFLOAT16, INT4, INT8, PrecisionOption
from variants.spec import Variant

# What a run measures unless it is told: the exact rungs that lead to the floor. Left for a request ("all", or
# by name): reduced precisions of weights or cache, which compute another function; second spellings of a
# compiled step, which build for minutes; other pages and caches, which are no step on the way.
DEFAULT = (
    *("naive", "cat", "boolmask", "lasthead", "static", "sdpa", "compile", "tape"),
    *("cudagraph", "compile-cudagraph", "triton", "onelaunch"),
)


class Roles(NamedTuple):
    """Who plays which part among the rungs of one trunk, a model's code with its caches.

    `baseline`: plain cached decoding, to which the others are ratios, as to their parents. `replays` keep the
    kernels and remove the launches; the first that runs here decides.
    """

    baseline: str
    replays: tuple[str, ...]


OURS = Roles("cat", ("cudagraph", "tape"))  # the articles' decoder
THEIRS = Roles("hf", ("hf-cudagraph", "hf-tape"))  # a model of transformers in its own code
BASELINE, REPLAYS = OURS.baseline, OURS.replays + THEIRS.replays


def roles(variant: Variant) -> Roles:
    """The roles of the ladder that the variant belongs to: of our trunk or of transformers'."""
    return THEIRS if variant.backend is TRANSFORMERS else OURS


def ladder(precision: str = "float32") -> dict[str, Variant]:
    """All variants by name, parents before children. `precision` is that of the root rung."""
    rungs = _to_fixed_shape(declared(PrecisionOption)[precision])
    sdpa = rungs[-1]
    rungs += _on_modules(sdpa)
    if precision != "float64":  # the tests' oracle: no kernel is written for it
        rungs += _on_kernels(sdpa, next(rung for rung in rungs if rung.name == "cudagraph"))
    return {variant.name: variant for variant in rungs}


def _to_fixed_shape(root: PrecisionOption) -> list[Variant]:
    """The articles' way from no cache to a step of fixed shape, one after the other."""
    naive = Variant("naive", "nothing: the reference, every step recomputes the whole text", precision=root)
    cat = naive.then("cat", "recomputing the past: one token of work per step", cache=CONCAT)
    boolmask = cat.then("boolmask", "one mask buffer per layer and a comparison per layer", mask=SHARED)
    lasthead = boolmask.then(
        "lasthead",
        "lm_head on all but the last position: cuts naive steps and prefill, cannot change a one-token step",
        head=LAST,
    )
    static = lasthead.then("static", "copying the whole cache at every step", cache=STATIC)
    sdpa = static.then("sdpa", "the written-out attention's separate ops", attention=FUSED)
    return [naive, cat, boolmask, lasthead, static, sdpa]


def _on_modules(sdpa: Variant) -> list[Variant]:
    """Rungs that change the modules' step of fixed shape, or how it is run."""
    compiled = sdpa.then("compile", "most Python and dispatch, and small ops by fusion", executor=COMPILED)
    return [
        sdpa.then("nomask", "the stored mask table; computes its row instead", mask=COMPUTED),
        sdpa.then("hugepages", "most TLB misses while reading the weights", pages=HUGE),
        compiled,
        sdpa.then(
            "compile-cpp",
            "most Python and dispatch, small ops by fusion, and the Python between the compiled kernels",
            executor=COMPILED_CPP,
        ),
        sdpa.then("aoti", "all Python, and small ops by fusion", executor=AOT),
        sdpa.then("tape", "the model's Python; keeps the same ATen ops", executor=TAPE),
        sdpa.then("cudagraph", "launching kernels one by one; keeps the kernels", executor=GRAPH),
        compiled.then(
            "compile-cudagraph",
            "launching the compiled kernels one by one",
            executor=COMPILED_GRAPH,
        ),
        *_less_precise(sdpa, {"bf16": BFLOAT16, "int8": INT8}),
        sdpa.then(
            "paged",
            "nothing of a step, it adds a gather: saves memory that is reserved and unused",
            cache=PAGED,
        ),
        *_narrower_cache(
            sdpa,
            {"kv-bf16": KV_BFLOAT16, "kv-int8": KV_INT8},
            "; for the proof, not for speed: every layer widens its whole cache again",
        ),
    ]


def _on_kernels(sdpa: Variant, cudagraph: Variant) -> list[Variant]:
    """Rungs whose steps run through this project's own kernels."""
    triton = cudagraph.then(
        "triton", "most kernels: five fused ones per layer and the head", backend=FUSED_TRITON
    )
    onelaunch = sdpa.then("onelaunch", "every launch but one: a step is one kernel", backend=ONE_LAUNCH)
    narrow = _less_precise(
        onelaunch,
        {"onelaunch-bf16": BFLOAT16, "onelaunch-int8": INT8, "onelaunch-int4": INT4},
    )
    return [
        triton,
        *_less_precise(triton, {"triton-bf16": BFLOAT16, "triton-int8": INT8}),
        onelaunch,
        onelaunch.then("onelaunch-graph", "what starting the one kernel costs the host", executor=GRAPH),
        onelaunch.then("onelaunch-huge", "most TLB misses while reading the weights", pages=HUGE),
        onelaunch.then(
            "onelaunch-paged",
            "nothing of a step, it walks a table: saves memory that is reserved and unused",
            cache=PAGED,
        ),
        *narrow,
        *_narrower_cache(onelaunch, {"onelaunch-kv16": KV_BFLOAT16, "onelaunch-kv8": KV_INT8}),
        *_narrower_cache(narrow[-1], {"onelaunch-int4-kv8": KV_INT8}),
    ]


def _narrower_cache(parent: Variant, names: dict[str, KvOption], remark: str = "") -> list[Variant]:
    """Rungs by name that store keys and values in fewer bits than their parent does."""
    removes = {
        KV_BFLOAT16: "bytes of the cache: 16 bits per value",
        KV_INT8: "bytes of the cache: 8 bits per value, and a scale per token and head",
    }
    return [
        parent.then(name, removes[kv] + remark, kv=kv)
        for name, kv in names.items()
        if kv.name != parent.precision.name
    ]


def _less_precise(parent: Variant, names: dict[str, PrecisionOption]) -> list[Variant]:
    """Rungs by name that store the weights in fewer bits than their parent, in this precision."""
    removes = {
        BFLOAT16: "bytes of the weights: 16 bits each",
        INT8: "bytes of the weights: 8 bits each, and a scale per output channel",
        INT4: "bytes of the weights: 4 bits each, and a scale per 64 of them",
    }
    return [
        parent.then(name, removes[precision], precision=precision)
        for name, precision in names.items()
        if precision is not parent.precision
    ]


def transformers_ladder(precision: str) -> dict[str, Variant]:
    """The rungs of a model that transformers runs, by name. `precision`: of its weights."""
    hf = Variant(
        THEIRS.baseline,
        "nothing: transformers as it is, with its growing cache",
        cache=CONCAT,
        precision=declared(PrecisionOption)[precision],
        backend=TRANSFORMERS,
    )
    static = hf.then("hf-static", "copying the whole cache at every step", cache=STATIC)
    compiled = static.then(
        "hf-compile", "most Python and dispatch, and small ops by fusion", executor=COMPILED
    )
    rungs = [
        hf,
        static,
        compiled,
        static.then("hf-tape", "the model's Python; keeps the same ATen ops", executor=TAPE),
        static.then("hf-cudagraph", "launching kernels one by one; keeps the kernels", executor=GRAPH),
        compiled.then(
            "hf-compile-cudagraph", "launching the compiled kernels one by one", executor=COMPILED_GRAPH
        ),
    ]
    return {variant.name: variant for variant in rungs}


def with_plugins(names: list[str], variants: dict[str, Variant]) -> tuple[dict[str, Variant], list[str]]:
    """The ladder with the plug-ins among these names, and what all of them are called there.

    A plug-in is named by PATH.py:NAME, or by an installed package; it is a rung from the baseline. Nothing of
    it is imported. Raises UserError for a name that is there already.
    """
    known, called = dict(variants), []
    packages = installed() if any(name not in variants and FILE not in name for name in names) else {}
    for name in names:
        source = in_file(name) if FILE in name else None if name in variants else packages.get(name)
        called.append(source.name if source else name)
        if source:
            known[source.name] = plugin_rung(source, known)
    return known, called


def plugin_rung(source: Source, variants: dict[str, Variant]) -> Variant:
    """A plug-in as a rung from the baseline. Raises UserError where a variant has its name."""
    if source.name in variants:
        raise UserError(f"{source.at}: there is a variant {source.name} already; rename it")
    removes = f"whatever {source.at} does without"
    return variants[BASELINE].then(source.name, removes, backend=plugin_option(source))


def select(names: list[str], variants: dict[str, Variant]) -> tuple[list[Variant], list[str]]:
    """The named variants plus what they are compared with, in ladder order, and the names added.

    No name stands for those of DEFAULT, "all" for every rung of ours. Raises UserError for a name that is
    unknown.
    """
    if "all" in names:
        ours = (v for v in variants.values() if roles(v) is OURS and not runs_elsewhere(v.backend))
        names = [*(variant.name for variant in ours), *names]
        names.remove("all")
    if not names:
        return [variant for variant in variants.values() if variant.name in DEFAULT], []
    unknown = [name for name in names if name not in variants]
    if unknown:
        raise UserError(f"unknown variant {', '.join(unknown)}; known: {', '.join(variants)}")
    wanted = {*names, *(roles(variants[name]).baseline for name in names)}
    for name in names:
        wanted |= {ancestor.name for ancestor in variants[name].ancestors() if ancestor.name != "naive"}
    chosen = [variant for variant in variants.values() if variant.name in wanted]
    return chosen, [variant.name for variant in chosen if variant.name not in names]
