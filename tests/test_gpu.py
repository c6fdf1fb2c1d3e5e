"""What only a CUDA device can tell. Run by `make gpu-check`; skipped everywhere else."""

from __future__ import annotations

import pytest
import torch

from profiling.gate import Gate
from variants.decoder import Decoder
from variants.executors.capture_rules import CaptureError
from variants.executors.cuda_graph import capture
from variants.executors.executor import GRAPH
from variants.ladder import ladder
from variants.model import GPT, random_model

pytestmark = pytest.mark.gpu

PROMPT = torch.tensor([[5, 3, 9, 2]])
GRAPHED = ["cudagraph", "triton"]
RUNGS = [
    *GRAPHED,
    "onelaunch",
    "onelaunch-graph",
    "triton-bf16",
    "triton-int8",
    "onelaunch-bf16",
    "onelaunch-int8",
]


def on_cuda(model: GPT) -> GPT:
    return random_model(model.config, 1, device="cuda")


@pytest.mark.parametrize("name", RUNGS)
def test_the_gate_passes_on_odd_models(model: GPT, name: str) -> None:
    variant, there = ladder()[name], on_cuda(model)
    result = Gate(there, "float32", steps=20, forced=14).check(Decoder.of(variant, there))
    assert (result.status, result.reason) == ("pass", "")


@pytest.mark.parametrize("batch", [1, 3, 16])
@pytest.mark.parametrize("name", [*GRAPHED, "onelaunch", "onelaunch-graph"])
def test_replays_equal_eager_across_prefills_and_buckets(tiny: GPT, name: str, batch: int) -> None:
    """CASES 15 and 16: the buffers decide, and nothing recycles them."""
    there = on_cuda(tiny)
    mine = Decoder.of(ladder()[name], there, batch=batch, capacity=32, buckets=(8, 32))
    eager = Decoder.of(ladder()["sdpa"], there, batch=batch, capacity=32)
    for prompt in (PROMPT, PROMPT.flip(1)):
        for decoder in (mine, eager):
            decoder.prefill(prompt.expand(batch, -1).cuda())
        for token in (7, 42, 1, 99, 13, 5):
            forced = torch.full((batch, 1), token, device="cuda")
            torch.testing.assert_close(mine.step(forced), eager.step(forced), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", GRAPHED)
def test_a_graph_says_what_it_costs(tiny: GPT, name: str) -> None:
    decoder = Decoder.of(ladder()[name], on_cuda(tiny), buckets=(16, 64))
    log = decoder.warm_up()
    assert len(log) == 2 and all(entry.seconds > 0 and "graph pool" in entry.bytes for entry in log)


def test_a_failed_capture_names_the_operation_gives_its_memory_back_and_the_next_one_works() -> None:
    """CASES 14 and 18, with an operation that the rules without a device cannot see: a blocking copy."""
    token = torch.zeros(1, 1, dtype=torch.int64, device="cuda")
    pinned = torch.zeros(1, 1, dtype=torch.int64)

    def blocking(token: torch.Tensor) -> torch.Tensor:
        big = torch.ones(1 << 22, device="cuda")
        return big[:1] + pinned.cuda()[0]

    def fine(token: torch.Tensor) -> torch.Tensor:
        return token + torch.ones(1 << 20, device="cuda")[:1]

    pool = torch.cuda.graph_pool_handle()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    with pytest.raises(CaptureError, match="aten::"):
        capture(blocking, lambda: blocking(token), token, lambda: None, pool)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before + (2 << 20)
    graph = capture(fine, lambda: fine(token), token, lambda: None, torch.cuda.graph_pool_handle())
    token.fill_(5)
    assert int(graph.replay()) == 6 and graph.pool_bytes > 0


def test_one_launch_many_steps_gives_the_same_tokens_every_time(tiny: GPT) -> None:
    """The grid barrier under stress: a race would show as runs that differ."""
    there = on_cuda(tiny)
    decoder = Decoder.of(ladder()["onelaunch"], there)
    runs = set()
    for _ in range(50):
        decoder.prefill(PROMPT.cuda())
        runs.add(tuple(int(decoder.advance().argmax()) for _ in range(40)))
    assert len(runs) == 1
    decoder.verify()


@pytest.mark.parametrize("cooperative", [True, False])
def test_one_launch_in_a_graph(tiny: GPT, cooperative: bool) -> None:
    """Whether a cooperative launch can be captured is known only here."""
    from variants.backends.triton_step.steps import PersistentStep

    there = on_cuda(tiny)
    decoder = Decoder.of(ladder()["onelaunch"], there)
    decoder.prefill(PROMPT.cuda())
    backend = PersistentStep(there, decoder.cache, cooperative=cooperative)  # type: ignore[arg-type]
    held, token = decoder.length, decoder.token.clone()

    def restore() -> None:
        decoder.cache.rewind(held)
        decoder.token.copy_(token)

    replay = GRAPH.build().build(backend.step, decoder.token, restore)
    eager = Decoder.of(ladder()["sdpa"], there)
    eager.prefill(PROMPT.cuda())
    for _ in range(5):
        torch.testing.assert_close(replay(), eager.advance(), atol=1e-4, rtol=1e-4)
    backend.verify()


@pytest.mark.parametrize("pdl", [True, False])
def test_dependent_launches_change_nothing(tiny: GPT, pdl: bool) -> None:
    if pdl and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("programmatic dependent launch needs compute capability 9.0")
    from variants.backends.triton_step.steps import TritonStep
    from variants.slots.static_cache import StaticCache

    there = on_cuda(tiny)
    cache = StaticCache(there.config, 1, 32, there.wpe.weight)
    backend = TritonStep(there, cache, pdl=pdl)
    eager = Decoder.of(ladder()["sdpa"], there, capacity=32)
    token = torch.tensor([[7]], device="cuda")
    with torch.inference_mode():
        for n in range(20):
            forced = torch.tensor([[(5 * n) % 101]], device="cuda")
            token.copy_(forced)
            torch.testing.assert_close(backend.step(token), eager.step(forced), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("how", [0, 1, 2])
def test_one_launch_asks_ahead_and_computes_the_same(tiny: GPT, how: int) -> None:
    """Hints to the second-level cache, and clock stamps: both are there for time alone."""
    from variants.backends.triton_step.plan import Ahead
    from variants.backends.triton_step.steps import PersistentStep

    ahead = Ahead(how)
    if ahead is Ahead.IN_RUNS and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("hints for runs of bytes need compute capability 9.0")
    there = on_cuda(tiny)
    decoder = Decoder.of(ladder()["onelaunch"], there)
    decoder.prefill(PROMPT.cuda())
    backend = PersistentStep(there, decoder.cache, ahead=ahead, stamped=True)  # type: ignore[arg-type]
    eager = Decoder.of(ladder()["sdpa"], there)
    eager.prefill(PROMPT.cuda())
    with torch.inference_mode():
        for _ in range(5):
            torch.testing.assert_close(backend.step(decoder.token), eager.advance(), atol=1e-4, rtol=1e-4)
    backend.verify()
    assert backend.stamps is not None and backend.stamps.min() > 0
    assert (backend.stamps[:, 1:] >= backend.stamps[:, :-1]).all()
