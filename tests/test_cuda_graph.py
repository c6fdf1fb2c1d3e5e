"""What users of CUDA graphs ran into (CASES 13-20): on the op tape, and on a stand-in for CUDA's capture.

The stand-in takes the place of the driver's calls under torch's own `torch.cuda.graph`: what runs on which
stream, in which order, and whose memory it is. What only a device can tell is in test_gpu.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_cpp_code

from variants.decoder import Decoder
from variants.executors import cuda_graph
from variants.executors.capture_rules import CaptureError
from variants.executors.compile import Compiled
from variants.executors.cuda_graph import WARM_UP_STEPS, Graphed, capture
from variants.executors.executor import COMPILED, COMPILED_GRAPH, GRAPH
from variants.ladder import ladder
from variants.model import GPT

POOL = (0, 7)
TEMPORARIES, IN_POOL = 22, 64  # what a step holds outside of a capture, and inside of one


class Driver:
    """The driver's and the allocator's part of a capture, under torch's own `torch.cuda.graph`.

    `refuse`: an operation that breaks a capture. As in torch 2.11 to 2.13, a capture that is broken fails
    again when it is ended, and its pool stays open until someone closes and releases it.
    """

    def __init__(self, refuse: str | None = None) -> None:
        self.log: list[str] = []
        self.refuse, self.broken = refuse, False
        self.reserved, self.cached = 1000, 0
        self.capturing: object = None
        self.pools: dict[object, int] = {}
        self.streams = {name: Stream(self, name) for name in ("main", "side")}
        self.current = self.streams["main"]

    def install(self, patch: pytest.MonkeyPatch) -> None:
        cuda = {
            "Stream": lambda device: self.streams["side"],
            "current_stream": lambda device=None: self.current,
            "set_stream": self.set_stream,
            "stream": self.stream,
            "synchronize": lambda device=None: self.log.append("synchronize"),
            "empty_cache": self.empty_cache,
            "memory_reserved": lambda device: self.reserved,
            "current_device": lambda: 0,
            "graph_pool_handle": lambda: (0, 8),
            "CUDAGraph": lambda: Graph(self),
        }
        for name, value in cuda.items():
            patch.setattr(torch.cuda, name, value)
        for name, value in {
            "_host_emptyCache": lambda: None,
            "_cuda_endAllocateToPool": self.close,
            "_cuda_releasePool": self.release,
        }.items():
            patch.setattr(torch._C, name, value, raising=False)

    def set_stream(self, stream: Stream) -> None:
        self.current = stream

    def stream(self, stream: Stream) -> Switch:
        return Switch(self, stream)

    def step(self) -> None:
        """What a step allocates: temporaries that stay in the cache, or memory of the pool."""
        self.log.append(f"step on {self.current.name}")
        if self.capturing:
            self.reserved += IN_POOL
            self.pools[self.capturing] += IN_POOL
        elif not self.cached:
            self.reserved += TEMPORARIES
            self.cached += TEMPORARIES

    def empty_cache(self) -> None:
        self.log.append("empty cache")
        self.reserved -= self.cached
        self.cached = 0

    def close(self, device: int, pool: object) -> None:
        if self.capturing != pool:
            raise RuntimeError("not currently recording to this pool")
        self.capturing = None

    def release(self, device: int, pool: object) -> None:
        assert self.capturing != pool, "an open pool cannot be released"
        self.cached += self.pools.pop(pool)


class Stream:
    device = torch.device("cpu")

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver, self.name = driver, name

    def wait_stream(self, other: Stream) -> None:
        self.driver.log.append(f"{self.name} waits for {other.name}")


class Switch:
    """`torch.cuda.stream`, which `torch.cuda.graph` enters and leaves by hand."""

    def __init__(self, driver: Driver, stream: Stream) -> None:
        self.driver, self.to = driver, stream

    def __enter__(self) -> None:
        self.before, self.driver.current = self.driver.current, self.to

    def __exit__(self, *error: object) -> None:
        self.driver.current = self.before


class Graph:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.held: object = None
        self.ended = False

    def capture_begin(self, pool: object, **options: object) -> None:
        self.driver.log.append(f"capture on {self.driver.current.name} into {pool}")
        self.driver.capturing = self.held = pool
        self.driver.pools.setdefault(pool, 0)

    def capture_end(self) -> None:
        if self.driver.broken:
            self.driver.broken = False
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self.driver.close(0, self.held)
        self.ended = True

    def pool(self) -> object:
        if not self.ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self.held

    def reset(self) -> None:
        if self.ended:
            self.driver.release(0, self.held)
            self.ended = False


class Refusing(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.driver = driver

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.driver.capturing and func.name() == self.driver.refuse:
            self.driver.broken = True
            raise RuntimeError(
                "CUDA error: operation not permitted when stream is capturing (900)\nmore lines"
            )
        return func(*args, **(kwargs or {}))


def tried(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, run: Callable[[Tensor], Tensor] | None = None
) -> Any:
    """Capture a two-operation step on the stand-in; `run` is the compiled step, where it is another."""
    token = torch.zeros(1, 1, dtype=torch.int64)
    restored: list[int] = []

    def step(token: Tensor) -> Tensor:
        driver.step()
        token.add_(1)
        return token.float().tanh()

    def restore() -> None:
        restored.append(int(token))
        token.zero_()

    compiled = run or step
    try:
        with monkeypatch.context() as patch, Refusing(driver):
            driver.install(patch)
            return capture(step, lambda: compiled(token), token, restore, POOL)
    finally:
        assert int(token) == 0, "every trial step is undone, also after a failure"
        assert restored
        assert driver.current.name == "main", "whatever runs next is not on the capture's stream"


def test_the_step_warms_up_on_a_side_stream_before_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 13 and 18: handles exist before the capture, and the pool's growth alone is measured."""
    driver = Driver()
    graph = tried(monkeypatch, driver)
    start = driver.log.index("side waits for main")
    expected = ["side waits for main", *["step on side"] * WARM_UP_STEPS, "main waits for side"]
    assert driver.log[start : start + len(expected)] == expected
    assert f"capture on side into {POOL}" in driver.log[start + len(expected) :]
    assert graph.pool_bytes == IN_POOL


def test_a_refused_operation_is_named_and_its_pool_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 14 and 18: CUDA's error 900 names nothing, the second capture does."""
    driver = Driver(refuse="aten::tanh")
    with pytest.raises(
        CaptureError, match=r"failed at aten::tanh: CUDA error: operation not permitted.*\(900\)$"
    ):
        tried(monkeypatch, driver)
    assert driver.capturing is None and not driver.pools, "both captures have closed and released their pools"
    assert driver.reserved == 1000


def test_a_failure_of_compiled_code_alone_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(token: Tensor) -> Tensor:
        token.add_(1)
        return token.float().exp()

    driver = Driver(refuse="aten::exp")
    with pytest.raises(CaptureError, match="an operation of the compiled code"):
        tried(monkeypatch, driver, compiled)
    assert not driver.pools


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
    before = first.clone()
    tape.step(torch.tensor([[2]]))
    assert torch.equal(first, before)


def test_one_compiled_step_per_bucket(tiny: GPT) -> None:
    tape, eager = decoders(tiny, capacity=24, buckets=(8, 24))
    for decoder in (tape, eager):
        decoder.prefill(PROMPT)
    for _ in range(8):  # crosses from the first bucket into the second
        assert torch.equal(tape.advance().argmax(), eager.advance().argmax())
    assert len(tape.executor.log) == 2


@pytest.mark.parametrize("name", ["cudagraph", "compile-cudagraph", "triton", "onelaunch-graph"])
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


def test_equal_kernels_of_two_buckets_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that names its graph makes two sources of one kernel, which take seconds each to compile."""

    class Stepper:
        def step(self, token: Tensor) -> Tensor:
            return token * 2 + 1

    step, token = Stepper().step, torch.zeros(1, 1)
    code = run_and_get_cpp_code(Compiled().build, step, token, lambda: None)[1]
    assert "record_cpp_fused" in code and "graph_" not in code


def test_compiled_steps_are_tuned_as_products_of_a_vector_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this setting torch.compile loses to hand-written kernels on a GPU by its defaults alone."""
    asked: dict[str, object] = {}

    def compile_(step: Any, *, backend: partial[object], **others: object) -> Any:
        known, options = torch._inductor.config, backend.keywords["config_patches"]
        assert all(hasattr(known, name.split(".")[0]) for name in options)
        asked.update(options)
        return step

    class Stepper:
        def step(self, token: Tensor) -> Tensor:
            return token

    monkeypatch.setattr(torch, "compile", compile_)
    Compiled(cpp_wrapper=True).build(Stepper().step, torch.zeros(1, 1), lambda: None)
    assert asked["coordinate_descent_tuning"] is True and asked["cpp_wrapper"] is True


def test_a_graph_over_a_growing_cache_is_refused_when_built() -> None:
    with pytest.raises(ValueError, match="fixed shape"):
        ladder()["cat"].then("wrong", "nothing", executor=GRAPH)
