"""What users of CUDA graphs ran into (CASES 13-20): on the op tape, and on a stand-in for CUDA's capture.

The stand-in knows the rules: what runs, on which stream, in which order. What only a device can tell is in
test_gpu.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from variants.decoder import Decoder
from variants.executors import cuda_graph
from variants.executors.capture_rules import CaptureError
from variants.executors.compile import Compiled
from variants.executors.cuda_graph import WARM_UP_STEPS, Graphed, capture
from variants.executors.executor import COMPILED, COMPILED_GRAPH, GRAPH
from variants.ladder import ladder
from variants.model import GPT

POOL = "the shared pool"


class FakeStream:
    device = torch.device("cpu")

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class FakeCuda:
    """Takes the place of torch.cuda in cuda_graph: logs what happens, and can refuse an operation."""

    def __init__(self, refuse: str | None = None) -> None:
        self.log: list[str] = []
        self.refuse, self.reserved, self.on = refuse, 1000, "main"
        self.main, self.side = FakeStream(self.log, "main"), FakeStream(self.log, "side")

    def Stream(self, device: object) -> FakeStream:
        return self.side

    def current_stream(self, device: object) -> FakeStream:
        return self.main

    def synchronize(self, device: object) -> None:
        self.log.append("synchronize")

    def empty_cache(self) -> None:
        self.log.append("empty cache")

    def memory_reserved(self, device: object) -> int:
        return self.reserved

    def CUDAGraph(self) -> Any:
        cuda = self

        class Graph:
            def reset(self) -> None:
                cuda.log.append("reset")

        return Graph()

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.on = self.on, stream.name
        yield
        self.on = before

    @contextmanager
    def graph(self, graph: object, pool: object, stream: FakeStream) -> Iterator[None]:
        self.log.append(f"capture on {stream.name} into {pool}")
        self.reserved += 64
        with self.stream(stream), Refusing(self.refuse):
            yield


class Refusing(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self, name: str | None) -> None:
        super().__init__()
        self.name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name() == self.name:
            raise RuntimeError(
                "CUDA error: operation not permitted when stream is capturing (900)\nmore lines"
            )
        return func(*args, **(kwargs or {}))


def tried(
    monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, run: Callable[[Tensor], Tensor] | None = None
) -> Any:
    """Capture a two-operation step on the stand-in; `run` is the compiled step, where it is another."""
    monkeypatch.setattr(cuda_graph, "torch", SimpleNamespace(cuda=cuda))
    token = torch.zeros(1, 1, dtype=torch.int64)
    restored: list[int] = []

    def step(token: Tensor) -> Tensor:
        cuda.log.append(f"step on {cuda.on}")
        token.add_(1)
        return token.float().tanh()

    def restore() -> None:
        restored.append(int(token))
        token.zero_()

    compiled = run or step
    try:
        return capture(step, lambda: compiled(token), token, restore, POOL)
    finally:
        monkeypatch.undo()
        assert int(token) == 0, "every trial step is undone, also after a failure"
        assert restored


def test_the_step_warms_up_on_a_side_stream_before_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 13 and 18: handles exist before the capture, and the pool's growth is measured."""
    cuda = FakeCuda()
    graph = tried(monkeypatch, cuda)
    start = cuda.log.index("side waits for main")
    expected = [
        "side waits for main",
        *["step on side"] * WARM_UP_STEPS,
        "main waits for side",
        "synchronize",
    ]
    assert cuda.log[start : start + len(expected) + 1] == [*expected, f"capture on side into {POOL}"]
    assert graph.pool_bytes == 64


def test_a_refused_operation_is_named_and_its_pool_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 14 and 18: CUDA's error 900 names nothing, the second capture does."""
    cuda = FakeCuda(refuse="aten::tanh")
    with pytest.raises(
        CaptureError, match=r"failed at aten::tanh: CUDA error: operation not permitted.*\(900\)$"
    ):
        tried(monkeypatch, cuda)
    failed = cuda.log.index(f"capture on side into {POOL}")
    assert cuda.log[failed:].count("reset") == cuda.log[failed:].count("empty cache") == 2


def test_a_failure_of_compiled_code_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(token: Tensor) -> Tensor:
        token.add_(1)
        return token.float().exp()

    with pytest.raises(CaptureError, match="an operation of the compiled code"):
        tried(monkeypatch, FakeCuda(refuse="aten::exp"), compiled)


def test_buckets_share_one_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    handles = iter(["first", "second"])
    pools: list[object] = []

    def fake_capture(step: Any, run: Any, token: Any, restore: Any, pool: object) -> Any:
        pools.append(pool)
        return cuda_graph.CapturedStep(None, torch.zeros(1), 7)  # type: ignore[arg-type]

    monkeypatch.setattr("variants.executors.cuda_graph.capture", fake_capture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    executor = GRAPH.build()
    for _ in range(2):
        executor.build(lambda token: token, torch.zeros(1, 1), lambda: None)
    assert pools == ["first", "first"]
    assert [entry.bytes for entry in executor.log] == [{"graph pool": 7}] * 2
    assert all(entry.seconds >= 0 for entry in executor.log)


def decoders(model: GPT, **options: Any) -> tuple[Decoder, Decoder]:
    return Decoder.of(ladder()["tape"], model, **options), Decoder.of(ladder()["sdpa"], model, **options)


PROMPT = torch.tensor([[5, 3, 9, 2]])


def test_replays_follow_the_buffers_and_not_what_was_recorded(tiny: GPT) -> None:
    """CASES 15: position, token and length live in buffers; whatever is put there is what the replay uses."""
    tape, eager = decoders(tiny)
    for decoder in (tape, eager):
        decoder.prefill(PROMPT)
    assert torch.equal(tape.advance(), eager.advance())
    tape.token.fill_(77)  # not the token that was recorded, nor the one that was fed back
    eager.token.fill_(77)
    seen = [(tape.advance().clone(), eager.advance()) for _ in range(3)]
    assert all(torch.equal(mine, theirs) for mine, theirs in seen)
    assert int(tape.cache.length) == tape.length == PROMPT.size(1) + 4  # type: ignore[union-attr]


def test_replays_survive_a_prefill_between_them(tiny: GPT) -> None:
    """CASES 16: no buffer of the replay is recycled by what runs in between."""
    tape, eager = decoders(tiny)
    for prompt in (PROMPT, PROMPT.flip(1), PROMPT[:, :2]):
        for decoder in (tape, eager):
            decoder.prefill(prompt)
        for _ in range(3):
            assert torch.equal(tape.advance(), eager.advance())
            torch.randn(257, 257) @ torch.randn(257, 257)  # foreign traffic


def test_what_step_hands_out_is_not_overwritten(tiny: GPT) -> None:
    """CASES 17: `advance` lends its output until the next step, `step` copies it."""
    tape, _ = decoders(tiny)
    tape.prefill(PROMPT)
    first = tape.step(torch.tensor([[1]]))
    kept = first.clone()
    tape.step(torch.tensor([[2]]))
    assert torch.equal(first, kept)


def test_one_compiled_step_per_bucket(tiny: GPT) -> None:
    tape, eager = decoders(tiny, capacity=24, buckets=(8, 24))
    for decoder in (tape, eager):
        decoder.prefill(PROMPT)
    for _ in range(8):  # crosses from the first bucket into the second
        assert torch.equal(tape.advance().argmax(), eager.advance().argmax())
    assert len(tape.executor.log) == 2


@pytest.mark.parametrize("name", ["cudagraph", "compile-cudagraph", "triton"])
def test_a_graph_rung_differs_from_its_parent_in_one_slot(name: str) -> None:
    """CASES 19: the two arms of a comparison differ in one thing only."""
    rung = ladder()[name]
    assert rung.difference is not None
    assert rung.difference[0] == ("backend" if name == "triton" else "executor")


def test_compile_does_not_pretend_to_use_graphs() -> None:
    """CASES 20: graphs are captured here and by name, never hidden in a compile mode that may skip them."""
    compiled, graphed = COMPILED.build(), COMPILED_GRAPH.build()
    assert isinstance(compiled, Compiled) and not any("cudagraph" in option for option in compiled.options)
    assert isinstance(graphed, Graphed) and isinstance(graphed.inner, Compiled)


def test_a_graph_over_a_growing_cache_is_refused_when_built() -> None:
    with pytest.raises(ValueError, match="fixed shape"):
        ladder()["cat"].then("wrong", "nothing", executor=GRAPH)
