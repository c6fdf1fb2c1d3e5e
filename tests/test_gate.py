"""The gate passes what is right, on odd models and precisions, and names what is wrong."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from profiling.gate import CHECKS, Errors, Gate, Oracle, checks
from profiling.gate.evidence import Mismatch
from profiling.gate.faults import masked
from profiling.gate.oracle import agreement_with, greedy_agreement
from tests.conftest import CONFIGS
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import GPT, random_model
from variants.slots.kv import AS_PRECISION
from variants.slots.precision import FLOAT32
from variants.slots.static_cache import StaticCache

RUNS_HERE = [v.name for v in ladder().values() if not v.why_not("cpu") and not v.executor.compiles]

COMPILED = [v.name for v in ladder().values() if v.executor.compiles and not v.why_not("cpu")]
EXACT = [v.name for v in map(ladder().get, RUNS_HERE) if (v.precision, v.kv) == (FLOAT32, AS_PRECISION)]


LONG = Gate(random_model(PRESETS["shallow"], 1), "float32", contexts=(700,), capacity=1024)


@pytest.fixture(scope="module")
def gates() -> dict:
    return {}


def gate_for(gates: dict, config: str, precision: str) -> Gate:
    key = config, precision
    if key not in gates:
        dtype = getattr(torch, precision)
        gates[key] = Gate(random_model(CONFIGS[config], 1, dtype), precision, steps=20, forced=20)
    return gates[key]


@pytest.mark.parametrize("config", list(CONFIGS))
@pytest.mark.parametrize("name", RUNS_HERE)
def test_every_rung_passes_on_odd_models(gates: dict, name: str, config: str) -> None:
    gate = gate_for(gates, config, "float32")
    result = gate.check(Decoder.of(ladder()[name], gate.model))
    assert (result.status, result.reason) == ("pass", "")
    assert [check.check for check in result.checks] == [*CHECKS, *checks.SMALL]


@pytest.mark.parametrize("precision", ["float64", "bfloat16"])
@pytest.mark.parametrize("name", ["naive", "cat", "sdpa", "tape"])
def test_the_same_holds_at_other_precisions(gates: dict, name: str, precision: str) -> None:
    gate = gate_for(gates, "tiny", precision)
    result = gate.check(Decoder.of(ladder(precision)[name], gate.model))
    assert (result.status, result.reason) == ("pass", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiled_rungs_pass_over_several_buckets(name: str) -> None:
    model = random_model(CONFIGS["one-kv-head"], 1)
    decoder = Decoder.of(ladder()[name], model, buckets=(16, 33))
    result = Gate(model, "float32", steps=20, forced=14).check(decoder)
    assert (result.status, result.reason) == ("pass", "")


@pytest.mark.parametrize("name", ["static", "tape"])
def test_a_run_with_several_rows_and_buckets_passes(tiny, name: str) -> None:
    decoder = Decoder.of(ladder()[name], tiny, batch=2, buckets=(8, 24, 64))
    result = Gate(tiny, "float32", batch=2, steps=50).check(decoder)
    assert (result.status, result.reason) == ("pass", "")


class WrongPosition(Decoder):
    """Positions start at 0 again for every step (CASES 4)."""

    def advance(self):
        self.model.wpe.weight  # noqa: B018
        begin = self.cache.begin

        def first_position(tokens):
            window = begin(tokens)
            return window._replace(positions=torch.zeros_like(window.positions))

        self.cache.begin = first_position
        try:
            return super().advance()
        finally:
            self.cache.begin = begin


class LooksTooFar(StaticCache):
    """Reads a neighbour's slot: unused slots reach the output."""

    def append(self, layer, k, v, where):
        keys, values = super().append(layer, k, v, where)
        return keys, values + 1e-3 * values[:, :, -1:]


def test_a_wrong_position_is_caught(tiny) -> None:
    result = Gate(tiny, "float32", steps=20).check(WrongPosition.of(ladder()["sdpa"], tiny))
    assert result.status == "fail" and result.reason


def test_a_read_past_the_length_is_caught_by_the_poison(tiny) -> None:
    decoder = Decoder.of(ladder()["sdpa"], tiny)
    decoder.cache.__class__ = LooksTooFar
    gate = Gate(tiny, "float32", steps=20)
    outcome = gate.check_only(decoder, "unused slots")
    assert outcome.status == "fail" and "noise" in outcome.reason


@pytest.mark.parametrize("name", ["sdpa", "bf16", "int8", "onelaunch-int8", "onelaunch-int4"])
def test_weights_that_are_stored_worse_than_they_could_be_fail_though_the_function_agrees(tiny, name) -> None:
    """The truth is computed from what is stored: only this check looks before that."""
    variant = ladder()[name]
    if why := variant.why_not("cpu"):
        pytest.skip(why)

    def worse(model: GPT) -> GPT:
        rough = copy.deepcopy(model)
        rough.blocks[1].up.weight[3].mul_(1.02)
        return variant.precision.build(rough)

    poor = replace(variant, precision=replace(variant.precision, build=worse))
    gate = Gate(tiny, "float32", steps=8, forced=8)
    assert gate.check(Decoder.of(variant, tiny)).status == "pass"
    decoder = Decoder.of(poor, tiny)
    failing = [n for n in CHECKS if gate.check_only(decoder, n).status == "fail"]
    assert failing == ["weights"]


def lost_from(first: int, end: int, decoder: Decoder) -> None:
    """Queries at these positions do not see slot 3."""
    decoder.our_modules.mask.tables[None][..., first:end, 3] = False


def last_from(first: int, end: int, decoder: Decoder) -> None:
    """Steps at these positions feed back the last entry of the vocabulary."""
    step = decoder.backend.step

    def wrong(token: torch.Tensor) -> torch.Tensor:
        logits = step(token)
        if first < decoder.length + 1 <= end:
            token.fill_(decoder.model.config.vocab_size - 1)
        return logits

    decoder.backend.step = wrong


def overwritten_from(first: int, end: int, decoder: Decoder) -> None:
    """Steps at these positions also write to slot 5, from the next step on it is wrong."""
    step = decoder.backend.step

    def wrong(token: torch.Tensor) -> torch.Tensor:
        logits = step(token)
        if first < decoder.length + 1 <= end:
            decoder.cache.v[0][:, :, 5] += 1e-7
        return logits

    decoder.backend.step = wrong


@pytest.mark.parametrize(
    ("fault", "said", "also"),
    [
        (lost_from, "context 50, keys and values of layer 1", ["drafts"]),
        (last_from, "not the argmax", ["drafts"]),
        (overwritten_from, "earlier tokens have changed", []),
    ],
)
def test_what_is_wrong_at_one_timed_context_only_is_seen_there_and_nowhere_else(
    tiny, fault, said, also
) -> None:
    gate, other = (Gate(tiny, "float32", steps=20, forced=20, contexts=n) for n in ((50,), ()))
    decoder = Decoder.of(ladder()["sdpa"], tiny)
    fault(50, 56, decoder)
    failing = [name for name in CHECKS if gate.check_only(decoder, name).status == "fail"]
    assert (
        failing == ["contexts", "every slot", *also] and said in gate.check_only(decoder, "contexts").reason
    )
    assert other.check(decoder).status == "pass"


def test_the_last_slot_of_every_bucket_is_entered(tiny) -> None:
    decoder = Decoder.of(ladder()["sdpa"], tiny, buckets=(52, 64))
    lost_from(51, 52, decoder)
    failing = [n for n in CHECKS if Gate(tiny, "float32", steps=20).check_only(decoder, n).status == "fail"]
    assert failing == ["contexts", "every slot", "drafts"]


def hidden(at: int, slot: int, decoder: Decoder) -> None:
    """The query at this position does not see this slot."""
    masked(decoder, lambda visible, queries, keys: visible & ~((queries == at) & (keys == slot)))


@pytest.mark.parametrize("rung", ["int8", "bf16", "kv-int8", "sdpa"])
@pytest.mark.parametrize("slot", [0, 3, 255, 256, 500, 698, 699, 700])
def test_a_slot_of_hundreds_that_is_lost_at_one_context_shows_in_every_precision(
    rung: str, slot: int
) -> None:
    """Which attention that is spread over all of them hides; the last is the token's own."""
    decoder = Decoder.of(ladder()[rung], LONG.model, buckets=(300, 1024))
    assert LONG.check_only(decoder, "every slot").status == "pass"
    hidden(700, slot, decoder)
    assert LONG.check_only(decoder, "every slot").status == "fail"


def test_a_cache_that_counts_otherwise_than_the_decoder_fails(tiny) -> None:
    decoder = Decoder.of(ladder()["sdpa"], tiny)
    held = decoder.cache.held
    decoder.cache.held = lambda: held() + (decoder.length == 52)
    gate = Gate(tiny, "float32", steps=20, contexts=(50,))
    assert "the cache's own length is 53" in gate.check(decoder).reason


def test_beginnings_of_a_learned_text_have_the_truth_of_a_whole_pass(tiny) -> None:
    text, other = (torch.randint(101, (1, 40), generator=torch.Generator().manual_seed(n)) for n in (1, 2))
    learned, fresh = (Oracle(tiny, FLOAT32, AS_PRECISION, 1) for _ in range(2))
    learned.learn(text)
    for tokens in (text, text[:, :17], torch.cat([text[:, :17], other[:, :9]], dim=1)):
        ours, right = learned.answer(tokens, 5, 3), fresh.answer(tokens, 5, 3)
        assert ours.logits.shape == (1, tokens.size(1) - 5, 101)
        assert torch.allclose(ours.logits, right.logits, rtol=0, atol=1e-13)
        for (k, v), (right_k, right_v) in zip(ours.kv, right.kv, strict=True):
            assert torch.allclose(k, right_k, rtol=0, atol=1e-13)
            assert torch.allclose(v, right_v, rtol=0, atol=1e-13)


@pytest.mark.parametrize("brief", [True, False])
def test_a_reference_that_is_not_finite_proves_nothing(brief: bool) -> None:
    model = random_model(CONFIGS["tiny"], 1)
    model.blocks[1].down.weight[0, 0] = float("nan")
    result = Gate(model, "float32", steps=8, brief=brief).check(Decoder.of(ladder()["cat"], model))
    assert result.status == "fail"
    with pytest.raises(Mismatch, match="not finite"):
        Oracle(model, FLOAT32, AS_PRECISION, 1).logits(torch.tensor([[1, 2]]))


def test_a_crash_is_a_failure_with_its_reason(tiny) -> None:
    decoder = Decoder.of(ladder()["sdpa"], tiny)
    decoder.backend.step = lambda token: 1 / 0  # type: ignore[method-assign]
    result = Gate(tiny, "float32", steps=4).check(decoder)
    assert result.status == "fail" and "ZeroDivisionError" in result.reason


def test_a_tie_is_no_mismatch_and_a_mismatch_is_located() -> None:
    truth = torch.zeros(1, 3, 3, dtype=torch.float64)
    truth[0, 0] = torch.tensor([1.0, 1.0 + 1e-9, 0.0], dtype=torch.float64)  # the next token could be 0 or 1
    truth[0, 1, 2] = 5.0
    assert greedy_agreement(torch.tensor([[0, 0, 0, 2]]), 2, truth, tie=1e-6) == (None, 1)
    assert greedy_agreement(torch.tensor([[0, 0, 0, 1]]), 2, truth, tie=1e-6) == (3, 1)


def test_drift_of_equal_logits_is_nothing_and_of_swapped_ones_is_seen() -> None:
    logits = torch.randn(1, 5, 7, generator=torch.Generator().manual_seed(0)).double()
    same = agreement_with(logits.float(), logits)
    assert same.top1_agreement == 1.0 and same.first_divergence is None
    other = agreement_with(-logits, logits)
    assert other.top1_agreement == 0.0 and other.first_divergence == 0
    assert other.mean_kl_nats > 0.1 and other.margin_there > 0


def test_errors_with_nan_are_infinite() -> None:
    got = torch.tensor([1.0, float("nan")])
    assert Errors.of(got, torch.zeros(2, dtype=torch.float64)).max == float("inf")


@pytest.mark.parametrize("name", RUNS_HERE)
def test_ragged_rows_and_empty_input_are_refused(tiny, name: str) -> None:
    """CASES 9: rows of different lengths cannot be expressed; the refusal says what to do."""
    decoder = Decoder.of(ladder()[name], tiny, batch=2)
    for bad in (
        [[1, 2, 3], [4, 5]],
        torch.zeros(3, 4, dtype=torch.int64),
        torch.zeros(2, 0, dtype=torch.int64),
    ):
        with pytest.raises(UserError):
            decoder.prefill(bad)
    assert decoder.length == 0


def test_rewind_beyond_what_is_held_is_refused(tiny) -> None:
    decoder = Decoder.of(ladder()["static"], tiny)
    decoder.prefill(torch.zeros(1, 5, dtype=torch.int64))
    with pytest.raises(UserError, match="cannot rewind to 6"):
        decoder.rewind(6)


@pytest.mark.parametrize("name", [n for n in EXACT if n != "naive"])
def test_loaded_keys_and_values_continue_like_a_prefill(tiny, name: str) -> None:
    tokens = torch.arange(9)[None] % 7
    source = Decoder.of(ladder()["cat"], tiny)
    source.prefill(tokens)
    decoder = Decoder.of(ladder()[name], tiny)
    decoder.load(tokens, [source.cache.contents(layer, 9) for layer in range(tiny.config.n_layer)])
    following = torch.tensor([[3]])
    assert torch.allclose(decoder.step(following), source.step(following), atol=1e-6)
