"""How long are whole generations and prefills? Shapes of measurement beside the single step.

They run over the cases of a `Runner`, hence over variants that are proven, and write into its record.
Every token is timed with a sync: the sum of the first n is the latency of n tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from profiling.measure.cases import Case
from profiling.measure.runner import Runner
from profiling.results.metrics import AGAIN


def time_generations(runner: Runner, prompt: int, new: int, rounds: int) -> None:
    """`new` tokens after `prompt` ones: a prefill, which gives the first, and a step for each further one.

    Appends {round, variant, prompt, tokens_ms[new]} to the record's `generations`.
    """
    loops = runner.record.setdefault("generations", [])
    for number, case in _visits(runner, f"generate {new} tokens", rounds):
        first = runner.clock.each_ms(_prefill(case, prompt), 1)
        rest = runner.clock.each_ms(case.decoder.advance, new - 1)
        entry = {"round": number, "variant": case.name, "prompt": prompt, "tokens_ms": [*first, *rest]}
        loops.append(entry)
        runner.run.save()


def time_prefills(runner: Runner, lengths: Sequence[int], rounds: int) -> None:
    """Time to first token over prompt length. Appends {round, variant, prompt, ms} to `prefills`.

    One untimed prefill of each length goes before: the first of a shape also chooses its kernels.
    """
    times = runner.record.setdefault("prefills", [])
    for number, case in _visits(runner, "prefill", rounds):
        for n in lengths:
            prefill = _prefill(case, n)
            if number == 0:
                prefill()
            (ms,) = runner.clock.each_ms(prefill, 1)
            times.append({"round": number, "variant": case.name, "prompt": n, "ms": ms})
        runner.run.save()


def _prefill(case: Case, n: int) -> Callable[[], object]:
    return lambda: case.decoder.prefill(case.inputs.tokens[:, :n])


def _visits(runner: Runner, what: str, rounds: int) -> Iterator[tuple[int, Case]]:
    """Every case once a round, in shuffled order; the baseline's second name is not needed here."""
    cases = [case for case in runner.cases if case.name != AGAIN]
    for number in range(rounds):
        order = random.Random(f"{runner.workload.seed} {number}").sample(cases, len(cases))
        for done, case in enumerate(order):
            runner.progress(what, number * len(order) + done, rounds * len(order))
            yield number, case
    runner.progress(what, rounds * len(cases), rounds * len(cases))
