"""Faults in numerics that random weights never exercise, and in what eight bits of a weight become."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from profiling.gate.faults import around
from profiling.gate.planted.hunt import NUMERICS, SCALES, cached, fixed_shape, planted
from variants.decoder import Decoder
from variants.ladder import BASELINE
from variants.model import GPT
from variants.slots.precision import INT8
from variants.slots.quantised import Int8Linear
from variants.spec import Variant


def own_model(decoder: Decoder) -> GPT:
    """Weights and modules of its own: others share them."""
    modules = decoder.our_modules
    modules.model = copy.deepcopy(modules.model)
    return modules.model


# -- numerics ---------------------------------------------------------------------------------


def _attention(decoder: Decoder, weights: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Attention with `weights(scores [B,H,T,S], visible)` of this kind."""

    def attend(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        shared_by = q.size(1) // k.size(1)
        k, v = k.repeat_interleave(shared_by, dim=1), v.repeat_interleave(shared_by, dim=1)
        return weights(q @ k.transpose(-1, -2) / q.size(-1) ** 0.5, visible) @ v

    decoder.our_modules.attention = attend


def _softmax(scores: Tensor, visible: Tensor) -> Tensor:
    return scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)


def softmax_without_its_maximum(decoder: Decoder) -> None:
    def weights(scores: Tensor, visible: Tensor) -> Tensor:
        powers = scores.exp() * visible
        return powers / powers.sum(dim=-1, keepdim=True)

    _attention(decoder, weights)


def scores_cut_at_20(decoder: Decoder) -> None:
    _attention(decoder, lambda scores, visible: _softmax(scores.clamp(-20, 20), visible))


def scores_divided_by_another_width(decoder: Decoder) -> None:
    _attention(decoder, lambda scores, visible: _softmax(scores * 0.95, visible))


def hidden_scores_only_made_small(decoder: Decoder) -> None:
    """-20 instead of minus infinity: enough for random weights, where unused slots hold zeros."""
    _attention(decoder, lambda scores, visible: torch.where(visible, scores, -20.0).softmax(dim=-1))


def a_zero_that_is_added_to_the_sum(decoder: Decoder) -> None:
    """exp(0) of padding counts in the softmax's sum."""

    def weights(scores: Tensor, visible: Tensor) -> Tensor:
        padded = F.pad(scores.masked_fill(~visible, float("-inf")), (0, 1))
        return padded.softmax(dim=-1)[..., :-1]

    _attention(decoder, weights)


def _normed(decoder: Decoder, forward: Callable[[Any, Tensor], Tensor]) -> None:
    """Every norm over the width computed by `forward(norm, x)`."""
    model: Any = own_model(decoder)
    for norm in [model.ln_f, *(norm for block in model.blocks for norm in (block.ln_1, block.ln_2))]:
        norm.forward = lambda x, norm=norm: forward(norm, x)


def variance_in_one_pass(decoder: Decoder) -> None:
    """E[x^2] - E[x]^2 in the activations' own precision."""

    def forward(norm: Any, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.square().mean(dim=-1, keepdim=True) - mean.square()
        scaled: Tensor = (x - mean) / (variance.clamp(min=0) + norm.eps).sqrt() * norm.weight + norm.bias
        return scaled

    _normed(decoder, forward)


def another_epsilon(decoder: Decoder) -> None:
    _normed(decoder, lambda norm, x: F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, 1e-6))


def outliers_cut_before_a_norm(decoder: Decoder) -> None:
    _normed(
        decoder,
        lambda norm, x: F.layer_norm(x.clamp(-20, 20), x.shape[-1:], norm.weight, norm.bias, norm.eps),
    )


def gelu_with_erf(decoder: Decoder) -> None:
    model: Any = own_model(decoder)
    for block in model.blocks:
        block.activated = F.gelu


def norms_of_a_block_swapped(decoder: Decoder) -> None:
    """The one before attention and the one before the MLP, as a wrong name in a checkpoint does it."""
    model: Any = own_model(decoder)
    for block in model.blocks:
        block.ln_1, block.ln_2 = block.ln_2, block.ln_1


def last_norm_left_out(decoder: Decoder) -> None:
    own_model(decoder).ln_f.forward = lambda x: x


def sum_taken_behind_the_norm(decoder: Decoder) -> None:
    """Post-norm: what goes round a block is what its norm gave."""
    model: Any = own_model(decoder)

    def forward(block: Any, x: Tensor, layer: int, attend: Any, turn: Any) -> Tensor:
        x = block.ln_1(x)
        x = x + block.out(attend(layer, *block.heads(x, turn)).transpose(1, 2).flatten(2))
        hidden: Tensor = block.down(block.activated(block.up(block.ln_2(x))))
        return x + hidden

    for block in model.blocks:
        block.forward = partial(forward, block)


def _chosen(decoder: Decoder, choose: Callable[[Tensor], Tensor]) -> None:
    def step(original: Any, token: Tensor) -> Tensor:
        logits: Tensor = original(token)
        token.copy_(choose(logits)[:, None])
        return logits

    around(decoder.backend, "step", step)


def argmax_that_skips_the_first_entry(decoder: Decoder) -> None:
    _chosen(decoder, lambda logits: logits[:, 1:].argmax(dim=-1) + 1)


def argmax_that_skips_the_last_entry(decoder: Decoder) -> None:
    _chosen(decoder, lambda logits: logits[:, :-1].argmax(dim=-1))


# -- weights in eight bits --------------------------------------------------------------------


def _last_up(decoder: Decoder) -> Int8Linear:
    linear = decoder.our_modules.model.blocks[-1].up
    assert isinstance(linear, Int8Linear)
    return linear


def one_rows_scale_doubled(decoder: Decoder) -> None:
    _last_up(decoder).scale[5].mul_(2)


def neighbours_scale(decoder: Decoder) -> None:
    scale = _last_up(decoder).scale
    scale.copy_(scale.roll(1))


def one_weight_rounded_the_other_way(decoder: Decoder) -> None:
    """Of one row; a step of 127."""
    row = _last_up(decoder).weight[5]
    row.sub_(row.sign())


def bias_lost_in_quantisation(decoder: Decoder) -> None:
    _last_up(decoder).register_parameter("bias", None)


# -- activations in eight bits ----------------------------------------------------------------


def up_to_128(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest becomes 128, which eight bits read as -128."""
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 128
    return _wrapped(x / scale), scale


def by_the_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Without its sign: negative ones beyond it wrap."""
    scale = x.amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127
    return _wrapped(x / scale), scale


def _wrapped(x: Tensor) -> Tensor:
    return x.round().to(torch.int64).to(torch.int8)


def _activations(decoder: Decoder, quantise: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    """Of every layer."""

    def forward(linear: Int8Linear, x: Tensor) -> Tensor:
        q, scale = quantise(x)
        y = (q.float() @ linear.weight.float().t()) * (scale * linear.scale)
        return y if linear.bias is None else y + linear.bias

    for module in decoder.our_modules.model.modules():
        if isinstance(module, Int8Linear):
            module.forward = lambda x, linear=module: forward(linear, x)  # type: ignore[method-assign,misc]


def activations_up_to_128(decoder: Decoder) -> None:
    _activations(decoder, up_to_128)


def activations_scaled_by_their_largest(decoder: Decoder) -> None:
    _activations(decoder, by_the_largest)


def _exact(variant: Variant) -> bool:
    """Fine arithmetic: what these lose is below the rounding of any other.

    And below what plain eager may err, which is held to a multiple of the rounding unit only.
    """
    fine = variant.precision.rounding < 2.0**-20 and not variant.kv.narrow
    return cached(variant) and fine and variant.name != BASELINE


def _int8(variant: Variant) -> bool:
    return cached(variant) and variant.precision is INT8


PLANTED = (
    *planted(
        NUMERICS,
        cached,
        softmax_without_its_maximum,
        scores_cut_at_20,
        a_zero_that_is_added_to_the_sum,
        another_epsilon,
        outliers_cut_before_a_norm,
        gelu_with_erf,
        norms_of_a_block_swapped,
        last_norm_left_out,
        sum_taken_behind_the_norm,
        argmax_that_skips_the_first_entry,
        argmax_that_skips_the_last_entry,
    ),
    *planted(NUMERICS, fixed_shape, hidden_scores_only_made_small),
    *planted(NUMERICS, _exact, scores_divided_by_another_width, variance_in_one_pass),
    *planted(
        SCALES,
        _int8,
        one_rows_scale_doubled,
        neighbours_scale,
        one_weight_rounded_the_other_way,
        bias_lost_in_quantisation,
        activations_up_to_128,
        activations_scaled_by_their_largest,
    ),
)
