"""How are several tokens written in one pass? A draft is proposed, and kept as far as greedy decoding agrees.

draft = PromptLookup(most=7)
tokens = decoder.prefill(prompt) ... ; written = write(decoder, draft(text))

Speculative decoding (Leviathan, Kalman, Matias 2023) without a second model: the draft is looked up in the
text itself (Saxena 2023, "prompt lookup decoding"). What is written is what plain greedy decoding writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from variants.decoder import Decoder


@dataclass(frozen=True)
class PromptLookup:
    """Proposes what followed an ending of the text where it stood first; the longest ending that did.

    `longest`: tokens of the ending that is looked for, one at least; `most`: tokens that are proposed.
    """

    most: int
    longest: int = 3

    def __call__(self, text: Sequence[int]) -> list[int]:
        """The tokens proposed behind the text; none where its last token is new."""
        for size in range(min(self.longest, len(text) - 1), 0, -1):
            ending = text[-size:]
            for at in range(len(text) - size):
                if text[at : at + size] == ending:
                    return list(text[at + size : at + size + self.most])
        return []


@torch.inference_mode()
def write(decoder: Decoder, draft: Sequence[int]) -> list[int]:
    """The next tokens of greedy decoding, of one row: the draft as far as it is right, and one behind.

    The decoder holds the text but the token that is fed back, and does again afterwards: what was rejected is
    forgotten. One pass over the draft, or one step where there is none; waits for the device.
    """
    if not draft:
        decoder.advance()
        return [int(decoder.token)]
    held = decoder.length
    proposed = torch.tensor([list(draft)], device=decoder.token.device)
    right = decoder.extend(torch.cat([decoder.token, proposed], dim=1)).argmax(dim=-1)
    agreed = int((right[:, :-1] == proposed).cumprod(dim=1).sum())
    decoder.rewind(held + 1 + agreed)
    decoder.token.copy_(right[:, agreed : agreed + 1])
    written: list[int] = right[0, : agreed + 1].tolist()
    return written
