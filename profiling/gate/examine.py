"""What one fault does: the text of the broken decoder in a use that shows it, and every check of the gate."""

from __future__ import annotations

from typing import Any

from profiling.gate import CHECKS, Gate
from profiling.gate.faults import Fault
from profiling.gate.oracle import random_stream
from profiling.results.record import Finding
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import GPT


def capacity(model: GPT) -> int:
    """Enough for every check; a full context of a large model would only cost time."""
    return min(model.config.n_ctx, 64)


def examine(fault: Fault, model: GPT, precision: str, gate: Gate, seed: int) -> Finding:
    """Text of the right and the broken decoder, and every check of the gate on fresh broken ones."""

    def build(broken: bool) -> Decoder:
        decoder = Decoder.of(
            ladder(precision)[fault.variant], model, batch=fault.batch, capacity=capacity(model)
        )
        if broken:
            fault.inject(decoder)
        return decoder

    right, _ = text_of(fault.session, build(broken=False), seed)
    broken, crashed = text_of(fault.session, build(broken=True), seed)
    results = {name: gate.check_only(build(broken=True), name) for name in CHECKS}
    caught = {name: result.reason for name, result in results.items() if result.status == "fail"}
    return Finding(
        fault.name,
        fault.source,
        fault.variant,
        fault.what,
        right,
        broken,
        crashed,
        list(caught),
        next(iter(caught.values()), ""),
    )


def text_of(session: str, decoder: Decoder, seed: int) -> tuple[list[int] | str, str]:
    """(tokens of row 0, or the refusal; the error that broke the session, if any)."""
    try:
        return SESSIONS[session](decoder, seed), ""
    except UserError as refusal:
        return f"refused: {refusal}", ""
    except Exception as error:  # a fault that complains by itself is not silent
        return "crashed", f"{type(error).__name__}: {error}"


def conversation(decoder: Decoder, seed: int) -> list[int]:
    """Prompt, text, three tokens at once, text, a rewind and one token, text, a second prompt, text."""
    tokens = _random(decoder, 24, seed)
    decoder.prefill(tokens[:, :6])
    produced = _greedy(decoder, 8)
    decoder.extend(tokens[:, 6:9])
    produced += _greedy(decoder, 4)
    decoder.rewind(8)
    decoder.step(tokens[:, 9:10])
    produced += _greedy(decoder, 4)
    decoder.prefill(tokens[:, 10:19])
    return produced + _greedy(decoder, 12)


def past_the_end(decoder: Decoder, seed: int) -> list[int]:
    """A prompt that leaves room for three tokens, and eight greedy ones."""
    decoder.prefill(_random(decoder, decoder.capacity - 3, seed))
    return _greedy(decoder, 8)


def ragged(decoder: Decoder, seed: int) -> list[int]:
    """Two prompts of different lengths in one batch; the short one is shown."""
    tokens = _random(decoder, 6, seed).tolist()
    rows: Any = [tokens[0][:3], *tokens[1:]]
    decoder.prefill(rows)
    return _greedy(decoder, 8)


SESSIONS = {"conversation": conversation, "past the end": past_the_end, "ragged": ragged}


def _random(decoder: Decoder, n: int, seed: int) -> Any:
    stream = random_stream(decoder.model.config.vocab_size, decoder.batch, n, seed + 11)
    return stream.to(decoder.token.device)


def _greedy(decoder: Decoder, n: int) -> list[int]:
    produced = []
    for _ in range(n):
        produced.append(int(decoder.token[0, 0]))
        decoder.advance()
    return produced
