"""Which phase of the one launch takes how long? From the device's clock, which every program stamps.

    python -m profiling.measure.phases --device cuda --model gpt2 --precision float32 --context 500

Prints one JSON object. A phase is what its programs compute and the barrier behind it. The clock of some
devices moves in steps of a microsecond: sums over layers and steps are what counts. On a CPU the kernel runs
in Triton's interpreter (TRITON_INTERPRET=1), whose clock counts stamps: that shows that the reader works.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from variants.backends.triton_step.steps import PersistentStep
from variants.command import Parser, run
from variants.config import PRESETS
from variants.model import random_model
from variants.slots.static_cache import StaticCache

LAYER_PHASES = ("qkv", "attend", "out", "up", "down")
WARM_UP = 3  # steps: the first ones load the code and find a cold cache


@dataclass(frozen=True)
class Phase:
    """Microseconds of a step, over all layers. `work_us`: computing, mean over the programs; `slowest_us`: of
    the program that took longest, each time; `barrier_us`: what the last to arrive still waits."""

    phase: str
    us: float
    share: float
    work_us: float
    slowest_us: float
    barrier_us: float


def phases(stamps: NDArray[np.int64]) -> list[Phase]:
    """The phases of a step, the head last, from stamps [steps, programs, 10 * layers + 2] in ns."""
    steps, programs, _ = stamps.shape
    # [steps, programs, layers, phases, (arrival, behind the barrier)]
    inside = stamps[:, :, 1:-1].reshape(steps, programs, -1, len(LAYER_PHASES), 2)
    arrival, behind = inside[..., 0], inside[..., 1]
    start = np.concatenate([stamps[:, :, :1], behind.reshape(steps, programs, -1)[:, :, :-1]], 2)
    work, barrier = arrival - start.reshape(arrival.shape), behind - arrival
    whole_us = float((stamps[:, :, -1] - stamps[:, :, 0]).mean()) / 1e3

    def us(ns: NDArray[np.float64]) -> list[float]:
        """Of all layers of a step, by phase, from ns [steps, layers, phases]."""
        return [float(value) for value in ns.sum(1).mean(0) / 1e3]

    columns = (work.mean(1) + barrier.mean(1), work.mean(1), work.max(1), barrier.min(1))
    rows = list(zip(LAYER_PHASES, *map(us, columns), strict=True))
    head = (stamps[:, :, -1] - behind[:, :, -1, -1])[:, :, None, None]  # one phase of one layer
    (mean,), (slowest,) = us(head.mean(1)), us(head.max(1))
    rows.append(("head", mean, mean, slowest, 0.0))
    return [Phase(name, taken, taken / whole_us, *rest) for name, taken, *rest in rows]


def measure(backend: PersistentStep, token: torch.Tensor, context: int, steps: int) -> list[Phase]:
    """The phases of `steps` steps at this context, after a few that do not count."""
    assert backend.stamps is not None
    stamped = []
    with torch.inference_mode():
        for _ in range(WARM_UP + steps):
            backend.cache.rewind(context)
            backend.step(token)
            stamped.append(backend.stamps.cpu().numpy().copy())
    return phases(np.stack(stamped[WARM_UP:]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser("python -m profiling.measure.phases", (__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--device", default="cuda", help="where to run")
    add("--model", default="gpt2", choices=PRESETS, help="its shape; weights are random")
    add("--precision", default="float32", choices=("float32", "bfloat16"), help="of the weights")
    add("--context", type=int, default=500, help="tokens in the cache")
    add("--steps", type=int, default=50, help="steps that count")
    arguments = parser.parse_args(argv)
    config = PRESETS[arguments.model]
    model = random_model(config, dtype=getattr(torch, arguments.precision), device=arguments.device)
    backend = PersistentStep(model, StaticCache(config, 1, config.n_ctx, model.like), stamped=True)
    token = torch.zeros(1, 1, dtype=torch.int64, device=arguments.device)
    measured = measure(backend, token, arguments.context, arguments.steps)
    backend.verify()
    rows = [asdict(phase) for phase in measured]
    print(json.dumps({"precision": arguments.precision, "context": arguments.context, "phases": rows}))


if __name__ == "__main__":
    run(main)
