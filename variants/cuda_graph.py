"""One decode step as a CUDA graph.

Token, position and length live in device memory and the step itself advances them, so a replay takes
nothing from the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from variants.capture_rules import CaptureError, check_capturable

SETTLING_STEPS = 3  # library handles and workspaces must exist before the capture


@dataclass
class CapturedStep:
    """A graph, its output [B,V] (overwritten by every replay) and the bytes its pool grew by."""

    graph: torch.cuda.CUDAGraph
    logits: Tensor
    pool_bytes: int

    def replay(self) -> Tensor:
        self.graph.replay()
        return self.logits


def capture(
    step: Callable[[Tensor], Tensor],
    run: Callable[[], Tensor],
    token: Tensor,
    restore: Callable[[], None],
    pool: Any,
) -> CapturedStep:
    """Capture `run`, the artefact of `step(token)`, into a graph on the shared `pool`.

    Raises CaptureError naming the operation; a failed capture releases what it had taken.
    """
    check_capturable(step, token, restore)
    side = torch.cuda.Stream(token.device)
    side.wait_stream(torch.cuda.current_stream(token.device))
    with torch.cuda.stream(side):
        for _ in range(SETTLING_STEPS):
            run()
            restore()
    torch.cuda.current_stream(token.device).wait_stream(side)
    torch.cuda.synchronize(token.device)
    before = torch.cuda.memory_reserved(token.device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=side):
            logits = run()
    except Exception as error:
        graph.reset()
        torch.cuda.synchronize(token.device)
        torch.cuda.empty_cache()
        raise CaptureError(f"CUDA graph capture failed: {str(error).splitlines()[0]}") from error
    pool_bytes = torch.cuda.memory_reserved(token.device) - before
    restore()
    return CapturedStep(graph, logits, pool_bytes)
