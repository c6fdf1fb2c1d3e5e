"""What one fault does: the text of the broken decoder in a use that shows it, and every check of the gate."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from profiling.gate import CHECKS, Gate
from profiling.gate.faults import Fault
from profiling.gate.oracle import random_stream
from profiling.results.record import Finding
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import GPT

USED, HELD = 24, 34  # tokens of a session, and the most that it may hold, in its shortest form


def examine(
    fault: Fault, model: GPT, precision: str, gate: Gate, seed: int, text: Tensor | None = None
) -> Finding:
    """Text of the right and the broken decoder, and every check of the gate on fresh broken ones.

    The decoders have the gate's capacity. `text` int64 [n], of at least 24 tokens: what the sessions are
    about, as long as it and the capacity permit; without it 24 random tokens of `seed`.
    """
    tokens = random_stream(model.config.vocab_size, fault.batch, USED, seed + 11)
    if text is not None:
        times = min(len(text) // USED, (gate.capacity or model.config.n_ctx) // HELD)
        tokens = text[: times * USED].repeat(fault.batch, 1)

    def build(broken: bool) -> Decoder:
        rung = ladder(precision)[fault.variant]
        decoder = Decoder.of(rung, model, batch=fault.batch, capacity=gate.capacity)
        if broken:
            fault.inject(decoder)
        return decoder

    right, _ = text_of(fault.session, build(broken=False), tokens)
    broken, crashed = text_of(fault.session, build(broken=True), tokens)
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


def text_of(session: str, decoder: Decoder, tokens: Tensor) -> tuple[list[int] | str, str]:
    """(tokens of row 0, or the refusal; the error that broke the session, if any)."""
    try:
        return SESSIONS[session](decoder, tokens.to(decoder.token.device)), ""
    except UserError as refusal:
        return f"refused: {refusal}", ""
    except Exception as error:  # a fault that complains by itself is not silent
        return "crashed", f"{type(error).__name__}: {error}"


def conversation(decoder: Decoder, tokens: Tensor) -> list[int]:
    """Prompt, text, some tokens at once, text, a rewind and others, text, a second prompt, text.

    In numbers, of 24 tokens [B,24]: 6, 8, 3, 4, back to 8, 1, 4, 9, 12; all times as many for more.
    """
    times = tokens.size(1) // USED
    prompt, chunk, other, second = tokens[:, : 19 * times].split(
        [6 * times, 3 * times, times, 9 * times], dim=1
    )
    decoder.prefill(prompt)
    produced = _greedy(decoder, 8 * times)
    decoder.extend(chunk)
    produced += _greedy(decoder, 4 * times)
    decoder.rewind(8 * times)
    for token in other.split(1, dim=1):
        decoder.step(token)
    produced += _greedy(decoder, 4 * times)
    decoder.prefill(second)
    return produced + _greedy(decoder, 12 * times)


def past_the_end(decoder: Decoder, tokens: Tensor) -> list[int]:
    """A prompt that leaves room for three tokens, and eight greedy ones."""
    repeated = tokens.repeat(1, -(-decoder.capacity // tokens.size(1)))
    decoder.prefill(repeated[:, : decoder.capacity - 3])
    return _greedy(decoder, 8)


def ragged(decoder: Decoder, tokens: Tensor) -> list[int]:
    """Two prompts of different lengths in one batch; the short one is shown."""
    first, *others = tokens[:, :6].tolist()
    rows: Any = [first[:3], *others]
    decoder.prefill(rows)
    return _greedy(decoder, 8)


SESSIONS = {"conversation": conversation, "past the end": past_the_end, "ragged": ragged}


def _greedy(decoder: Decoder, n: int) -> list[int]:
    produced = []
    for _ in range(n):
        produced.append(int(decoder.token[0, 0]))
        decoder.advance()
    return produced
