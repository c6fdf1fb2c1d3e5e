"""Question: how large does the KV cache get, and how many requests fit beside the weights?

Claim (articles 1-4): the cache is 2 * layers * kv_heads * head_dim * tokens * bytes * batch; it outgrows the
weights, shrinks by n_heads / kv_heads, and doubles with the context while prefill attention quadruples.

Arithmetic only. The model is a name, a Hugging Face config.json (or its folder), or a shape in flags; one
whose cache is of a kind that is not known here is refused. The articles' figures, of GPT-2 and Llama-2-7B,
are checked where one of the two is asked for.
"""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import asdict as fields

from experiments.shared.cli import integers, plain_parser, run
from experiments.shared.reproduced import sizing_checks
from profiling.results.record import FittingPlan, Model, ModelShape, Sizing, SizingRecord, replaced
from profiling.results.record.page import Block, Bullets
from profiling.sizing.capacity import GIB, doubling, plan
from profiling.sizing.model_shape import (
    KV_FORMATS,
    KvFormat,
    kv_bytes,
    kv_token_bytes,
    longest_context,
)
from profiling.sizing.read_shape import read_shape
from variants.errors import UserError

EXAMPLES = (
    "",
    "--model path/to/config.json --context 8192,131072 --batch 1,64",
    "--model llama-2-7b --kv-dtype fp8 --device-gib 80 --utilisation 0.9 --context 4096",
    "--layers 32 --heads 32 --kv-heads 8 --head-dim 128 --weights-gib 15 --kv-dtype bfloat16",
)

ARTICLES_MODELS = ("gpt2", "llama-2-7b")


def parser() -> argparse.ArgumentParser:
    parser = plain_parser("experiments.sizing", __doc__ or "", EXAMPLES)
    add = parser.add_argument
    add(
        "--model",
        default="llama-2-7b",
        help="a name, a config.json, or a folder with one",
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
    add("--out", type=Path, default=Path("runs"), help="where run folders go")
    return parser


def shape_for(arguments: argparse.Namespace) -> ModelShape:
    """The model of --model, or the shape that the flags give."""
    sizes = (arguments.layers, arguments.heads, arguments.kv_heads, arguments.head_dim)
    if all(size is None for size in sizes):
        shape = read_shape(arguments.model)
    else:
        if any(size is None or size < 1 for size in sizes):
            raise UserError(
                "a shape by flags needs --layers, --heads, --kv-heads and --head-dim, each at least 1"
            )
        if arguments.heads % arguments.kv_heads:
            raise UserError(
                f"{arguments.heads} query heads cannot share {arguments.kv_heads} KV heads evenly"
            )
        shape = ModelShape("MODEL", *sizes[1:], (None,) * sizes[0], None, None, None, None)
    if arguments.weights_gib is not None:
        if not 0 < arguments.weights_gib * GIB < math.inf:
            raise UserError(f"--weights-gib must be positive, got {arguments.weights_gib:g}")
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


def vllm_command(shape: ModelShape, kv_name: str, context: int, requests: int, utilisation: float) -> str:
    """The plan in vLLM's flags; int8 needs a version that has int8_per_token_head."""
    dtype = "auto" if kv_name == shape.dtype else {"int8": "int8_per_token_head"}.get(kv_name, kv_name)
    return (
        f"vllm serve {shlex.quote(shape.name)} --max-model-len {context} --max-num-seqs {requests} "
        f"--gpu-memory-utilization {utilisation:g} --kv-cache-dtype {dtype}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    contexts, batches = sorted(set(arguments.context)), sorted(set(arguments.batch))
    if contexts[0] < 1 or batches[0] < 1:
        raise UserError("--context and --batch need numbers of at least 1")
    shape = shape_for(arguments)
    kv_name = kv_name_for(arguments.kv_dtype, shape)
    kv = KV_FORMATS[kv_name]
    memory = (arguments.device_gib, arguments.utilisation, arguments.other_gib)
    plans = {} if arguments.device_gib is None else {n: plan(shape, kv, n, *memory) for n in contexts}
    command = _command(shape, kv_name, plans, arguments.utilisation)

    from experiments.shared import claims
    from experiments.shared import sizing_page as parts
    from experiments.shared.outcome import page_of, publish
    from profiling.results.folder import RunFolder

    checks = sizing_checks() if shape.name in ARTICLES_MODELS else []
    overtaken = {batch: overtakes(shape, kv, batch) for batch in batches}
    sizing = Sizing(
        model=shape,
        kv_dtype=kv_name,
        kv_bytes_per_token=kv_token_bytes(shape, kv),
        cache_bytes={n: {b: kv_bytes(shape, n, kv, b) for b in batches} for n in contexts},
        overtakes_weights_at_tokens=overtaken,
        doubling=doubling(shape, kv, contexts[0]),
        plan=plans,
        vllm=command,
    )
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
    plan_section = [parts.plan_section(shape, plans, memory, command)] if plans else []
    page = page_of(__doc__ or "", folder, verdict, measured, plan_section)
    return publish(arguments, folder, page, **fields(sizing), claims=folder.record.claims, verdict=verdict)


def _command(
    shape: ModelShape, kv_name: str, plans: dict[int, FittingPlan], utilisation: float
) -> str | None:
    """The flags for the largest context that the model allows and of which a request fits."""
    limit = shape.max_context or math.inf
    fitting = [n for n, fits in plans.items() if fits.requests and n <= limit]
    if not fitting:
        return None
    return vllm_command(shape, kv_name, max(fitting), plans[max(fitting)].requests, utilisation)


if __name__ == "__main__":
    run(main)
