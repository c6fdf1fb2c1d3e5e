"""What do the four articles claim? Every figure that an experiment checks, as printed, in one place.

The articles are titled by `ARTICLES`. A value is kept as text, digits and unit as printed. What each kind of
figure can be held to is said by `ClaimKind`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiling.results.record import ClaimKind

COUNTED, SAID, ELSEWHERE = ClaimKind.ARITHMETIC, ClaimKind.STATEMENT, ClaimKind.ELSEWHERE


@dataclass(frozen=True)
class Published:
    """One figure: which article and section, what it claims, and the value as printed."""

    article: int
    section: str
    claim: str
    value: str
    kind: ClaimKind = COUNTED


@dataclass(frozen=True)
class Check:
    """A published figure beside what was found here. `why` is said where they differ.

    `by_rule`: what the experiment's rule decided; None: arithmetic holds if it reads the same, and what was
    measured elsewhere neither holds nor fails.
    """

    key: str
    here: str
    why: str = ""
    by_rule: bool | None = None

    @property
    def holds(self) -> bool | None:
        figure = PUBLISHED[self.key]
        if figure.kind is ELSEWHERE:
            return None
        return self.here == figure.value if self.by_rule is None else self.by_rule


_TABLE_CONTEXTS = (1024, 4096, 32768, 131072)
_NEW_TOKENS = (16, 32, 64, 128, 256, 512)
_CONTEXTS = (10, 100, 500, 1000)
_ROWS = (1, 8, 16, 32, 48, 64)


def _row(
    key: str,
    article: int,
    section: str,
    claim: str,
    at: Sequence[int],
    printed: str,
    kind: ClaimKind = COUNTED,
) -> Iterator[tuple[str, Published]]:
    """One row of a printed table: a figure per column, `key.column`."""
    for column, value in zip(at, printed.split(), strict=True):
        yield f"{key}.{column}", Published(article, section, claim.format(column), value, kind)


_NAIVE, _KV = "The Naive Loop, and a Number That Doesn't Add Up", "The KV Cache: What to Remember and Why"
_RESULT, _CHASE = "The result: 6x, not 1,000x", "Chasing the missing 167x"
_MEMORY2 = "Memory: 72 KiB per token, every token"
_LOOPS, _OUTGROWS = "Two loops, and a 34x gap", "The cache outgrows the model"
_GQA, _BOUND = "MQA and GQA: shrink one term", "Prefill is compute-bound, decode is memory-bound"
_PHASES = "Two phases with opposite personalities: prefill and decode"
_MASK, _SAME = "The mask is the proof", "Same tokens, to float precision"
_PURE, _TELL = "Clue 2: the old keys and values can't change", "What I'd tell myself before starting"
_PAGED, _ENEMY = "Where PagedAttention comes in", "Fragmentation, the other enemy"
_OPENS = "KV caching and the generation loop"
_RECOMPUTES = "The naive version recomputes everything, every time"
_UNCHANGED = "Past keys and values never change again"
_JOB = "How this shows up on the job"
_SIZING = "Sizing the cache yourself"

PUBLISHED: dict[str, Published] = {
    # article 1
    "gpt2.weights": Published(1, "Generation Is a Loop", "GPT-2's weights in fp32", "498 MB"),
    "gpt2.parameters": Published(1, "Generation Is a Loop", "GPT-2's weights", "124M"),
    "tokens.naive": Published(1, _NAIVE, "tokens the naive loop processes, 10 + 512", "136,000"),
    "tokens.cached": Published(1, _NAIVE, "tokens the cached loop processes, 10 + 512", "522"),
    "tokens.ratio": Published(1, _NAIVE, "naive tokens over cached tokens", "260x"),
    "tokens.removed": Published(1, _NAIVE, "share of the work that the cache removes", "99.6%"),
    "time.removed": Published(1, _NAIVE, "share of the time that the cache removes", "84%", ELSEWHERE),
    **dict(_row("throughput.naive", 1, _NAIVE, "naive tokens/s, {} new", _NEW_TOKENS,
                "30.7 29.2 25.0 19.4 13.5 8.0", ELSEWHERE)),
    **dict(_row("throughput.cached", 1, _NAIVE, "cached tokens/s, {} new", _NEW_TOKENS,
                "52.2 54.9 48.8 50.9 51.8 48.2", ELSEWHERE)),
    **dict(_row("throughput.speedup", 1, _NAIVE, "speedup, {} new", _NEW_TOKENS,
                "1.7x 1.9x 1.9x 2.6x 3.9x 6.1x", ELSEWHERE)),
    "throughput.flat": Published(1, _NAIVE, "cached tokens/s over the new tokens", "stays flat", SAID),
    "throughput.collapse": Published(1, _NAIVE, "naive tokens/s over the new tokens", "collapses", SAID),
    "throughput.short": Published(1, _NAIVE, "speedup against the work removed", "6x, not 260x", SAID),
    "throughput.efficient": Published(1, _NAIVE, "what the cache removed", "the efficient work", SAID),
    "last.naive": Published(1, _NAIVE, "naive loop's last step, of about 520 tokens", "240 ms", ELSEWHERE),
    "last.cached": Published(1, _NAIVE, "the cached loop's last step", "20 ms", ELSEWHERE),
    "last.ratio": Published(1, _NAIVE, "the last step's time, naive over cached", "12x", ELSEWHERE),
    "last.math": Published(1, "What the Cache Leaves Open", "arithmetic of a cached step of 20 ms",
                           "a third of a millisecond", ELSEWHERE),
    "throughput.again": Published(1, "Limits of These Measurements", "the 512-token speedup, run to run",
                                  "6.6x in one run and 6.1x in another", ELSEWHERE),
    "gpt2.token": Published(1, _KV, "GPT-2's cache per token in fp32", "72 KB"),
    "gpt2.4k": Published(1, _KV, "GPT-2's cache at 4k tokens", "0.3 GB"),
    "llama.token": Published(1, _KV, "Llama-2-7B's cache per token in fp16", "512 KB"),
    "llama.4k": Published(1, _KV, "Llama-2-7B's cache for one 4k-token request", "2.15 GB"),
    # article 2
    "flops.cached.1000": Published(2, _CHASE, "FLOPs of a cached step at 1,000", "0.28 GFLOPs"),
    "flops.peak_time": Published(2, _CHASE, "a cached step at 1,000, at 37.4 TFLOPS", "8 us"),
    "flops.share": Published(2, "What I'd tell myself", "attention's share of the work at 1,000", "13%"),
    **dict(_row("flops.reduction", 2, _RESULT, "FLOP reduction at {}", _CONTEXTS,
                "10x 100x 500x 1,000x")),
    **dict(_row("step.naive", 2, _RESULT, "uncached step at {}, ms", _CONTEXTS,
                "4.89 5.20 12.70 29.69", ELSEWHERE)),
    **dict(_row("step.cached", 2, _RESULT, "cached step at {}, ms", _CONTEXTS,
                "4.94 4.95 4.95 4.95", ELSEWHERE)),
    **dict(_row("step.speedup", 2, _RESULT, "measured speedup at {}", _CONTEXTS,
                "1.0x 1.1x 2.6x 6.0x", ELSEWHERE)),
    **dict(_row("tflops.naive", 2, _CHASE, "TFLOPS, no cache at {}, in their time", _CONTEXTS,
                "0.51 4.82 10.46 9.56")),
    **dict(_row("tflops.cached", 2, _CHASE, "TFLOPS, cached at {}, in their time", _CONTEXTS,
                "0.050 0.051 0.054 0.057")),
    **dict(_row("peak.naive", 2, _CHASE, "% of 37.4 TFLOPS, no cache at {}", _CONTEXTS,
                "1.4% 12.9% 28.0% 25.6%")),
    **dict(_row("peak.cached", 2, _CHASE, "% of 37.4 TFLOPS, cached at {}", _CONTEXTS,
                "0.13% 0.14% 0.14% 0.15%")),
    "context.flat": Published(2, _RESULT, "cached step, 10 to 1,000 tokens", "same, within noise", SAID),
    "context.nothing": Published(2, _RESULT, "what the cache buys at short context", "buys nothing", SAID),
    "context.ratio": Published(2, _RESULT, "speedup against FLOP reduction", "6x, not 1,000x", SAID),
    "context.arithmetic": Published(2, _CHASE, "what sets the step, not arithmetic", "Something else", SAID),
    "generate.naive": Published(2, _RESULT, "1,016 tokens without the cache", "14.66 s", ELSEWHERE),
    "generate.cached": Published(2, _RESULT, "1,016 tokens with the cache", "5.03 s", ELSEWHERE),
    "generate.speedup": Published(2, _RESULT, "end-to-end speedup over 1,016 tokens", "2.9x", ELSEWHERE),
    "memory.token": Published(2, _MEMORY2, "cache per token", "72 KiB"),
    "memory.1024": Published(2, _MEMORY2, "cache at 1,024 tokens", "72 MiB"),
    "memory.weights": Published(2, _MEMORY2, "fp32 weights", "475 MiB"),
    "memory.crossover": Published(2, _MEMORY2, "batch x context where the cache overtakes", "6,750"),
    "memory.sequences": Published(2, _MEMORY2, "the same in full-length sequences", "seven"),
    "memory.64": Published(2, _MEMORY2, "cache of 64 full-context requests", "4.5 GiB"),
    "memory.masks": Published(2, _MEMORY2, "twelve fp32 causal masks", "48 MiB"),
    "memory.workspace": Published(2, _MEMORY2, "cuBLAS workspace counted as cache", "8,519,680", ELSEWHERE),
    "memory.hump": Published(2, _MEMORY2, "allocator above what was requested, 384 to 640, CUDA only",
                             "9.5 MiB", ELSEWHERE),
    "memory.bumps": Published(2, _MEMORY2, "its smaller bumps, CUDA only", "832 and 960", ELSEWHERE),
    "memory.line": Published(2, _MEMORY2, "bytes of the cache", "on the formula line", SAID),
    "memory.bool": Published(2, _MEMORY2, "a bool mask", "4x smaller", SAID),
    # article 3
    "toy.naive": Published(3, _LOOPS, "naive loop, MACs", "62,566,400"),
    "toy.cached": Published(3, _LOOPS, "cached loop, MACs", "1,839,104"),
    "toy.ratio": Published(3, _LOOPS, "naive loop over cached loop", "34.0x"),
    "toy.growth": Published(3, _LOOPS, "naive step 64 against step 1", "85"),
    **dict(_row("toy.step.naive", 3, _LOOPS, "naive step {}, MACs", _ROWS,
                "24,704 204,800 425,984 917,504 1,474,560 2,097,152")),
    **dict(_row("toy.step.cached", 3, _LOOPS, "cached step {}, MACs", _ROWS,
                "24,704 25,600 26,624 28,672 30,720 32,768")),
    "loops.naive": Published(3, _OPENS, "attention of the naive loop grows as", "n3"),
    "loops.cached": Published(3, _OPENS, "attention of the cached loop grows as", "n2"),
    "llama.weights": Published(3, _OUTGROWS, "Llama-2-7B's weights in fp16", "12.55 GiB"),
    "llama.parameters": Published(3, _OUTGROWS, "Llama-2-7B's parameters", "6.74B"),
    "llama.token_bytes": Published(3, _OUTGROWS, "cache per token, bytes", "524,288"),
    **dict(_row("llama.batch1", 3, _OUTGROWS, "cache at {}, batch 1, GiB", _TABLE_CONTEXTS,
                "0.50 2.00 16.00 64.00")),
    **dict(_row("llama.batch32", 3, _OUTGROWS, "cache at {}, batch 32, GiB", _TABLE_CONTEXTS,
                "16.0 64.0 512.0 2048.0")),
    **dict(_row("llama.ratio", 3, _OUTGROWS, "batch 32 at {} against the weights", _TABLE_CONTEXTS,
                "1.3x 5.1x 40.8x 163.2x")),
    **dict(_row("heads.4k", 3, _GQA, "cache at 4k, batch 32, {} KV heads", (32, 8, 1),
                "64.0GiB 16.0GiB 2.0GiB")),
    **dict(_row("heads.32k", 3, _GQA, "cache at 32k, batch 32, {} KV heads", (32, 8, 1),
                "512.0GiB 128.0GiB 16.0GiB")),
    **dict(_row("heads.reduction", 3, _GQA, "reduction, {} KV heads", (32, 8, 1), "1x 4x 32x")),
    **dict(_row("heads.token", 3, _GQA, "bytes per token, {} KV heads", (32, 8, 1),
                "524,288 131,072 16,384")),
    "llama.prefill": Published(3, _BOUND, "prefill of 512 tokens, MACs", "3,332,961,730,560"),
    "llama.decode512": Published(3, _BOUND, "512 decode steps, MACs", "3,332,961,730,560"),
    "llama.decode": Published(3, _BOUND, "one decode step, MACs", "6,576,668,672"),
    "llama.prefill_intensity": Published(3, _BOUND, "prefill, MACs per byte", "242.5"),
    "llama.decode_intensity": Published(3, _BOUND, "decode, MACs per byte", "0.48"),
    "intensity.needed": Published(3, _BOUND, "a modern accelerator needs", "100–300 MACs per byte", SAID),
    "intensity.decode": Published(3, _BOUND, "decode misses that by",
                                  "more than two orders of magnitude", SAID),
    "batch.throughput": Published(3, _BOUND, "batching helps", "throughput, not latency", SAID),
    "batch.free": Published(3, _BOUND, "concurrent requests", "nearly free", SAID),
    "batch.prefill": Published(3, _BOUND, "prefill is", "compute-bound", SAID),
    # article 4
    "batch.decode": Published(4, _PHASES, "decode is", "bandwidth bound", SAID),
    "growth.naive": Published(4, _RECOMPUTES, "attention of the whole naive generation", "O(n^3)"),
    "growth.cached": Published(4, _UNCHANGED, "attention of the whole cached generation", "O(n^2)"),
    "growth.step": Published(4, _UNCHANGED, "attention of a cached step", "O(t)"),
    "sizing.one": Published(4, _SIZING, "one request of 4,096 tokens", "2 GiB"),
    "sizing.batch8": Published(4, _SIZING, "a batch of 8", "16 GiB"),
    "sizing.double": Published(4, _SIZING, "a batch of 8, context doubled", "32 GiB"),
    "sizing.memory_doubles": Published(4, _JOB, "context doubled: cache times", "2"),
    "sizing.prefill_quadruples": Published(4, _JOB, "context doubled: prefill attention times", "4"),
    # articles 1-3, purity and silent bugs
    "purity.masked": Published(3, _MASK, "mask: change in earlier rows after appending", "0.000e+00", SAID),
    "purity.unmasked": Published(3, _MASK, "no mask: change in earlier rows", "4.631e-02", ELSEWHERE),
    "purity.drift": Published(3, _MASK, "no mask: cached against recomputed logits", "0.4017", ELSEWHERE),
    "purity.argmax": Published(3, _MASK, "no mask: argmax", "recomputed=44  cached=16", SAID),
    "purity.norm": Published(2, _PURE, "norm over the sequence", "old states change", SAID),
    "purity.exact": Published(2, _PURE, "keys and values of a causal model, recomputed",
                              "the same numbers, up to floating-point rounding", SAID),
    "purity.queries": Published(3, "Now break it", "||q||, step by step", "a new value every step", SAID),
    "purity.list": Published(3, _SAME, "tokens of the toy after the prompt 3, 17, 42, 8",
                             "[3, 17, 42, 8, 16, 16, 16, 16, 44, 44, 16, 16, 16, 16, 44, 16]", ELSEWHERE),
    "equality.logits": Published(2, "Building the cache", "logits against Hugging Face's GPT-2",
                                 "about ten float32 rounding steps", SAID),
    "equality.tokens": Published(2, "Building the cache", "cached and uncached greedy generation",
                                 "identical tokens over 200 tokens", SAID),
    "purity.tokens": Published(3, _SAME, "cached and naive loop", "same token sequence? True", SAID),
    "purity.float64": Published(3, _SAME, "max difference of their logits in float64", "1.887e-15", SAID),
    "faults.silent": Published(2, _TELL, "wrong values in correct shapes", "don’t crash", SAID),
    "faults.caught": Published(1, _KV, "cached generation against the naive loop", "token for token", SAID),
    "faults.missed": Published(2, "Building the cache", "wrong concat order: passing tests",
                               "can still miss things", SAID),
    "faults.position": Published(1, _KV, "position starting at 0, a bug that is", "silent", SAID),
    "faults.past": Published(3, "Now break it", "generating past the context", "IndexError", SAID),
    "faults.frozen": Published(3, "Now break it", "nothing appended: the model freezes",
                               "1 distinct token instead of 2", SAID),
    "faults.text": Published(2, "Two bugs that taught me how to test", "what a silent bug writes",
                             "Hello, I'm a language model, not,,,,,,,,,,", ELSEWHERE),
    "faults.leak.text": Published(3, "Now break it", "with another request's warm cache",
                                  "[44, 44, 44, 16, 16, 44, 44, 23] instead of "
                                  "[16, 16, 16, 16, 44, 44, 16, 16]", ELSEWHERE),
    "faults.leak": Published(3, "Now break it", "another request's warm cache",
                             "it leaks context between requests", SAID),
    "paging.unused": Published(3, _PAGED, "slabs of the maximum length", "Most of it is never used", SAID),
    "paging.pieces": Published(3, _PAGED, "what is left between slabs",
                               "you have the free bytes, just not in one piece", SAID),
    "paging.demand": Published(4, _ENEMY, "fixed-size blocks", "handing out only what is needed", SAID),
    "paging.share": Published(4, _ENEMY, "requests with one beginning", "can share those blocks", SAID),
    "paging.timestamp": Published(4, _JOB, "a timestamp at the front of the prompt",
                                  "makes every request's prefix unique", SAID),
    "paging.end": Published(4, _JOB, "remedy", "Put variable content at the end", SAID),
    "paging.routing": Published(4, _PHASES, "the next request on a node without the cache",
                                "has to redo prefill", SAID),
    "paging.eviction": Published(3, "The KV cache is memoisation", "dropping entries without room",
                                 "LRU on a bounded cache", SAID),
    "paging.room": Published(4, _ENEMY, "a reply of 200 tokens in a room for 4,096", "most of it never used"),
    "paging.same": Published(3, _PAGED, "what paging changes", "Nothing about attention changes", SAID),
}  # fmt: skip
