"""One step at a time, of the code that this interpreter finds: `experiments.duel` starts it for each side.

It is run by its path, so that `variants` and `profiling` are those of the side. Builds and proves what the
JSON object on the command line asks for, says so in a line of JSON, then answers each line with the time of a
step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence

from variants.command import run

PROVEN = 8  # greedy tokens and as many forced ones, by the side's own gate
REST_S = 0.02  # after a step: thread pools spin on for a while, in the other side's time


def prepared(
    variant: str, model: str, precision: str, context: int, threads: int | None, seed: int
) -> tuple[list[int], Callable[[], float]]:
    """(greedy tokens after a random prompt, one step at this context: ms). Raises whatever the side does."""
    import torch

    from profiling.gate import Gate
    from profiling.gate.oracle import random_stream
    from profiling.measure.clock import Clock
    from variants.config import PRESETS
    from variants.decoder import Decoder
    from variants.ladder import ladder
    from variants.model import random_model

    if threads:
        torch.set_num_threads(threads)
    weights = random_model(PRESETS[model], seed, getattr(torch, precision))
    capacity = min(weights.config.n_ctx, context + 128)
    decoder = Decoder.of(ladder(precision)[variant], weights, capacity=capacity)
    decoder.warm_up()
    gate = Gate(weights, precision, capacity=capacity, contexts=(context,), steps=PROVEN, forced=PROVEN)
    proof = gate.check_briefly(decoder)
    if proof.status != "pass":
        raise RuntimeError(f"{variant} is not proven: {proof.reason}")
    decoder.prefill(random_stream(weights.config.vocab_size, 1, context, seed))
    tokens = []
    for _ in range(PROVEN):
        tokens.append(int(decoder.token))
        decoder.advance()
    clock = Clock(weights.device)

    def step_ms() -> float:
        decoder.rewind(context)
        (ms,) = clock.each_ms(decoder.advance, 1)
        return ms

    return tokens, step_ms


def main(argv: Sequence[str] | None = None) -> None:
    (asked,) = sys.argv[1:] if argv is None else argv
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what libraries print is no answer

        def say(**answer: object) -> None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

        try:
            tokens, step_ms = prepared(**json.loads(asked))
            say(tokens=tokens)
            for _ in sys.stdin:
                ms = step_ms()
                time.sleep(REST_S)
                say(ms=ms)
        except Exception as error:
            say(failed=f"{type(error).__name__}: {error}".splitlines()[0])


if __name__ == "__main__":
    run(main)
