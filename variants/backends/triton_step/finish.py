# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

"""The end of a step: the next token and the new length."""

import triton
import triton.language as tl

from variants.backends.triton_step.linear import NO_INDEX
from variants.backends.triton_step.sync import last_to_arrive


@triton.jit
def finish(token, length, held, best, counters, g: tl.constexpr):
    """The last program picks the tokens (lowest index on ties) and advances the state.

    All programs have read token and length by then, or they would not have arrived.
    """
    PROGRAMS: tl.constexpr = g.programs
    TILE: tl.constexpr = g.program_tile
    B: tl.constexpr = g.batch
    LAST: tl.constexpr = g.head.rows - 1
    value, index = best
    if last_to_arrive(counters, PROGRAMS):
        p = tl.arange(0, TILE)
        for b in range(B):
            top = tl.load(
                value + b * PROGRAMS + p, mask=p < PROGRAMS, other=float("-inf"), cache_modifier=".cg"
            )
            at = tl.load(index + b * PROGRAMS + p, mask=p < PROGRAMS, other=NO_INDEX, cache_modifier=".cg")
            choice = tl.min(tl.where(top == tl.max(top, 0), at, NO_INDEX), 0)
            # logits that are all NaN must not become a wild address in the next step
            tl.store(token + b, tl.minimum(choice, LAST).to(tl.int64))
        tl.store(length, held + 1)
        tl.store(counters + 1, 0)  # the grid barrier: every program has passed the last one
