"""The rules of a capture, without a device: fixed-shape steps keep them, and a refusal leaves no trace."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from variants.backends.backend import MODULES
from variants.decoder import Decoder
from variants.executors.capture_rules import CaptureError, check_capturable
from variants.ladder import ladder
from variants.model import GPT
from variants.slots.pages import DEFAULT

FIXED = [v.name for v in ladder().values() if v.fixed_shape and v.backend is MODULES and v.pages is DEFAULT]


@pytest.mark.parametrize("name", FIXED)
def test_every_fixed_shape_step_can_be_captured(tiny: GPT, name: str) -> None:
    """The executor does not matter: what is checked is the backend that it would record."""
    decoder = Decoder.of(ladder()[name], tiny)
    decoder.prefill(torch.tensor([[5, 3, 9]]))
    token, logits = decoder.token.clone(), None

    def restore() -> None:
        decoder.cache.rewind(3)
        decoder.token.copy_(token)

    with torch.inference_mode():
        check_capturable(decoder.modules.step, decoder.token, restore)
        logits = decoder.modules.step(decoder.token)
    assert logits.shape == (1, 101) and torch.isfinite(logits).all(), "the check has left the state as it was"


def reads_back(token: Tensor) -> Tensor:
    token.add_(1)
    return token * int(token)


def grows(token: Tensor) -> Tensor:
    token.add_(1)
    return torch.ones(1, 3)[:, torch.tensor([True, False, True])].masked_select(token > 0)


def compares(token: Tensor) -> Tensor:
    token.add_(1)
    return token if torch.equal(token, token) else token + 1


def waits_twice(token: Tensor) -> Tensor:
    token.add_(1)
    return token.cumsum(0)[: token.max().item()]


@pytest.mark.parametrize("step", [reads_back, grows, compares, waits_twice], ids=lambda f: f.__name__)
def test_a_refused_step_is_undone(step) -> None:
    token = torch.zeros(1, 1, dtype=torch.int64)
    with pytest.raises(CaptureError) as refused:
        check_capturable(step, token, lambda: token.zero_())
    assert int(token) == 0
    assert "\n" not in str(refused.value), "one line"


@pytest.mark.parametrize("step", [reads_back, grows], ids=lambda f: f.__name__)
def test_dependence_on_data_is_said_only_of_what_depends_on_it(step) -> None:
    with pytest.raises(CaptureError, match=r"needs a value from the device|depends on data"):
        check_capturable(step, torch.zeros(1, 1, dtype=torch.int64), lambda: None)


def test_an_operation_that_needs_another_type_is_named_as_that() -> None:
    """As experts in one grouped product were, whose shapes are known only in bfloat16."""

    def other_type(token: Tensor) -> Tensor:
        if type(token) is not Tensor:  # tensors without data
            raise RuntimeError("grouped product wants bfloat16")
        return token

    with pytest.raises(CaptureError, match=r"^not known without data: RuntimeError: grouped product wants"):
        check_capturable(lambda t: other_type(torch.add(t, 1)), torch.zeros(1, 1), lambda: None)


def test_an_ordinary_bug_in_the_step_is_not_called_a_rule() -> None:
    def broken(token: Tensor) -> Tensor:
        raise KeyError("no such layer")

    with pytest.raises(KeyError, match="no such layer"):
        check_capturable(broken, torch.zeros(1, 1), lambda: None)
