"""What an engine is asked for, and what every adapter answers to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from variants.config import GPTConfig


@dataclass(frozen=True)
class Task:
    """One engine over one model: `name` as in `engines.ALL`; conversions are kept in `folder`."""

    name: str
    config: GPTConfig
    seed: int
    folder: Path
    threads: int
    tokens: int  # the longest visit: prompt and steps


class Peer:
    """Batch 1, greedy: tokens in, the next token out."""

    def prefill(self, tokens: list[int]) -> int:
        """Forget everything, read the prompt, and return the first token."""
        raise NotImplementedError

    def step(self, token: int) -> int:
        """Feed one token and return the next."""
        raise NotImplementedError

    def rest(self) -> None:
        """Stop whatever would go on by itself after the last step."""
