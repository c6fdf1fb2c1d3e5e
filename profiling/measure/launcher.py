"""What does a launch through Triton's launcher cost the host, in launches of PyTorch on the same machine?

    python -m profiling.measure.launcher --arch 90

Needs no GPU: `onelaunch` is compiled for one that is not here and launched up to the driver's call, which is
left out. The launches of PyTorch are those of an eager step of a narrow model on the CPU, which hardly
computes. Neither side holds a call into the driver, 2 to 3 us each. Prints one JSON object. TRITON_INTERPRET
must not be set.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median

import torch
import triton

from profiling.forecast.engines import OURS, Count
from profiling.measure.cases import narrow_config
from profiling.measure.clock import Clock
from variants.backends.triton_step import aot
from variants.backends.triton_step.steps import PersistentStep
from variants.command import Parser, run
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import random_model
from variants.slots.static_cache import StaticCache

CONTEXT = 10  # tokens in both caches when a round starts


def measure(arch: str, rounds: int, steps: int) -> dict[str, float]:
    """Median us of a step of `onelaunch` and of an eager step in alternate rounds of `steps`; the launches of
    the latter; and how many of them the one launch takes as long as."""
    config, clock, token = narrow_config(PRESETS["gpt2"]), Clock(torch.device("cpu")), torch.ones(1, 1).long()
    model, chip = random_model(config), aot.CHIPS[arch]
    eager = Decoder.of(ladder()["cat"], model)
    cache = StaticCache(config, 1, config.n_ctx, model.like)
    one = PersistentStep(model, cache, resident=chip.multiprocessors)
    one_ms, eager_ms = list[float](), list[float]()
    with torch.inference_mode(), aot.launching(chip) as launched:
        one.step(token)  # compiles
        for _ in range(rounds):
            one_ms += clock.each_ms(lambda: one.step(token), steps)
            eager.prefill(token.expand(1, CONTEXT))
            eager_ms += clock.each_ms(eager.advance, steps)
    assert len(launched) == 1 + rounds * steps and isinstance(OURS.host, Count)
    one_us, eager_us, launches = median(one_ms) * 1e3, median(eager_ms) * 1e3, OURS.host.of(config.n_layer)
    ratio = one_us / (eager_us / launches)
    return {"one_us": one_us, "eager_us": eager_us, "eager_launches": launches, "launches": ratio}


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser("python -m profiling.measure.launcher", (__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--arch", default="90", choices=aot.CHIPS, help="to compile for")
    add("--rounds", type=int, default=30, help="of steps of either kind in turn")
    add("--steps", type=int, default=10, help="of a round")
    arguments = parser.parse_args(argv)
    if triton.knobs.runtime.interpret:
        raise UserError("TRITON_INTERPRET is set: kernels would be interpreted, not launched")
    torch.set_num_threads(1)
    measured = measure(arguments.arch, arguments.rounds, arguments.steps)
    print(json.dumps({"triton": triton.__version__, **measured}))


if __name__ == "__main__":
    run(main)
