"""The checks of the gate. Each one drives a decoder through a use that a silent bug would corrupt.

A check takes a `Trial` and returns the evidence of its parts against the float64 truth. It raises `Mismatch`
for anything that is wrong whatever the rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from profiling.gate.every_slot import NAME as EVERY_SLOT
from profiling.gate.evidence import Evidence, Mismatch, why_other_weights
from profiling.gate.oracle import greedy_agreement
from profiling.gate.stress import LARGE_MEANS
from profiling.gate.trial import FORCED, FREE, Trial
from variants.errors import UserError
from variants.slots.cache import Preallocated

DRAFTS = (2, 4, 8, 16)  # tokens that are proposed and rejected, and then those that come instead
CHUNKS = (1, 2, 3, 7, 8, 13, 130)  # sizes of `extend`: around 8, and longer than a bucket of 128
# Finite, since a masked NaN times 0 is still NaN. Under one of the signs every key outshines all others.
POISONS = (1e4, -1e4)
LONG_RUN, ROUND = 1000, 8  # steps in all, and between two rewinds
Parts = list[Evidence]
Check = Callable[[Trial], Parts]


def weights(trial: Trial) -> Parts:
    """Each weight is stored to half a step of its row or group; what is not quantised, as it is in its type.

    The truth is computed from the weights as they are stored: what is lost before that shows nowhere else.
    """
    trial.needs("weights to look at")
    for name, stored in trial.decoder.model.named_modules():
        root = trial.root.get_submodule(name)
        if stored is not root and (wrong := why_other_weights(root, stored)):
            raise Mismatch(f"{name or 'model'}: {wrong}")
    return []


def greedy(trial: Trial) -> Parts:
    """Greedy tokens equal the reference's over all steps, and so do the logits.

    This one looks at what everybody sees: a cache can be wrong inside while its text is right.
    """
    session, start = trial.session(inside=False), trial.prompt.size(1)
    session.prefill(trial.prompt)
    session.generate(trial.steps)
    text = session.text
    right = trial.truth.answer(text, position=start - 1, slot=0).logits
    same_text(text, start, right, trial.tie)
    return [session.evidence()]


def same_text(text: Tensor, start: int, right: Tensor, tie: float) -> None:
    """Raises Mismatch where the greedy text leaves the reference, see `greedy_agreement`."""
    first, _ = greedy_agreement(text, start, right, tie)
    if first is not None:
        raise Mismatch(f"greedy token {first - start} differs from the reference")


def forced(trial: Trial) -> Parts:
    """Random tokens fed in one by one: nothing is frozen into the step."""
    session = trial.session()
    session.prefill(trial.prompt)
    session.feed(trial.after_prompt(trial.forced))
    return [session.evidence()]


def contexts(trial: Trial) -> Parts:
    """Steps on the truth's keys and values, at every timed context and at both ends of every bucket."""
    parts = []
    for n in trial.contexts:
        session = trial.session()
        session.load(trial.text, n)
        session.generate(FREE if trial.cached else 0)
        session.feed(trial.elsewhere(FORCED if trial.cached else 1))
        parts.append(session.evidence(f"context {n}"))
    return parts


def chunks(trial: Trial) -> Parts:
    """Several tokens at once on a warm cache equal the same tokens one by one."""
    session = trial.session()
    session.prefill(trial.prompt)
    for size in trial.fitting(CHUNKS):
        at = session.text.size(1)
        session.extend(trial.text[:, at : at + size])
    return [session.evidence()]


def second_prompt(trial: Trial) -> Parts:
    """A prompt on a decoder that has held another one equals a fresh decoder, longer or shorter."""
    session = trial.session()
    for prompt in (trial.prompt, trial.other, trial.prompt):
        session.prefill(prompt)
        session.feed(trial.elsewhere(2 if trial.cached else 1))
    return [session.evidence()]


def rewind(trial: Trial) -> Parts:
    """Forgetting the tail and feeding something else equals never having seen the tail."""
    session, warm = trial.session(), trial.warm
    session.load(trial.text, warm)
    session.extend(trial.text[:, warm : warm + 6])
    session.feed(trial.text[:, warm + 6 : warm + 7])
    session.rewind(max(1, trial.prompt.size(1) - 3))
    session.feed(trial.elsewhere(3))
    session.extend(trial.elsewhere(2))
    return [session.evidence()]


def drafts(trial: Trial) -> Parts:
    """Several tokens at once behind a draft that was rejected, whose slots are stale, at every context."""
    parts = []
    for number, n in enumerate(trial.contexts if trial.cached else ()):
        size = min(DRAFTS[number % len(DRAFTS)], trial.decoder.capacity - n - 1, trial.other.size(1))
        session = trial.session()
        session.load(trial.text, n)
        session.extend(trial.elsewhere(size))
        session.rewind(n)
        session.extend(trial.text[:, n : n + size])
        session.feed(trial.text[:, n + size : n + size + 1])
        parts.append(session.evidence(f"a draft at {n}"))
    return parts


def interleaved(trial: Trial) -> Parts:
    """Step, prefill, step: what a replay reuses must not be what a prefill recycles; outputs stay whole."""
    session = trial.session()
    session.prefill(trial.elsewhere(trial.prompt.size(1)))
    first = session.feed(trial.after_prompt(1))
    copy = first.clone()
    session.prefill(trial.prompt)
    session.feed(trial.after_prompt(1))
    session.extend(trial.elsewhere(2))
    session.feed(trial.elsewhere(1))
    if not torch.equal(first, copy):
        raise Mismatch("logits handed out by step() were overwritten by a later call")
    return [session.evidence()]


def unused_slots(trial: Trial) -> Parts:
    """Noise in unused cache slots leaves the output unchanged to the bit."""
    trial.needs("slots to write into")
    decoder, cache = trial.decoder, trial.decoder.cache
    if not isinstance(cache, Preallocated):
        return []

    def run(noise: float) -> Tensor:
        decoder.rewind(trial.prompt.size(1))
        cache.poison(decoder.length, noise)
        output = decoder.step(trial.after_prompt(1))
        return torch.cat([output, decoder.extend(trial.elsewhere(2)).flatten(1)], dim=1)

    decoder.prefill(trial.prompt)
    clean = run(0.0)
    for noise in POISONS:
        if not torch.equal(run(noise), clean):
            raise Mismatch(f"noise of {noise:g} in unused cache slots changes the logits")
    return []


def ragged_rows(trial: Trial) -> Parts:
    """Rows of different lengths are refused, since all rows share one position, and nothing changes."""
    decoder, prompt = trial.decoder, trial.prompt
    decoder.prefill(prompt)
    text = prompt.tolist()
    ragged: Any = [text[0][:-1], *(text[1:] or text)]
    _refused([lambda: decoder.prefill(ragged), lambda: decoder.extend(ragged)], "rows of different lengths")
    if decoder.length != prompt.size(1):
        raise Mismatch("refused rows changed the length")
    return []


def capacity(trial: Trial) -> Parts:
    """The last slot is used; one token more is refused and changes nothing."""
    decoder, last = trial.decoder, trial.text[:, -1:]
    session = trial.session()
    session.load(trial.text, decoder.capacity - 1)
    logits = session.feed(last)
    _refused(
        [lambda: decoder.step(last), lambda: decoder.extend(last), decoder.advance],
        f"token {decoder.capacity + 1} of a decoder of capacity {decoder.capacity}",
    )
    if (decoder.length, decoder.cache.held()) != (decoder.capacity, decoder.capacity):
        raise Mismatch("a refused token changed the length")
    evidence = session.evidence()
    if trial.cached:  # without a cache a step computes the whole text again
        decoder.rewind(decoder.capacity - 1)
        if not torch.equal(decoder.step(last), logits):
            raise Mismatch("a refused token changed what the decoder holds")
    return [evidence]


def _refused(attempts: list[Callable[[], Tensor]], what: str) -> None:
    for attempt in attempts:
        try:
            attempt()
        except UserError:
            continue
        raise Mismatch(f"{what}: accepted, and must be refused")


def batch_rows(trial: Trial) -> Parts:
    """Rows of different text, each equal to a run of its own."""
    session = trial.session()
    session.prefill(trial.prompt)
    session.feed(trial.after_prompt(trial.forced))
    return [session.evidence(stressed="rows")]


def scenes(trial: Trial) -> Parts:
    """Arranged caches: every slot counts, or what random weights and tokens never exercise.

    See `profiling.gate.every_slot`, of the full-size model, and `profiling.gate.stress`.
    """
    trial.needs("load")  # no text leaves such keys behind
    parts = []
    for scene in trial.scenes() if trial.cached else ():
        if scene.name == LARGE_MEANS and trial.decoder.model.dtype == torch.bfloat16:
            continue  # its units are a quarter there: nothing is left to hold a decoder to
        session = trial.session()
        session.load(scene.text, scene.context)
        session.feed(scene.text[:, scene.context :])
        parts.append(session.evidence(scene.name, stressed=scene.stressed))
    return parts


def long_run(trial: Trial) -> Parts:
    """The same few steps after a rewind, LONG_RUN of them in all, give the same logits to the bit."""
    if not trial.cached:
        return []
    decoder, session, n = trial.decoder, trial.session(), trial.prompt.size(1)
    session.load(trial.text, n)
    tokens = trial.after_prompt(ROUND).split(1, dim=1)
    first = [decoder.step(token) for token in tokens]
    for number in range(1, LONG_RUN // ROUND):
        decoder.rewind(n)
        for step, token in enumerate(tokens):
            if not torch.equal(decoder.step(token), first[step]):
                raise Mismatch(f"step {number * ROUND + step} of a long run differs from step {step}")
    decoder.rewind(n)
    session.feed(trial.after_prompt(ROUND))
    return [session.evidence(stressed="rows")]


# in the order in which they are run; the name is what reports print
CHECKS: dict[str, Check] = {
    "weights": weights,
    "greedy": greedy,
    "forced": forced,
    "contexts": contexts,
    EVERY_SLOT: scenes,
    "chunks": chunks,
    "second prompt": second_prompt,
    "rewind": rewind,
    "drafts": drafts,
    "interleaved": interleaved,
    "unused slots": unused_slots,
    "ragged rows": ragged_rows,
    "capacity": capacity,
}
SMALL: dict[str, Check] = {
    "batch rows": batch_rows,
    "numerics": scenes,
    "long run": long_run,
}  # of the small model
BRIEF = ("greedy", "forced", "batch rows", "numerics")  # of a short proof
