"""The op tape replays what was recorded, keeps to the rules of a capture, and names what breaks them."""

from __future__ import annotations

import pytest
import torch

from variants.decoder import Decoder
from variants.executors.capture_rules import CaptureError, check_capturable
from variants.executors.tape import record
from variants.ladder import ladder


def nothing() -> None:
    pass


def with_item(x: torch.Tensor) -> torch.Tensor:
    return x + x.sum().item()


def with_tolist(x: torch.Tensor) -> torch.Tensor:
    return x + x.tolist()[0]


def with_numpy(x: torch.Tensor) -> torch.Tensor:
    return x + float(x.numpy()[0])


def with_branch(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x


def with_data_dependent_shape(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].sum()[None]


def with_nonzero(x: torch.Tensor) -> torch.Tensor:
    return x.nonzero()


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (with_item, "aten::_local_scalar_dense"),
        (with_tolist, "Tensor.tolist"),
        (with_numpy, "Tensor.numpy"),
        (with_branch, "aten::_local_scalar_dense|aten::is_nonzero"),
        (with_data_dependent_shape, "index|DynamicOutputShape|nonzero"),
        (with_nonzero, "nonzero"),
    ],
)
def test_what_a_capture_forbids_is_named(step, named: str) -> None:
    """CASES 14, on the tape: the message says which operation."""
    x = torch.ones(3)
    for refuse in (lambda: check_capturable(step, x, nothing), lambda: record(step, x, nothing)):
        with pytest.raises(CaptureError, match=named):
            refuse()


def test_replay_reads_the_buffers_anew_and_results_reuse_registers() -> None:
    weight, x = torch.randn(4, 4), torch.randn(2, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.tanh(x @ weight.t()) + 0.5
        return x

    tape = record(step, x, nothing)
    x.copy_(torch.randn(2, 4))
    weight.mul_(-1.0)
    assert torch.equal(tape.replay(), step(x))
    assert tape.source.count("r3") == 0, "two registers are enough for a chain"


def test_views_of_fixed_buffers_are_taken_once() -> None:
    weight, x = torch.randn(4, 4), torch.randn(1, 4)
    tape = record(lambda x: x @ weight.t().view(4, 4).t(), x, nothing)
    assert len(tape.source.splitlines()) == 3


def test_several_results_and_special_floats_survive() -> None:
    x = torch.randn(3, 4)

    def step(x: torch.Tensor) -> torch.Tensor:
        values, indices = x.topk(2, dim=-1)
        a, b = torch.where(values > 0, values, float("-inf")).split([1, 1], dim=-1)
        return torch.nan_to_num(a, neginf=-7.0) + b.clamp(min=-1e30) + indices[:, :1]

    tape = record(step, x, nothing)
    x.neg_()
    assert torch.equal(tape.replay(), step(x))


@pytest.mark.parametrize("where", ["token", "position"])
def test_a_frozen_input_is_impossible(tiny, where: str) -> None:
    """CASES 15: the replay reads token and position from device memory."""
    tape, eager = (Decoder.of(ladder()[name], tiny) for name in ("tape", "sdpa"))
    prompt = torch.tensor([[5, 6, 7]])
    for decoder in (tape, eager):
        decoder.prefill(prompt)
        decoder.step(torch.tensor([[1]]))
        if where == "position":
            decoder.rewind(2)
    assert torch.equal(tape.step(torch.tensor([[9]])), eager.step(torch.tensor([[9]])))


def test_recording_leaves_the_decoder_as_it_was(tiny) -> None:
    decoder = Decoder.of(ladder()["tape"], tiny)
    decoder.prefill(torch.tensor([[5, 6, 7]]))
    token, length = decoder.token.clone(), decoder.length
    decoder.warm_up()
    assert torch.equal(decoder.token, token) and decoder.length == length
    assert int(decoder.cache.length) == length


def test_a_reshape_that_copies_is_taken_at_every_replay() -> None:
    """Keys repeated for grouped queries, as transformers does: a copy of the cache, not a view of it."""
    keys, length = torch.zeros(1, 2, 8, 4), torch.zeros((), dtype=torch.int64)

    def step(token: torch.Tensor) -> torch.Tensor:
        keys.index_copy_(2, length[None], torch.ones(1, 2, 1, 4) * token)
        length.add_(1)
        repeated = keys[:, :, None].expand(1, 2, 3, 8, 4).reshape(1, 6, 8, 4)
        return repeated.transpose(1, 2).contiguous().sum((0, 2, 3))

    def restore() -> None:
        keys.zero_()
        length.zero_()

    token = torch.zeros(1, 1, dtype=torch.int64)
    tape = record(step, token, restore)
    for number, value in enumerate((4, 6)):
        token.fill_(value)
        assert tape.replay()[number] == 24 * value  # 6 heads of 4 values
