"""The memory floor reads the bytes of a step, the weights where they lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from profiling.cost.work import kv_read_bytes, weights_read_bytes
from profiling.measure import peaks
from profiling.measure.expect import floor_bytes, step_reads
from profiling.measure.peaks import FloorReader
from profiling.measure.visits import plain_reads
from variants.backends.backend import why_no_one_launch
from variants.config import PRESETS, GPTConfig
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import random_model
from variants.slots.pages import why_no_huge_pages
from variants.slots.precision import INT8

CPU = torch.device("cpu")
TINY = PRESETS["tiny"]
needs_kernels = pytest.mark.skipif(why_no_one_launch("cpu") is not None, reason=str(why_no_one_launch("cpu")))


def _decoder(name: str, config: GPTConfig = TINY, batch: int = 1) -> Decoder:
    return Decoder.of(ladder("float32")[name], random_model(config, 0), batch=batch)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["sdpa", "onelaunch", "bf16", "onelaunch-int8", "onelaunch-int4"])
@pytest.mark.parametrize(("batch", "context"), [(1, 0), (3, 10)])
def test_the_tensors_of_a_decoder_have_the_bytes_that_arithmetic_gives_them(
    name: str, tied: bool, batch: int, context: int
) -> None:
    config = GPTConfig(n_layer=2, n_head=4, n_embd=128, n_ctx=64, vocab_size=101, tied_head=tied)
    decoder = _decoder(name, config, batch)
    precision, other = decoder.variant.precision, decoder.model.wpe.weight.element_size()
    weights = weights_read_bytes(config, precision.bytes_per_weight, batch, other)
    if precision is INT8:
        outputs = config.n_layer * (3 + 1 + 4 + 1) * config.n_embd + config.vocab_size
        weights += 4 * outputs  # a float32 scale each
    if not precision.plain:  # the token table stays as it was, beside a quantised head
        rows = batch * config.n_embd
        weights += rows * other - (0 if tied else round(rows * precision.bytes_per_weight))
    assert floor_bytes(decoder, context) == weights + kv_read_bytes(config, context, other, batch)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[list[Tensor]]:
    """What the kernel was asked to read, once per call."""
    seen: list[list[Tensor]] = []
    monkeypatch.setattr(peaks, "PlainRead", lambda parts: lambda: seen.append(parts))
    return seen


@needs_kernels
def test_weights_are_read_where_they_lie_and_the_rest_beside_them(reads: list[list[Tensor]]) -> None:
    weights = [torch.ones(100), torch.ones(7, 3)]
    reader = FloorReader(weights, most_bytes=1000, device=CPU, pages="default")
    assert len(reader.read_ms(900, warm_up=1, times=2)) == 2
    assert len(reads) == 3
    for parts in reads:
        assert [t.data_ptr() for t in parts[:2]] == [t.data_ptr() for t in weights]
        assert sum(t.nbytes for t in parts) == pytest.approx(900, abs=3)


def test_without_the_kernels_all_comes_from_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "why_no_one_launch", lambda device: "no compiler")
    monkeypatch.setattr(peaks, "PlainRead", lambda parts: pytest.fail("needs the kernels"))
    reader = FloorReader([torch.ones(100)], most_bytes=1000, device=CPU, pages="default")
    assert reader.buffer.nbytes == 1000 and len(reader.read_ms(1000, warm_up=0, times=3)) == 3


@needs_kernels
@pytest.mark.skipif(why_no_huge_pages("cpu") is not None, reason=str(why_no_huge_pages("cpu")))
def test_each_rung_has_a_floor_on_its_own_pages_and_the_other_page_size_is_shown_too(
    reads: list[list[Tensor]],
) -> None:
    decoders = [_decoder("onelaunch"), _decoder("onelaunch-huge"), _decoder("onelaunch-int8")]
    cases: list[Any] = [SimpleNamespace(decoder=d, contexts=(10,)) for d in decoders]
    readers = {(read.size, read.pages): read.reader for read in plain_reads(cases, times=1, into=[])}

    def pointers(decoder: Decoder, pages: str) -> tuple[set[int], set[int]]:
        reads.clear()
        readers[floor_bytes(decoder, 10), pages].read_ms(floor_bytes(decoder, 10), warm_up=0, times=1)
        return {t.data_ptr() for t in reads[0]}, {t.data_ptr() for t in step_reads(decoder).whole}

    for decoder in decoders:
        read, own = pointers(decoder, decoder.variant.pages.name)
        assert own < read
    read, own = pointers(decoders[2], "huge")  # nobody's weights lie there
    assert len(read) == 1 and not own & read
