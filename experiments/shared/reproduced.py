"""Which published figures follow from formulas alone? Computed here, formatted as the articles print them.

Torch-free. `work_checks` count arithmetic, `sizing_checks` bytes; the
experiments `work` and `sizing` print them, the tests hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log2
from statistics import median

from experiments.shared.published import PUBLISHED, Check
from profiling.cost.work import (
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
from profiling.forecast.devices import DEVICES
from profiling.results.record import replaced
from profiling.sizing.capacity import GIB, doubling
from profiling.sizing.model_shape import KV_FORMATS, kv_bytes, kv_token_bytes
from profiling.sizing.read_shape import read_shape
from variants.config import PRESETS, GPTConfig

GPT2 = PRESETS["gpt2"]
# Article 3: a toy decoder counted without its head, and a Llama-2-7B shape whose MLP is four times as wide
TOY = PRESETS["toy"]
LLAMA = GPTConfig(n_layer=32, n_head=32, n_embd=4096, n_ctx=4096, vocab_size=32000, tied_head=False)
A40_TFLOPS = 37.4  # article 2: the fp32 peak it divides by
FP16, FP32 = KV_FORMATS["float16"], KV_FORMATS["float32"]

# The articles call the step whose query sees n keys (itself too) "step n": the step at context n - 1.


def work_checks() -> list[Check]:
    """Tokens, multiply-accumulates, intensities: articles 1 to 3."""
    return [*_loops(), *_growth(), *_gpt2_flops(), *_toy(), *_llama_macs()]


def device_checks() -> list[Check]:
    """What accelerators need, by their data sheets, against what a step gives them: article 3."""
    ridges = [
        device.tflops * 1e3 / device.bandwidth_gb_per_s for device in DEVICES.values() if device.tflops
    ]  # FLOPs per byte at which both peaks are reached
    macs_ridges = [ridge / FLOPS_PER_MAC for ridge in ridges]
    in_flops, in_macs = (sum(100 <= ridge <= 300 for ridge in unit) for unit in (ridges, macs_ridges))
    n, intensity = len(ridges), float(PUBLISHED["llama.decode_intensity"].value)
    missed = sorted(ridge / intensity for ridge in macs_ridges)
    return [
        Check(
            "intensity.needed",
            f"{median(macs_ridges):.0f} MACs, {median(ridges):.0f} FLOPs per byte",
            f"median of {n} data sheets (16 bits); {in_macs} lie in that range in MACs, {in_flops} in FLOPs: "
            "the article's unit is off by 2 where more do in FLOPs",
            in_macs >= in_flops,
        ),
        Check(
            "intensity.decode",
            f"by {median(missed):.0f}x",
            f"{intensity} MACs per byte against the median; {missed[0]:.0f}x to {missed[-1]:.0f}x over all",
            median(missed) > 100,
        ),
    ]


def sizing_checks() -> list[Check]:
    """Bytes of weights and cache: articles 1 to 4."""
    return [*_gpt2_bytes(), *_llama_bytes(), *_heads(), *_planning()]


def _loops() -> Iterator[Check]:
    # It counts a step after each new token, the last one too: the loop that starts one token later.
    naive, cached = naive_loop(11, 512).tokens, cached_loop(11, 512).tokens
    yield Check("gpt2.weights", f"{weights_stored_bytes(GPT2, 4) / 1e6:.0f} MB")
    yield Check("gpt2.parameters", f"{parameters(GPT2) / 1e6:.0f}M")
    yield Check("tokens.naive", f"{round(naive, -3):,}")
    yield Check("tokens.cached", f"{cached}")
    yield Check("tokens.ratio", f"{round(naive / cached, -1):.0f}x")
    yield Check("tokens.removed", f"{1 - cached / naive:.1%}")


def _growth() -> Iterator[Check]:
    """Powers of n with which pairs of queries and keys grow: what one more doubling multiplies them by."""
    n = 2048
    naive, cached = (
        round(log2(loop(1, 2 * n).pairs / loop(1, n).pairs)) for loop in (naive_loop, cached_loop)
    )
    step = round(log2(forward(1, past=2 * n - 1).pairs / forward(1, past=n - 1).pairs))
    yield Check("loops.naive", f"n{naive}")
    yield Check("loops.cached", f"n{cached}")
    yield Check("growth.naive", f"O(n^{naive})")
    yield Check("growth.cached", f"O(n^{cached})")
    yield Check("growth.step", "O(t)" if step == 1 else f"O(t^{step})")


def _gpt2_flops() -> Iterator[Check]:
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


def _llama_macs() -> Iterator[Check]:
    prefill = macs(LLAMA, forward(512, logits=0, skip_future=True))
    step = macs(LLAMA, forward(1, past=511, logits=0))
    steps = sum(macs(LLAMA, forward(1, past=n, logits=0)) for n in range(512))
    # bytes are those of the real model: weights in fp16 and the cache of the 512 tokens
    shape = read_shape("llama-2-7b")
    assert shape.weights_bytes is not None
    moved_bytes = shape.weights_bytes + kv_bytes(shape, 512, FP16)
    yield Check("llama.prefill", f"{prefill:,}")
    yield Check("llama.decode512", f"{steps:,}")
    yield Check("llama.decode", f"{step:,}")
    yield Check("llama.prefill_intensity", f"{prefill / moved_bytes:.1f}")
    yield Check("llama.decode_intensity", f"{step / moved_bytes:.2f}")


def _gpt2_bytes() -> Iterator[Check]:
    shape, token = read_shape("gpt2"), kv_token_bytes(read_shape("gpt2"), FP32)
    weights, limit = shape.weights_bytes, PRESETS["gpt2"].n_ctx
    assert weights is not None
    yield Check("gpt2.token", f"{token / 1024:.0f} KB")
    yield Check("gpt2.4k", f"{kv_bytes(shape, 4096, FP32) / 1e9:.1f} GB")
    yield Check("memory.token", f"{token / 1024:.0f} KiB")
    yield Check("memory.1024", f"{kv_bytes(shape, limit, FP32) / 2**20:.0f} MiB")
    yield Check("memory.weights", f"{weights / 2**20:.0f} MiB")
    yield Check("memory.crossover", f"{round(weights / token, -1):,.0f}")
    yield Check("memory.sequences", {7: "seven"}.get(round(weights / token / limit), "another number"))
    yield Check("memory.64", f"{kv_bytes(shape, limit, FP32, batch=64) / GIB:.1f} GiB")
    yield Check("memory.masks", f"{shape.n_layer * limit * limit * 4 / 2**20:.0f} MiB")


def _llama_bytes() -> Iterator[Check]:
    shape = read_shape("llama-2-7b")
    assert shape.weights_bytes is not None and shape.parameters is not None
    yield Check("llama.parameters", f"{shape.parameters / 1e9:.2f}B")
    yield Check("llama.weights", f"{shape.weights_bytes / GIB:.2f} GiB")
    yield Check("llama.token", f"{kv_token_bytes(shape, FP16) / 1024:.0f} KB")
    yield Check("llama.token_bytes", f"{kv_token_bytes(shape, FP16):,}")
    yield Check("llama.4k", f"{kv_bytes(shape, 4096, FP16) / 1e9:.2f} GB")
    for n in (1024, 4096, 32768, 131072):
        many = kv_bytes(shape, n, FP16, batch=32)
        yield Check(f"llama.batch1.{n}", f"{kv_bytes(shape, n, FP16) / GIB:.2f}")
        yield Check(f"llama.batch32.{n}", f"{many / GIB:.1f}")
        yield Check(f"llama.ratio.{n}", f"{many / shape.weights_bytes:.1f}x")


def _heads() -> Iterator[Check]:
    full = read_shape("llama-2-7b")
    for kv_heads in (32, 8, 1):
        shape = replaced(full, n_kv_head=kv_heads)
        yield Check(f"heads.4k.{kv_heads}", f"{kv_bytes(shape, 4096, FP16, batch=32) / GIB:.1f}GiB")
        yield Check(f"heads.32k.{kv_heads}", f"{kv_bytes(shape, 32768, FP16, batch=32) / GIB:.1f}GiB")
        yield Check(f"heads.token.{kv_heads}", f"{kv_token_bytes(shape, FP16):,}")
        yield Check(
            f"heads.reduction.{kv_heads}", f"{kv_token_bytes(full, FP16) / kv_token_bytes(shape, FP16):g}x"
        )


def _planning() -> Iterator[Check]:
    shape = read_shape("llama-2-7b")
    times = doubling(shape, FP16, 4096)
    yield Check("sizing.one", f"{kv_bytes(shape, 4096, FP16) / GIB:g} GiB")
    yield Check("sizing.batch8", f"{kv_bytes(shape, 4096, FP16, batch=8) / GIB:g} GiB")
    yield Check("sizing.double", f"{kv_bytes(shape, 8192, FP16, batch=8) / GIB:g} GiB")
    yield Check("sizing.memory_doubles", f"{times['cache of a request']:.0f}")
    unused = 1 - 200 / 4096
    share = "most" if unused > 0.5 else "less than half"
    yield Check("paging.room", f"{share} of it never used", f"{unused:.0%} of the room")
    yield Check("sizing.prefill_quadruples", f"{times['prefill, attention']:.0f}")
