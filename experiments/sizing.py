"""Question: how large does the KV cache get, and how many requests fit beside the weights?

Claim (articles 1-4): the cache is 2 * layers * kv_heads * head_dim * tokens * bytes * batch; it outgrows the
weights, shrinks by n_heads / kv_heads, and doubles with the context while prefill attention quadruples.

Arithmetic only. The model is a name, a Hugging Face config.json (or its folder), or a shape in flags; one
whose cache is of a kind that is not known here is refused. With a device's memory it plans what fits, with
its name it predicts how fast. The articles' figures, of GPT-2 and Llama-2-7B, are checked where one of the
two is asked for.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from msgspec.structs import asdict as fields

from experiments.shared.cli import integers, plain_parser, run
from experiments.shared.reproduced import sizing_checks
from profiling.forecast.constants import fitted
from profiling.forecast.devices import Device, find
from profiling.forecast.engines import VLLM, Mode
from profiling.forecast.job import job_of, prompt_flops
from profiling.forecast.step import Setup, predict
from profiling.results.record import Latency, Model, ModelShape, RequestMix, Sizing, SizingRecord, replaced
from profiling.results.record.page import Block, Bullets
from profiling.sizing.capacity import BLOCK_TOKENS, GIB, MAX_GIB, DeviceMemory, doubling, plan, read_requests
from profiling.sizing.model_shape import (
    KV_FORMATS,
    KvFormat,
    kv_bytes,
    kv_token_bytes,
    longest_context,
)
from profiling.sizing.read_shape import read_shape
from variants.errors import UserError
from variants.hf_config import MAX, MAX_LAYERS

EXAMPLES = (
    "",
    "--model path/to/config.json --context 8192,131072 --batch 1,64",
    "--model llama-2-7b --kv-dtype fp8 --device-gib 80 --utilisation 0.9 --context 4096",
    "--model llama-3-8b --device-gib 80 --lengths requests.csv --shared-prefix 512 --device H100",
    "--layers 32 --heads 32 --kv-heads 8 --head-dim 128 --weights-gib 15 --kv-dtype bfloat16",
)

ARTICLES_MODELS = ("gpt2", "llama-2-7b")
MOST = 10**9  # tokens, and requests: far beyond any, and near enough that every figure can be drawn


def parser() -> argparse.ArgumentParser:
    parser = plain_parser("experiments.sizing", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add(
        "--model",
        default="llama-2-7b",
        help="a name, a config.json, a folder with one, or hub:ORG/NAME",
    )
    for flag, what in (("layers", "layers"), ("heads", "query heads"), ("kv-heads", "key and value heads")):
        add(f"--{flag}", type=int, metavar="N", help=f"instead of --model: number of {what}")
    add("--head-dim", type=int, metavar="N", help="instead of --model: width of one head")
    add("--weights-gib", type=float, metavar="GIB", help="size of the weights, where the config does not say")
    add(
        "--kv-dtype",
        choices=["auto", *KV_FORMATS],
        default="auto",
        help="of the cache (auto: as the weights)",
    )
    add(
        "--context",
        type=integers,
        default=(1024, 4096, 32768, 131072),
        metavar="N,N",
        help="tokens a request",
    )
    add("--batch", type=integers, default=(1, 32), metavar="N,N", help="concurrent requests")
    add("--device-gib", type=float, metavar="GIB", help="device memory: plan what fits into it")
    add("--utilisation", type=float, default=0.9, metavar="SHARE", help="usable share of it")
    add(
        "--other-gib",
        type=float,
        default=0.0,
        metavar="GIB",
        help="activations, graphs and the like",
    )
    add("--lengths", type=Path, metavar="FILE", help="plan this mix too: a request's tokens (or two) a line")
    add("--shared-prefix", type=int, default=0, metavar="N", help="tokens that all requests begin with")
    add("--device", metavar="NAME", help="predict the time to a token there: H100, A100, RTX 4090, ...")
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def shape_for(arguments: argparse.Namespace) -> ModelShape:
    """The model of --model, or the shape that the flags give."""
    sizes = (arguments.layers, arguments.heads, arguments.kv_heads, arguments.head_dim)
    if all(size is None for size in sizes):
        shape = read_shape(arguments.model)
    else:
        most = (MAX_LAYERS, MAX, MAX, MAX)
        if any(size is None or not 1 <= size <= limit for size, limit in zip(sizes, most, strict=True)):
            raise UserError(
                f"a shape by flags needs --layers, 1 to {MAX_LAYERS:,}, and --heads, --kv-heads and "
                f"--head-dim, each 1 to {MAX:,}"
            )
        if arguments.heads % arguments.kv_heads:
            raise UserError(
                f"{arguments.heads} query heads cannot share {arguments.kv_heads} KV heads evenly"
            )
        shape = ModelShape("MODEL", *sizes[1:], (None,) * sizes[0], None, None, None, None)
    if arguments.weights_gib is not None:
        if not 0 < arguments.weights_gib <= MAX_GIB:
            raise UserError(
                f"--weights-gib must be positive and at most {MAX_GIB:,.0f}, got {arguments.weights_gib:g}"
            )
        shape = replaced(shape, weights_bytes=int(arguments.weights_gib * GIB))
    return shape


def kv_name_for(wanted: str, shape: ModelShape) -> str:
    """The name of the cache's format; `auto` is that of the weights, as in vLLM."""
    if wanted != "auto":
        return wanted
    if shape.dtype not in KV_FORMATS:
        known = ", ".join(KV_FORMATS)
        raise UserError(
            f"{shape.name} does not say its dtype; give the cache's by --kv-dtype, one of {known}"
        )
    return str(shape.dtype)


def overtakes(shape: ModelShape, kv: KvFormat, batch: int) -> int | None:
    """First context at which the cache of `batch` requests exceeds the weights; None: never, or unknown."""
    if shape.weights_bytes is None:
        return None
    fits = longest_context(shape, shape.weights_bytes // batch, kv)
    return None if fits is None else fits + 1


def vllm_command(sizing: Sizing, utilisation: float) -> str | None:
    """The plan in vLLM's flags: for the mix, or the largest context that the model allows and of which a
    request fits. None: nothing fits, or vLLM keeps no such cache."""
    shape, kv_name = sizing.model, sizing.kv_dtype
    limit = shape.max_context or math.inf
    plans = {n: fits for n, fits in sizing.plan.items() if fits.requests and n <= limit}
    if sizing.mix and sizing.mix.plan.requests and sizing.mix.longest <= limit:
        plans = {sizing.mix.longest: sizing.mix.plan}
    stored = _vllm_dtype(kv_name, shape.dtype)
    if not plans or stored is None:
        return None
    shared = " --enable-prefix-caching" if sizing.shared_prefix >= BLOCK_TOKENS else ""
    context = max(plans)
    return (
        f"vllm serve {shlex.quote(shape.name)} --max-model-len {context} "
        f"--max-num-seqs {plans[context].requests} --gpu-memory-utilization {utilisation:g} {stored}{shared}"
    )


def _vllm_dtype(kv_name: str, weights: str | None) -> str | None:
    """The flag that makes vLLM store the cache so. Its cache is of the model's own type (auto) or narrower:
    float32 is no value of --kv-cache-dtype in any version, and int8_per_token_head only of recent ones."""
    if kv_name in ("fp8", "int8"):
        return f"--kv-cache-dtype {'int8_per_token_head' if kv_name == 'int8' else kv_name}"
    return f"--dtype {kv_name}" if weights in (None, kv_name) else None


def planned(arguments: argparse.Namespace, sizing: Sizing) -> Sizing:
    """The same with what fits (--device-gib), of a mix too (--lengths), and how fast it is (--device)."""
    shape, kv = sizing.model, KV_FORMATS[sizing.kv_dtype]
    prefix = arguments.shared_prefix
    if arguments.device_gib is None:
        if arguments.lengths or prefix:
            raise UserError("--lengths and --shared-prefix say what to plan: give --device-gib as well")
    else:
        memory = DeviceMemory(arguments.device_gib, arguments.utilisation, arguments.other_gib)
        plans = {n: plan(shape, kv, [n], memory, prefix) for n in sizing.cache_bytes}
        sizing = replaced(sizing, plan=plans, shared_prefix=prefix)
        if arguments.lengths:
            lengths = list(map(sum, read_requests(arguments.lengths)))
            fits = plan(shape, kv, lengths, memory, prefix)
            mean = sum(lengths) / len(lengths)
            sizing = replaced(sizing, mix=RequestMix(len(lengths), mean, max(lengths), fits))
        sizing = replaced(sizing, vllm=vllm_command(sizing, arguments.utilisation))
    if arguments.device is not None:
        sizing = replaced(sizing, latency=latencies(sizing, find(arguments.device)))
    return sizing


def latencies(sizing: Sizing, device: Device) -> dict[int, Latency]:
    """By context, up to the model's limit: a token's time as graphs of a serving engine are predicted to take
    it, and what arithmetic and bytes alone take."""
    shape, kv = sizing.model, KV_FORMATS[sizing.kv_dtype]
    times = {}
    for n in sizing.cache_bytes:
        if shape.max_context is not None and n > shape.max_context:
            continue
        job = replace(job_of(shape, shape.dtype or "unknown", n), cache_bytes=kv_bytes(shape, n, kv))
        step = predict(job, Setup(device, VLLM, Mode.GRAPH), fitted())
        requests = sizing.plan[n].requests if n in sizing.plan else 0
        loaded = (job.weight_bytes + requests * job.cache_bytes) / device.bandwidth_gb_per_s / 1e6
        first = None if device.tflops is None else prompt_flops(shape, n) / device.tflops / 1e9
        times[n] = Latency((step.low_ms, step.expected_ms, step.high_ms), loaded if requests else None, first)
    return times


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    contexts, batches = sorted(set(arguments.context)), sorted(set(arguments.batch))
    if min(contexts[0], batches[0]) < 1 or max(contexts[-1], batches[-1]) > MOST:
        raise UserError(f"--context and --batch need numbers from 1 to {MOST:,}")
    shape = shape_for(arguments)
    kv_name = kv_name_for(arguments.kv_dtype, shape)
    kv = KV_FORMATS[kv_name]
    overtaken = {batch: overtakes(shape, kv, batch) for batch in batches}
    sizing = Sizing(
        model=shape,
        kv_dtype=kv_name,
        kv_bytes_per_token=kv_token_bytes(shape, kv),
        cache_bytes={n: {b: kv_bytes(shape, n, kv, b) for b in batches} for n in contexts},
        overtakes_weights_at_tokens=overtaken,
        doubling=doubling(shape, kv, contexts[0]),
        plan={},
        vllm=None,
    )
    sizing = planned(arguments, sizing)

    from experiments.shared import claims
    from experiments.shared import sizing_page as parts
    from experiments.shared.outcome import page_of, publish
    from profiling.results.folder import RunFolder

    checks = sizing_checks() if shape.name in ARTICLES_MODELS else []
    folder = RunFolder.create(arguments.out, SizingRecord, "any")
    folder.update(model=Model(shape.name), sizing=sizing, claims=claims.rows(checks))
    outgrown = list(parts.outgrown(overtaken))
    verdict = (
        claims.verdict("the published sizes follow from the formula", checks) if checks else outgrown[-1]
    )
    measured: list[Block] = [
        *parts.sizes(shape, kv, contexts, batches),
        Bullets([*parts.headline(shape, kv_name, kv), *outgrown]),
    ]
    memory = (arguments.device_gib, arguments.utilisation, arguments.other_gib)
    further = [parts.plan_section(sizing, *memory)] if sizing.plan else []
    further += [parts.latency_section(sizing, arguments.device)] if sizing.latency else []
    page = page_of(__doc__ or "", folder, verdict, measured, further)
    return publish(arguments, folder, page, **fields(sizing), claims=folder.record.claims, verdict=verdict)


if __name__ == "__main__":
    run(main)
