# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, assignment"

"""How programs of one kernel wait for each other: the last to arrive, and the grid barrier.

Counters are int32 in device memory, zero when a step starts and put back to zero by the last program.
"""

import triton
import triton.language as tl

from variants.backends.triton_step.assembly import CLOCK


@triton.jit
def last_to_arrive(counter, programs):
    """Whether this program is the last of `programs` to get here; it then sees what the others stored.

    The last one puts the counter back to zero for the next step.
    """
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == programs - 1
    tl.debug_barrier()
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def stamp(stamps, at):
    """The device's clock at place `at` of stamps int64, in ns; where there are none, nothing."""
    if stamps is not None:
        tl.store(stamps + at, tl.inline_asm_elementwise(CLOCK, "=l", [], tl.int64, is_pure=False, pack=1))


@triton.jit
def arrive(barrier, stamps, at):
    """What this program has stored is visible to whoever sees the count; stamped when all of it is done."""
    tl.debug_barrier()
    stamp(stamps, at)
    tl.atomic_add(barrier, 1, sem="release", scope="gpu")


@triton.jit
def wait(barrier, target, polls, stamps, at):
    """Until `target` arrivals are counted, or no polls are left; then stamped. Returns the polls left."""
    seen = tl.atomic_add(barrier, 0, sem="acquire", scope="gpu")
    while (seen < target) & (polls > 0):
        seen = tl.atomic_add(barrier, 0, sem="acquire", scope="gpu")
        polls -= 1
    tl.debug_barrier()
    stamp(stamps, at)
    return polls
