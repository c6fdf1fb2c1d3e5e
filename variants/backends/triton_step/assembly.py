"""What Triton has no word for, in PTX: hints to the second-level cache, and the device's clock.

The interpreter has no assembler: `interpreter` gives each of these a meaning there.
"""

import triton.language as tl

# one thread asks for a run of bytes: address and size are multiples of 16 (compute capability 9.0)
PREFETCH_RUN = tl.constexpr(
    """{ .reg .pred first; .reg .u32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0;
    setp.gt.and.s32 first, $2, 0, first;
    @first cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }"""
)
# every thread asks for the line that holds its address, where bytes are left to ask for
PREFETCH_LINE = tl.constexpr(
    """{ .reg .pred left; setp.gt.s32 left, $2, 0;
    @left prefetch.global.L2 [$1]; mov.u32 $0, 0; }"""
)
# nanoseconds, the same for all multiprocessors
CLOCK = tl.constexpr("mov.u64 $0, %globaltimer;")
