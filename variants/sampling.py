"""How is the next token drawn? Greedy, temperature, top-k, top-p, on the device without a sync.

sampler = Sampler(temperature=0.8, top_k=50, top_p=0.95)
token = sampler(logits, generator)      # logits [B,V] -> int64 [B,1], both on the logits' device

The order is that of the usual serving stacks: temperature, then top-k, then top-p over what top-k left,
renormalised. Both filters keep by rank, and equal logits rank by index, so exactly k tokens survive top-k
and ties never widen a filter. The most likely token always survives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from variants.errors import UserError


@dataclass(frozen=True)
class Sampler:
    """`temperature` 0 is greedy; `top_k` 0 and `top_p` 1 keep everything, and so does a k above V."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature {self.temperature} is not a number of at least 0 (0 is greedy)")
        if self.top_k < 0:
            raise UserError(f"top-k {self.top_k} is negative; 0 keeps every token")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p {self.top_p} is outside 0 (excluded) to 1; 1 keeps every token")

    def __call__(self, logits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Draw one token per row: [B,V] -> int64 [B,1].

        `generator` lives on the logits' device; one seed and one shape give one sequence of draws. -inf is
        a token that cannot be drawn. A row with NaN or +inf, or with nothing finite, has no distribution
        and gives token 0: to refuse it here would take the sync that this avoids.
        """
        if self.temperature == 0:
            return logits.argmax(dim=-1, keepdim=True)
        probabilities, tokens = self._ranked(logits)
        # The smallest of independent exponential times with rates p is the i-th with probability p_i;
        # torch.multinomial draws the same way but first asks the device whether p is valid.
        times = torch.empty_like(probabilities).exponential_(1.0, generator=generator)
        times.clamp_(min=torch.finfo(times.dtype).tiny)  # a drawn 0 would let a token of probability 0 win
        drawn = (probabilities / times).argmax(dim=-1, keepdim=True)
        return drawn if tokens is None else tokens.gather(-1, drawn)

    def probabilities(self, logits: Tensor) -> Tensor:
        """The distribution that a draw follows: [B,V] -> [B,V], float32 (float64 for float64 logits)."""
        if self.temperature == 0:
            chosen = logits.argmax(dim=-1, keepdim=True)
            return torch.zeros_like(logits, dtype=_wide(logits)).scatter_(-1, chosen, 1.0)
        probabilities, tokens = self._ranked(logits)
        if tokens is None:
            return probabilities
        return torch.empty_like(probabilities).scatter_(-1, tokens, probabilities)

    def _ranked(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Probabilities [B,V] after all filters, with the tokens they belong to (None: in token order)."""
        logits = logits.to(_wide(logits))
        # relative to the maximum first, so that a tiny temperature cannot overflow
        temperature = max(self.temperature, torch.finfo(logits.dtype).tiny)  # a smaller one would round to 0
        scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
        if (self.top_k == 0 or self.top_k >= logits.size(-1)) and self.top_p == 1:
            return scaled.softmax(dim=-1), None
        scaled, tokens = scaled.sort(dim=-1, descending=True, stable=True)
        if self.top_k:
            scaled[..., self.top_k :] = float("-inf")
        probabilities = scaled.softmax(dim=-1)
        if self.top_p < 1:  # keep a token while the mass before it is below p
            before = probabilities.cumsum(dim=-1) - probabilities
            probabilities = probabilities.masked_fill(before >= self.top_p, 0.0)
            probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
        return probabilities, tokens


def _wide(logits: Tensor) -> torch.dtype:
    """The dtype of probabilities: half precision cannot hold a cumulative sum over a vocabulary."""
    return torch.float64 if logits.dtype == torch.float64 else torch.float32
