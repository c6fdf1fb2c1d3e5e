"""The checks of the gate. Each one drives a decoder through a use that a silent bug would corrupt.

A check takes a `Trial` and returns the errors it saw against the float64 oracle. It raises `Mismatch` for
anything that is wrong whatever the rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from profiling.gate.oracle import Errors, Truth, greedy_agreement, random_stream
from variants.decoder import Decoder
from variants.errors import UserError
from variants.slots.cache import Preallocated

CHUNKS = (1, 2, 3, 7)  # sizes of `extend`, the last longer than any of the others together
LONG_PROMPT = 110  # more than the prompt whose prefill is timed
POISONS = (1e4, -1e4, 1e-2, -1e-2)


class Mismatch(Exception):
    """The variant does not compute the reference function; the message says where."""


@dataclass(frozen=True)
class Trial:
    """A decoder under test, the truth, the tokens to feed, and how many greedy steps to prove."""

    decoder: Decoder
    oracle: Truth
    prompt: Tensor
    other: Tensor
    forced: Tensor
    steps: int
    tie: float  # logits closer than this may swap places

    @staticmethod
    def of(decoder: Decoder, oracle: Truth, steps: int, forced: int, tie: float, seed: int) -> Trial:
        vocabulary, room = decoder.model.config.vocab_size, decoder.capacity
        prompt_length = min(10, room // 4)
        steps, forced = min(steps, room - prompt_length), min(forced, room - prompt_length)

        def stream(n: int, offset: int) -> Tensor:
            return random_stream(vocabulary, decoder.batch, n, seed + offset).to(decoder.token.device)

        prompt, other = stream(prompt_length, 0), stream(min(LONG_PROMPT, room // 2), 1)
        return Trial(decoder, oracle, prompt, other, stream(forced, 2), steps, tie)

    def compare(self, pieces: list[Tensor], text: Tensor) -> Errors:
        """Logits [B,T,V] (several pieces) of the last positions of `text` [B,n] against the truth."""
        logits = torch.cat(pieces, dim=1)
        return Errors.of(logits, self.oracle.logits(text)[:, -logits.size(1) :])


def greedy(trial: Trial) -> Errors:
    """Greedy tokens equal the reference's over all steps, and so do the logits."""
    decoder, text = trial.decoder, [trial.prompt]
    logits = [decoder.prefill(trial.prompt)[:, None].clone()]
    for _ in range(trial.steps):
        text.append(decoder.token.clone())
        logits.append(decoder.advance()[:, None].clone())
    whole = torch.cat(text, dim=1)
    truth = trial.oracle.logits(whole)
    first, _ = greedy_agreement(whole, trial.prompt.size(1), truth, trial.tie)
    if first is not None:
        raise Mismatch(f"greedy token {first - trial.prompt.size(1)} differs from the reference")
    return trial.compare(logits, whole)


def forced(trial: Trial) -> Errors:
    """Random tokens fed in one by one: nothing is frozen into the step."""
    decoder = trial.decoder
    logits = [decoder.prefill(trial.prompt)[:, None].clone()]
    for token in trial.forced.split(1, dim=1):
        decoder.token.fill_(0)  # what a replay reads must be what is fed, not what was left there
        logits.append(decoder.step(token)[:, None])
    return trial.compare(logits, torch.cat([trial.prompt, trial.forced], dim=1))


def chunks(trial: Trial) -> Errors:
    """Several tokens at once on a warm cache equal the same tokens one by one."""
    decoder, at, fed = trial.decoder, 0, trial.forced[:, : sum(CHUNKS)]
    logits = [decoder.prefill(trial.prompt)[:, None].clone()]
    for size in CHUNKS:
        logits.append(decoder.extend(fed[:, at : at + size]))
        at += size
    return trial.compare(logits, torch.cat([trial.prompt, fed], dim=1))


def second_prompt(trial: Trial) -> Errors:
    """A short prompt on a decoder that has held a long one equals a fresh decoder."""
    decoder = trial.decoder
    long = trial.compare([decoder.prefill(trial.other)[:, None].clone()], trial.other)
    for token in trial.forced[:, :5].split(1, dim=1):
        decoder.step(token)
    logits = [decoder.prefill(trial.prompt)[:, None].clone()]
    logits += [decoder.step(token)[:, None] for token in trial.forced[:, 5:9].split(1, dim=1)]
    return long.joined(trial.compare(logits, torch.cat([trial.prompt, trial.forced[:, 5:9]], dim=1)))


def rewind(trial: Trial) -> Errors:
    """Forgetting the tail and feeding something else equals never having seen the tail."""
    decoder, n = trial.decoder, trial.prompt.size(1) - 3
    decoder.prefill(trial.prompt)
    decoder.extend(trial.forced[:, :6])
    decoder.step(trial.forced[:, 6:7])
    decoder.rewind(n)
    fed = trial.forced[:, 7:12]
    logits = [decoder.step(token)[:, None] for token in fed[:, :3].split(1, dim=1)]
    logits.append(decoder.extend(fed[:, 3:]))
    return trial.compare(logits, torch.cat([trial.prompt[:, :n], fed], dim=1))


def interleaved(trial: Trial) -> Errors:
    """Step, prefill, step: what a replay reuses must not be what a prefill recycles; outputs stay whole."""
    decoder = trial.decoder
    decoder.prefill(trial.other)
    first = decoder.step(trial.forced[:, :1])
    copy = first.clone()
    decoder.prefill(trial.prompt)
    logits = [decoder.step(trial.forced[:, :1])[:, None]]
    logits.append(decoder.extend(trial.forced[:, 1:3]))
    logits.append(decoder.step(trial.forced[:, 3:4])[:, None])
    if not torch.equal(first, copy):
        raise Mismatch("logits handed out by step() were overwritten by a later call")
    return trial.compare(logits, torch.cat([trial.prompt, trial.forced[:, :4]], dim=1))


def poison(trial: Trial) -> Errors | None:
    """Noise in unused cache slots leaves the output unchanged to the bit."""
    decoder, cache = trial.decoder, trial.decoder.cache
    if not isinstance(cache, Preallocated):
        return None

    def run(noise: float) -> Tensor:
        decoder.prefill(trial.prompt)
        cache.poison(decoder.length, noise)
        output = decoder.step(trial.forced[:, :1])
        return torch.cat([output, decoder.extend(trial.forced[:, 1:3]).flatten(1)], dim=1)

    clean = run(0.0)
    for noise in POISONS:
        if not torch.equal(run(noise), clean):
            raise Mismatch(f"noise of {noise:g} in unused cache slots changes the logits")
    return None


def contents(trial: Trial) -> Errors | None:
    """Every token's keys and values are in the cache, in order."""
    decoder = trial.decoder
    if not decoder.variant.cache.keeps:
        return None
    fed = trial.forced[:, :4]
    decoder.prefill(trial.prompt)
    decoder.extend(fed[:, :2])
    for token in fed[:, 2:].split(1, dim=1):
        decoder.step(token)
    text = torch.cat([trial.prompt, fed], dim=1)
    layers = range(decoder.model.config.n_layer)
    ours = [torch.stack(decoder.cache.contents(layer, text.size(1))) for layer in layers]
    truth = [torch.stack(pair) for pair in trial.oracle.kv(text)]
    return Errors.of(torch.stack(ours), torch.stack(truth))


def ragged_rows(trial: Trial) -> None:
    """Rows of different lengths are refused, since all rows share one position, and nothing changes."""
    decoder = trial.decoder
    decoder.prefill(trial.prompt)
    text = trial.prompt.tolist()
    ragged: Any = [text[0][:-1], *(text[1:] or text)]
    for attempt in (decoder.prefill, decoder.extend):
        try:
            attempt(ragged)
        except UserError:
            continue
        raise Mismatch("rows of different lengths were accepted: they cannot share positions")
    if decoder.length != trial.prompt.size(1):
        raise Mismatch("refused rows changed the length")


def capacity(trial: Trial) -> Errors:
    """Every bucket works up to its last slot; one token more is refused and changes nothing."""
    decoder, seed = trial.decoder, 3
    text = random_stream(decoder.model.config.vocab_size, decoder.batch, decoder.capacity, seed)
    text = text.to(decoder.token.device)
    # a decoder without a cache keeps nothing: its step recomputes the whole text
    pairs = [] if not decoder.variant.cache.keeps else trial.oracle.kv(text, last=1)
    decoder.load(text[:, :-1], [(k[:, :, :-1], v[:, :, :-1]) for k, v in pairs])
    logits = decoder.step(text[:, -1:])
    refusals: list[Callable[[], Tensor]] = [
        lambda: decoder.step(text[:, :1]),
        lambda: decoder.extend(text[:, :1]),
        decoder.advance,
    ]
    for attempt in refusals:
        try:
            attempt()
        except UserError:
            continue
        raise Mismatch(
            f"token {decoder.capacity + 1} was accepted by a decoder of capacity {decoder.capacity}"
        )
    if decoder.length != decoder.capacity:
        raise Mismatch("a refused token changed the length")
    decoder.rewind(decoder.capacity - 1)
    if not torch.equal(decoder.step(text[:, -1:]), logits):
        raise Mismatch("a refused token changed what the decoder holds")
    return Errors.of(logits[:, None], trial.oracle.logits(text, last=1))


# in the order in which they are run; the name is what reports print
CHECKS: dict[str, Callable[[Trial], Errors | None]] = {
    "greedy": greedy,
    "forced": forced,
    "chunks": chunks,
    "second prompt": second_prompt,
    "rewind": rewind,
    "interleaved": interleaved,
    "poison": poison,
    "cache contents": contents,
    "ragged rows": ragged_rows,
    "capacity": capacity,
}
