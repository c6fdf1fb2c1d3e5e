"""What one run does: contexts, batch, steps, rounds, seeds. Torch-free."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from profiling.results.record.part import Count, Part, Size
from variants.config import GPTConfig
from variants.errors import UserError

FLOOR_ROUNDS = 8  # of a floor run: what decides is timed in the duel
# Few, since every bucket is one more step to compile (20 s for GPT-2), record or capture, and to prove.
BUCKETS = (128, 1024, 8192)
TRACE_WARM_UP, TRACED_STEPS = 3, 5  # few: a trace of many steps opens empty in the viewers


class Workload(Part, frozen=True, kw_only=True):
    """`contexts` tokens are in the cache when the first step of a visit starts, which is not timed."""

    contexts: Annotated[tuple[Size, ...], Meta(min_length=1)] = (10, 100, 500, 1000)
    batch: Size = 1
    steps: Size = 2  # timed steps per visit
    warm_up: Count = 2  # untimed steps after each switch: the first one after foreign traffic is slow
    rounds: Size = 20
    seed: int = 0
    gate_steps: Size = 32  # greedy tokens; the gate enters every timed context besides
    brief_gate: bool = False  # prove greedy and forced tokens only, for a first look
    prompt: Size = 100  # tokens of the prefill that is timed for TTFT
    ttft_rounds: Count = 3
    naive_rounds: Count = 3  # the no-cache curve is a picture, no verdict hangs on it

    @property
    def tokens_after(self) -> int:
        """Tokens that a visit adds to its context: untimed, timed, and timed again pipelined."""
        return self.warm_up + 2 * self.steps

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
        traced = TRACE_WARM_UP + TRACED_STEPS
        if min(self.contexts) > config.n_ctx - traced:
            raise UserError(
                f"context {min(self.contexts)} leaves no room for a trace, which adds {traced} tokens to the "
                f"smallest context: this model holds {config.n_ctx}; give a smaller one beside it"
            )

    def buckets(self, config: GPTConfig) -> tuple[int, ...]:
        """Slots that fixed-shape steps attend over: the buckets that the contexts and the gate need."""
        need = max(max(self.contexts) + self.tokens_after, min(self.gate_steps + 12, config.n_ctx))
        below = [slots for slots in BUCKETS if slots < min(need, config.n_ctx)]
        last = next((slots for slots in BUCKETS if slots >= need), config.n_ctx)
        return (*below, min(last, config.n_ctx))
