"""The one launch computes the reference function, in every weight format, with any number of threads."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from profiling.gate.gate import Gate
from profiling.measure.expect import step_ops
from profiling.measure.tracing import add_phases, phase_table, trace_steps
from profiling.results.record import Ops
from variants.backends.backend import why_no_one_launch
from variants.backends.one_launch.backend import PHASES, OneLaunch, Span
from variants.backends.one_launch.library import PlainRead
from variants.config import PRESETS, GPTConfig
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import GPT, random_model

if why_no_one_launch("cpu"):
    pytest.skip(str(why_no_one_launch("cpu")), allow_module_level=True)

RUNGS = [
    "onelaunch",
    "onelaunch-bf16",
    "onelaunch-int8",
    "onelaunch-int4",
    "onelaunch-kv16",
    "onelaunch-kv8",
    "onelaunch-int4-kv8",
    "onelaunch-paged",
]
SHAPES = {
    "three heads": PRESETS["tiny"],
    "grouped, head of 15": GPTConfig(
        n_layer=2, n_head=4, n_kv_head=2, n_embd=60, n_inner=100, n_ctx=300, vocab_size=131
    ),
    "one KV head for six, untied": GPTConfig(
        n_layer=2, n_head=6, n_kv_head=1, n_embd=96, n_ctx=268, vocab_size=257, tied_head=False
    ),
    "whole vectors": GPTConfig(n_layer=1, n_head=2, n_embd=128, n_ctx=268, vocab_size=256),
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES.keys())
def odd(request: pytest.FixtureRequest) -> GPT:
    return random_model(request.param, seed=3)


@pytest.fixture(autouse=True)
def restored_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def stream(model: GPT, batch: int, n: int) -> Tensor:
    return torch.randint(model.config.vocab_size, (batch, n), generator=torch.Generator().manual_seed(n))


def forced(decoder: Decoder, tokens: Tensor, prompt: int = 3) -> Tensor:
    """Logits [B,T-prompt,V] of one-token steps over the given tokens [B,T]; checks what is fed back."""
    decoder.prefill(tokens[:, :prompt])
    logits = []
    for token in tokens[:, prompt:].split(1, dim=1):
        logits.append(decoder.step(token))
        assert decoder.token.equal(logits[-1].argmax(-1, keepdim=True))
    return torch.stack(logits, dim=1)


def launch(decoder: Decoder) -> OneLaunch:
    assert isinstance(decoder.backend, OneLaunch)
    return decoder.backend


@pytest.mark.parametrize("batch", [1, 4])
def test_float32_is_as_exact_as_eager(odd: GPT, batch: int) -> None:
    tokens = stream(odd, batch, odd.config.n_ctx)
    truth = forced(Decoder.of(ladder("float64")["cat"], odd.double(), batch=batch), tokens)
    eager = forced(Decoder.of(ladder()["cat"], odd.float(), batch=batch), tokens).double() - truth
    mine = forced(Decoder.of(ladder()["onelaunch"], odd.float(), batch=batch), tokens).double() - truth
    assert mine.square().mean() <= 4 * eager.square().mean()
    assert mine.abs().max() <= 2 * eager.abs().max()


@pytest.mark.parametrize("rung", [*RUNGS, "onelaunch-huge"])
def test_gate(rung: str, tiny: GPT) -> None:
    """Steps, chunks, rewinds, second prompts, poisoned slots, capacity, batch rows: DESIGN 4."""
    gate = Gate(tiny, "float32", batch=1, capacity=64, steps=30, forced=12, seed=0)
    result = gate.check(Decoder.of(ladder()[rung], tiny, capacity=64))
    assert result.status == "pass", result.reason


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_do_not_change_a_bit(rung: str, threads: int, odd: GPT) -> None:
    n = min(odd.config.n_ctx, 263)  # where it can be, past the first chunk of slots
    tokens = stream(odd, 2, n)
    decoder = Decoder.of(ladder()[rung], odd, batch=2)
    seen = []
    for count in (1, threads):
        torch.set_num_threads(1)
        decoder.prefill(tokens[:, : n - 12])
        torch.set_num_threads(count)
        seen.append(torch.stack([decoder.step(token) for token in tokens[:, n - 12 :].split(1, dim=1)]))
        decoder.rewind(n - 12)
        seen.append(decoder.extend(tokens[:, n - 12 :]).movedim(1, 0))
    assert all(one.equal(seen[0]) for one in seen)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("batch", [2, 5, 16])
def test_batch_rows_equal_solo_rows(rung: str, batch: int, odd: GPT) -> None:
    """Bit for bit, from the same cache: the sums do not depend on how many rows are in flight."""
    tokens = stream(odd, batch, 12)
    together = Decoder.of(ladder()[rung], odd, batch=batch, capacity=32)
    solo = Decoder.of(ladder()[rung], odd, capacity=32)
    together.prefill(tokens[:, :10])
    kv = [together.cache.contents(layer, 10) for layer in range(odd.config.n_layer)]
    expected = together.step(tokens[:, 10:11])
    for row in range(batch):
        solo.load(tokens[row : row + 1, :10], [(k[row : row + 1], v[row : row + 1]) for k, v in kv])
        assert solo.step(tokens[row : row + 1, 10:11]).equal(expected[row : row + 1])


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("start", [0, 5, 254])
@pytest.mark.parametrize("size", [2, 9])
def test_several_tokens_at_once_equal_single_steps(rung: str, start: int, size: int, odd: GPT) -> None:
    """Bit for bit, logits and cache, also over a chunk's end and behind a draft that was rejected."""
    start = min(start, odd.config.n_ctx - size)
    tokens, draft = stream(odd, 2, start + size), stream(odd, 2, odd.config.n_ctx)[:, :size]
    decoder = Decoder.of(ladder()[rung], odd, batch=2)
    decoder.extend(tokens[:, :start]) if start else decoder.reset()

    def held() -> list[Tensor]:
        layers = (decoder.cache.contents(layer, start + size) for layer in range(odd.config.n_layer))
        return [part.clone() for pair in layers for part in pair]

    single = torch.stack([decoder.step(token) for token in tokens[:, start:].split(1, dim=1)], dim=1)
    cache, fed_back = held(), decoder.token.clone()
    decoder.rewind(start)
    decoder.extend(draft)
    decoder.rewind(start)
    assert decoder.extend(tokens[:, start:]).equal(single)
    assert all(map(torch.equal, held(), cache))
    assert decoder.token.equal(fed_back) and decoder.cache.held() == start + size


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(1, 47), max_size=4), threads=st.integers(1, 3))
def test_however_a_text_is_cut_its_logits_are_the_same(tiny: GPT, cuts: list[int], threads: int) -> None:
    """Of weights that no library multiplies fast, in as many passes as so many rows take."""
    torch.set_num_threads(threads)
    decoder, tokens = Decoder.of(ladder()["onelaunch-int8"], tiny, batch=3), stream(tiny, 3, 48)
    pieces = [decoder.extend(piece) for piece in tokens.tensor_split(sorted(set(cuts)), dim=1)]
    decoder.reset()
    assert torch.cat(pieces, dim=1).equal(decoder.extend(tokens))
    assert decoder.prefill(tokens).equal(pieces[-1][:, -1])


@pytest.mark.parametrize("rung", RUNGS)
def test_refuses_before_it_writes(rung: str, tiny: GPT) -> None:
    decoder = Decoder.of(ladder()[rung], tiny, capacity=16)
    decoder.prefill(stream(tiny, 1, 15))
    backend, cache = launch(decoder), decoder.cache
    before = [t.clone() for t in cache.buffers()]
    with pytest.raises(IndexError, match="token 101 is outside the vocabulary of 101"):
        backend.step(torch.full((1, 1), 101))
    with pytest.raises(IndexError, match="token -1 is outside the vocabulary of 101"):
        backend.extend(torch.tensor([[-1]]), every=True)
    assert all(a.equal(b) for a, b in zip(before, cache.buffers(), strict=True))
    decoder.step(torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="no room for 1 more after 16 in a cache of 16 slots"):
        backend.step(torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(UserError, match="capacity of 16"):
        decoder.step(torch.zeros(1, 1, dtype=torch.int64))
    assert decoder.length == 16


@pytest.mark.parametrize("threads", [1, 3])
def test_argmax_takes_the_first_of_equals_and_nan_first(threads: int) -> None:
    config = GPTConfig(n_layer=1, n_head=2, n_embd=32, n_ctx=16, vocab_size=200, tied_head=False)
    model = random_model(config, seed=5)
    decoder = Decoder.of(ladder()["onelaunch"], model)
    decoder.prefill(torch.zeros(1, 1, dtype=torch.int64))
    torch.set_num_threads(threads)
    best = decoder.step(torch.zeros(1, 1, dtype=torch.int64)).argmax()
    weight = model.lm_head.weight
    for twin in (199, 120, 3):  # parts of different threads; each becomes equal to the greatest
        weight[twin] = weight[best]
        decoder.rewind(1)
        decoder.step(torch.zeros(1, 1, dtype=torch.int64))
        assert decoder.token.item() == min(twin, int(best))
    for broken in (150, 60):
        weight[broken] = float("nan")
        decoder.rewind(1)
        decoder.step(torch.zeros(1, 1, dtype=torch.int64))
        assert decoder.token.item() == broken


def test_the_profiler_sees_one_op_and_its_phases(tiny: GPT, tmp_path: Path) -> None:
    decoder = Decoder.of(ladder()["onelaunch"], tiny)
    decoder.prefill(stream(tiny, 1, 4))
    trace = tmp_path / "x.pt.trace.json.gz"
    trace_steps(decoder, trace)
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    ops = [event["name"] for event in events if event.get("cat") == "cpu_op"]
    phases = [event for event in events if event.get("cat") == "one_launch_phase"]
    assert ops == ["decode_floor::one_launch_step"] * 5
    assert step_ops(decoder) == Ops(computing_ops=1, view_ops=0)
    assert len(phases) == 5 * (2 + 5 * tiny.config.n_layer)
    op = next(event for event in events if event.get("cat") == "cpu_op")
    inside = [event for event in phases if op["ts"] <= event["ts"] <= op["ts"] + op["dur"]]
    assert len(inside) == 2 + 5 * tiny.config.n_layer


def test_phases_are_a_table_and_off_by_default(tiny: GPT) -> None:
    torch.set_num_threads(2)
    decoder = Decoder.of(ladder()["onelaunch"], tiny)
    decoder.prefill(stream(tiny, 1, 4))
    backend = launch(decoder)
    decoder.advance()
    assert backend.spans() == []
    backend.watch(True)
    for _ in range(3):
        decoder.advance()
    spans = backend.spans()
    assert len(spans) == 3 * 2 * (2 + 5 * tiny.config.n_layer)
    assert all(span.end_ns >= span.start_ns for span in spans)
    table = phase_table(spans)
    assert tuple(table.index) == PHASES
    assert table.share.sum() == pytest.approx(1)
    assert backend.spans() == []


def test_phase_table_by_hand() -> None:
    spans = [
        Span("embed", 0, 0, 0, 1000),
        Span("embed", 0, 1, 0, 3000),
        Span("qkv", 0, 0, 3000, 7000),
        Span("qkv", 0, 1, 3000, 5000),
        Span("qkv", 1, 0, 7000, 8000),
        Span("qkv", 1, 1, 7000, 10000),
    ]
    table = phase_table(spans)
    assert table.slowest_us.to_dict() == {"embed": 3.0, "qkv": 7.0}
    assert table.waiting_us.to_dict() == {"embed": 1.0, "qkv": 2.0}


def test_spans_outside_a_trace_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    content = {
        "baseTimeNanoseconds": 1_000_000,
        "traceEvents": [{"ph": "X", "ts": 10.0, "dur": 5.0, "name": "op"}],
    }
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    add_phases(path, [Span("qkv", 0, 0, 1_011_000, 1_012_500), Span("qkv", 1, 0, 2_000_000, 2_000_001)])
    rows = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"][1:]
    assert [(row["ts"], row["dur"], row["args"]) for row in rows] == [(11.0, 1.5, {"layer": 0})]


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 3000), max_size=5), threads=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_plain_read_reads_every_byte_once(sizes: list[int], threads: int, seed: int) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randint(-128, 128, (n,), dtype=torch.int8, generator=generator) for n in sizes]
    padded = [torch.nn.functional.pad(t, (0, -t.numel() % 8)).view(torch.int64) for t in tensors]
    expected = sum(int(t.sum()) for t in padded)
    assert (PlainRead(tensors)() - expected) % 2**64 == 0


def test_reads_only_contiguous_tensors() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        PlainRead([torch.zeros(4, 4).t()])
