"""Which bandwidth does each Triton kernel reach? Its time in a profile, and the bytes of its cost function.

    python -m profiling.measure.kernels --device cuda --model gpt2 --precision float32 --context 500

Prints one JSON object. On a CPU the kernels run in Triton's interpreter (TRITON_INTERPRET=1): that shows that
the measurement works, and its times mean nothing. Layers rotate as in a step, so no weights stay in a cache.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from variants.backends.triton_step import cost
from variants.backends.triton_step.steps import PersistentStep, TritonStep
from variants.command import Parser, run
from variants.config import PRESETS
from variants.model import random_model
from variants.slots.static_cache import StaticCache

# operator -> its kernel, and the phases of `cost.step` that it runs
LAUNCHES = {
    "qkv": ("qkv_kernel", ("qkv_first", "qkv")),
    "attend": ("attend_kernel", ("attend",)),
    "residual": ("residual_kernel", ("out", "down")),
    "up": ("up_kernel", ("up",)),
    "head": ("head_kernel", ("head",)),
    "one_step": ("one_step", ("qkv_first", "qkv", "attend", "out", "up", "down", "head")),
}


def measure(
    backend: TritonStep | PersistentStep, token: torch.Tensor, context: int, steps: int
) -> list[dict[str, str | float | None]]:
    """Per kernel of a backend: launches, bytes and microseconds per step, GB/s, after an unprofiled step.

    Raises RuntimeError where the profile holds none of them.
    """
    on_cuda = token.is_cuda
    activities = [ProfilerActivity.CUDA] if on_cuda else []
    with torch.inference_mode():
        backend.step(token)
        with profile(activities=[ProfilerActivity.CPU, *activities]) as profiled:
            for _ in range(steps):
                backend.cache.rewind(context)
                backend.step(token)
            if on_cuda:
                torch.cuda.synchronize()
    seen = {event.key: event for event in profiled.key_averages()}
    costs = cost.step(backend.geometry, context)
    rows = []
    for operator, (kernel, phases) in LAUNCHES.items():
        event = seen.get(kernel if on_cuda else f"triton_step::{operator}")
        if event is None:
            continue
        moved = sum(costs[p][0] * (costs[p][1].read_bytes + costs[p][1].written_bytes) for p in phases)
        us = (event.device_time_total if on_cuda else event.cpu_time_total) / steps
        rows.append(
            {
                "kernel": operator,
                "launches": event.count / steps,
                "bytes": moved,
                "step_us": us,
                "gb_per_s": moved / us / 1e3 if us else None,
            }
        )
    if not rows:
        raise RuntimeError(f"the profile holds no kernel of {type(backend).__name__}")
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser("python -m profiling.measure.kernels", (__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--device", default="cuda", help="where to run")
    add("--model", default="gpt2", choices=PRESETS, help="its shape; weights are random")
    add("--precision", default="float32", choices=("float32", "bfloat16"), help="of the weights")
    add("--context", type=int, default=500, help="tokens in the cache")
    add("--steps", type=int, default=10, help="profiled steps")
    arguments = parser.parse_args(argv)
    config = PRESETS[arguments.model]
    model = random_model(config, dtype=getattr(torch, arguments.precision), device=arguments.device)
    cache = StaticCache(config, 1, config.n_ctx, model.like)
    cache.length.fill_(arguments.context)
    token = torch.zeros(1, 1, dtype=torch.int64, device=arguments.device)
    one = PersistentStep(model, cache)
    rows = [
        row
        for backend in (TritonStep(model, cache), one)
        for row in measure(backend, token, arguments.context, arguments.steps)
    ]
    one.verify()
    print(json.dumps({"precision": arguments.precision, "context": arguments.context, "kernels": rows}))


if __name__ == "__main__":
    run(main)
