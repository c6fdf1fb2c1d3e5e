"""The decode step in Triton: the same phases under two schedules.

    qkv     norm, projection, keys and values appended to the cache
    attend  split over keys; the last split of a head to finish combines them
    out     projection, added to the residual stream
    up      norm, projection, GELU
    down    projection, added to the residual stream
    head    final norm, logits, argmax, state advanced

`steps.TritonStep` launches one kernel per phase (`kernels`), `steps.PersistentStep` one persistent kernel per
step (`persistent`). From the bottom up: plan (sizes), tiles, sync, linear, attention, finish (functions
inside kernels), kernels and persistent, ops (operators of torch.library), backends; beside them cost (bytes
and FLOPs per kernel), aot (what the compiler makes of it) and interpreter (how Triton's interpreter is made
to agree with a GPU). Nothing here is imported before a decoder asks for such a backend.

`weights` is (w, scale, bias, gain, shift): w [out, in] in float32, bfloat16 or int8 with a float32 scale per
row; gain and shift of the norm before it, where the matrix has one. A program owns an even share of the rows
of every matrix. Activations and the residual stream are float32 [B, columns]; those that another program
wrote are read past the L1 cache (`.cg`).
"""

from variants.interrupted import from_the_first_line

from_the_first_line()
