"""What one run does: contexts, batch, steps, rounds, seeds. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from variants.config import GPTConfig
from variants.errors import UserError

BUCKETS = (128, 512, 2048)  # few, since every bucket is one more compiled step to compile, record or capture


@dataclass(frozen=True)
class Workload:
    """`contexts` tokens are in the cache when the first settling step starts."""

    contexts: tuple[int, ...] = (10, 100, 500, 1000)
    batch: int = 1
    steps: int = 2  # timed steps per visit
    settle: int = 2  # untimed steps after each switch: the first one after foreign traffic is slow
    rounds: int = 20
    seed: int = 0
    gate_steps: int = 200
    brief_gate: bool = False  # prove greedy and forced tokens only, for a first look
    prompt: int = 100  # tokens of the prefill that is timed for TTFT
    ttft_rounds: int = 3
    naive_rounds: int = 3  # the no-cache curve is a picture, no verdict hangs on it

    @staticmethod
    def restored(stored: dict[str, Any]) -> Workload:
        """The workload of a stored run."""
        return Workload(**{**stored, "contexts": tuple(stored["contexts"])})

    @property
    def tokens_after(self) -> int:
        """Tokens that a visit adds to its context: settling, timed, and timed again pipelined."""
        return self.settle + 2 * self.steps

    def check(self, config: GPTConfig) -> None:
        """Raises UserError for numbers that the model or the method does not allow."""
        for name in ("batch", "steps", "rounds"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} must be at least 1, got {getattr(self, name)}")
        if not self.contexts or min(self.contexts) < 1:
            raise UserError(f"--context needs positive numbers, got {','.join(map(str, self.contexts))}")
        limit = config.n_ctx - self.tokens_after
        if max(self.contexts) > limit:
            raise UserError(
                f"context {max(self.contexts)} is beyond what this model allows: its limit is {config.n_ctx} "
                f"tokens, and a visit adds {self.tokens_after}; the largest context here is {limit}"
            )

    def buckets(self, config: GPTConfig) -> tuple[int, ...]:
        """Slots that fixed-shape steps attend over: the buckets that the contexts and the gate need."""
        need = max(max(self.contexts) + self.tokens_after, min(self.gate_steps + 12, config.n_ctx))
        below = [slots for slots in BUCKETS if slots < min(need, config.n_ctx)]
        last = next((slots for slots in BUCKETS if slots >= need), config.n_ctx)
        return (*below, min(last, config.n_ctx))
