"""Question: how much does a step compute and read, and how much of it does the cache save?

Claim (articles 1-3): the naive loop does n times the arithmetic of a cached step; 34.0 times for the toy model
over 64 tokens, 1,000 times for GPT-2 small at 1,000 tokens; decode reads all weights for 0.48 MACs a byte.

Counts only, no times: exact formulas (`profiling.work`) against the published figures, and against the
matrix multiplications that a real run of each eager rung executes (`profiling.matmul_counter`).

    python -m experiments.work
    python -m experiments.work --model gpt2-xl --context 10,1000
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.published import PUBLISHED, Check
from profiling.hf_config import read_shape
from profiling.model_shape import KV_FORMATS, kv_bytes
from profiling.work import (
    FLOPS_PER_MAC,
    attention_share,
    cached_loop,
    forward,
    macs,
    naive_loop,
    naive_step_macs,
    parameters,
    step_macs,
    weights_stored_bytes,
)
from variants.config import PRESETS, GPTConfig

GPT2 = PRESETS["gpt2"]
# Article 3: a toy decoder counted without its head, and a Llama-2-7B shape whose MLP is four times as wide
TOY = GPTConfig(n_layer=2, n_head=4, n_embd=32, n_ctx=128, vocab_size=50)
LLAMA = GPTConfig(n_layer=32, n_head=32, n_embd=4096, n_ctx=4096, vocab_size=32000, tied_head=False)
A40_TFLOPS = 37.4  # article 2: the fp32 peak it divides by

# The articles call the step whose query sees n keys (itself too) "step n": the step at context n - 1.


def published_checks() -> list[Check]:
    """Every figure of the articles' counting that no machine can change."""
    return [*_article_1(), *_article_2(), *_toy(), *_llama()]


def _article_1() -> Iterator[Check]:
    # It counts a step after each new token, the last one too: the loop that starts one token later.
    naive, cached = naive_loop(11, 512).tokens, cached_loop(11, 512).tokens
    yield Check("gpt2.weights", f"{weights_stored_bytes(GPT2, 4) / 1e6:.0f} MB")
    yield Check("gpt2.parameters", f"{parameters(GPT2) / 1e6:.0f}M")
    yield Check("tokens.naive", f"{round(naive, -3):,}")
    yield Check("tokens.cached", f"{cached}")
    yield Check("tokens.ratio", f"{round(naive / cached, -1):.0f}x")
    yield Check("tokens.removed", f"{1 - cached / naive:.1%}")


def _article_2() -> Iterator[Check]:
    for n in (10, 100, 500, 1000):
        naive, cached = naive_step_macs(GPT2, n), step_macs(GPT2, n - 1)
        yield Check(f"flops.reduction.{n}", f"{naive / cached:,.0f}x")
        for name, count, digits in (("naive", naive, 2), ("cached", cached, 3)):
            yield from _achieved(name, n, FLOPS_PER_MAC * count, digits)
    cached = FLOPS_PER_MAC * step_macs(GPT2, 999)
    yield Check("flops.cached.1000", f"{cached / 1e9:.2f} GFLOPs")
    yield Check("flops.peak_time", f"{cached / A40_TFLOPS / 1e6:.0f} us")
    yield Check("flops.share", f"{attention_share(GPT2, forward(1, past=999)):.0%}")


def _achieved(name: str, n: int, flops: int, digits: int) -> Iterator[Check]:
    """FLOPs over the article's own printed time, which is rounded to 0.01 ms: both ends are tried."""
    printed_ms = float(PUBLISHED[f"step.{name}.{n}"].value)
    times_ms = (printed_ms, printed_ms - 0.005, printed_ms + 0.005)
    for kind, pattern, scale in (
        ("tflops", f"{{:.{digits}f}}", 1e9),
        ("peak", f"{{:.{digits - 1}f}}%", 1e9 * A40_TFLOPS / 100),
    ):
        readings = [pattern.format(flops / ms / scale) for ms in times_ms]
        target = PUBLISHED[f"{kind}.{name}.{n}"].value
        yield Check(f"{kind}.{name}.{n}", target if target in readings else readings[0])


def _toy() -> Iterator[Check]:
    naive, cached = macs(TOY, naive_loop(1, 64, logits=0)), macs(TOY, cached_loop(1, 64, logits=0))
    yield Check("toy.naive", f"{naive:,}")
    yield Check("toy.cached", f"{cached:,}")
    yield Check("toy.ratio", f"{naive / cached:.1f}x")
    steps = {n: macs(TOY, forward(n, logits=0)) for n in (1, 8, 16, 32, 48, 64)}
    yield Check("toy.growth", f"{steps[64] / steps[1]:.0f}")
    for n, count in steps.items():
        yield Check(f"toy.step.naive.{n}", f"{count:,}")
        yield Check(f"toy.step.cached.{n}", f"{macs(TOY, forward(1, past=n - 1, logits=0)):,}")


def _llama() -> Iterator[Check]:
    prefill = macs(LLAMA, forward(512, logits=0, skip_future=True))
    step = macs(LLAMA, forward(1, past=511, logits=0))
    steps = sum(macs(LLAMA, forward(1, past=n, logits=0)) for n in range(512))
    # bytes are those of the real model: weights in fp16 and the cache of the 512 tokens
    shape = read_shape("llama-2-7b")
    assert shape.weights_bytes is not None
    moved_bytes = shape.weights_bytes + kv_bytes(shape, 512, KV_FORMATS["float16"])
    yield Check("llama.prefill", f"{prefill:,}")
    yield Check("llama.decode512", f"{steps:,}")
    yield Check("llama.decode", f"{step:,}")
    yield Check("llama.prefill_intensity", f"{prefill / moved_bytes:.1f}")
    yield Check("llama.decode_intensity", f"{step / moved_bytes:.2f}")
