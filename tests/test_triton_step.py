"""Every kernel in Triton's interpreter against float64, phase by phase, and the step as a whole.

The interpreter proves results, not speed, and not what a compiled kernel does: see docs/gpu.md.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton compiles here, so nothing is interpreted", allow_module_level=True)

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.triton_reference import LLAMA, PHASES, QWEN2, QWEN3, Case, check_phases
from variants.backends.backend import FUSED_TRITON
from variants.backends.triton_step import steps
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError
from variants.executors.capture_rules import check_capturable
from variants.executors.tape import record
from variants.model import random_model
from variants.slots.precision import FLOAT64, INT4

BLOCK = 4  # keys per tile: small, so that a few tokens cross its edges
CONFIGS = {
    "tiny": PRESETS["tiny"],  # 3 heads of 16, 101 tokens
    "grouped": GPTConfig(2, 4, 40, 2, n_ctx=32, vocab_size=53, n_inner=72),  # heads of 10 share keys
    "one-kv-head": GPTConfig(1, 5, 35, 1, n_ctx=32, vocab_size=67, n_inner=33),  # heads of 7
    "untied": GPTConfig(2, 2, 24, n_ctx=40, vocab_size=59, tied_head=False),
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
}
# precision, context, batch: block edges, several splits, an empty cache and the last free slot
AXES = [
    ("float32", 0, 1),
    ("float32", 1, 3),
    ("float32", BLOCK - 1, 1),
    ("float32", BLOCK, 2),
    ("float32", BLOCK + 1, 1),
    ("float32", 23, 1),
    ("bfloat16", 9, 1),
    ("bfloat16", 13, 3),
    ("int8", 9, 1),
    ("int8", 12, 2),
]
QUICK = {"grouped": AXES, "llama": AXES[4:6], "qwen3": AXES[7:9]}  # in the default run


def fused(case: Case, programs: int = 3, **options: object) -> steps.TritonStep:
    return steps.TritonStep(case.model, case.cache, programs=programs, block=BLOCK, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "precision", "length", "batch"),
    [
        pytest.param(config, *axis, marks=() if axis in QUICK.get(config, ()) else pytest.mark.slow)
        for config in CONFIGS
        for axis in AXES
    ],
)
def test_each_kernel_agrees_with_float64(
    config: str, precision: str, length: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(CONFIGS[config], precision, length, batch)
    seen = check_phases(case, fused(case), monkeypatch)
    assert seen == [*PHASES * CONFIGS[config].n_layer, "head"]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("config", ["grouped", "qwen3", pytest.param("qwen2", marks=pytest.mark.slow)])
def test_one_program_in_one_launch_agrees_with_float64(config: str, precision: str, batch: int) -> None:
    case = Case(CONFIGS[config], precision, 9, batch)
    backend = steps.PersistentStep(case.model, case.cache, block=BLOCK)
    for _ in range(2):
        case.check_step(backend)
    backend.verify()


@pytest.mark.parametrize("schedule", ["fused", "one launch"])
def test_batch_of_sixteen(schedule: str) -> None:
    case = Case(CONFIGS["tiny"], "float32", 5, batch=16)
    case.check_step(
        fused(case) if schedule == "fused" else steps.PersistentStep(case.model, case.cache, block=BLOCK)
    )


@settings(max_examples=5)
@given(data=st.data())
def test_random_models(data: st.DataObject) -> None:
    groups, group, head_dim = (data.draw(st.integers(1, n)) for n in (3, 3, 20))
    n_head = groups * group
    config = GPTConfig(
        n_layer=data.draw(st.integers(1, 2)),
        n_head=n_head,
        n_embd=n_head * head_dim,
        n_kv_head=groups,
        n_ctx=24,
        vocab_size=data.draw(st.integers(1, 90)),
        n_inner=data.draw(st.integers(1, 70)),
        tied_head=data.draw(st.booleans()),
    )
    length, batch = data.draw(st.integers(0, 23)), data.draw(st.sampled_from([1, 1, 1, 4]))
    case = Case(config, data.draw(st.sampled_from(["float32", "float32", "int8"])), length, batch)
    case.check_step(fused(case, programs=data.draw(st.integers(1, 6))))


@pytest.mark.parametrize("programs", [1, 2, 5])
def test_ties_go_to_the_lowest_index(programs: int) -> None:
    case = Case(CONFIGS["untied"], "float32", 3)
    with torch.no_grad():
        case.model.lm_head.weight.copy_(case.model.lm_head.weight[:1].expand(59, -1).clone())
    assert int(fused(case, programs).step(case.token).argmax()) == 0 == int(case.token)


def test_logits_that_are_not_numbers_give_a_token_of_the_vocabulary() -> None:
    case = Case(CONFIGS["tiny"], "float32", 3)
    with torch.no_grad():
        case.model.ln_f.bias.fill_(torch.nan)
    fused(case).step(case.token)
    assert 0 <= int(case.token) < 101


@pytest.mark.parametrize(
    "fact",
    [{"windows": (None, 9)}, {"unturned": (True, False)}, {"out_norms": True}, {"embed_scale": 6.0}],
    ids=str,
)
def test_layers_that_the_kernels_do_not_know_are_refused(fact: dict[str, Any]) -> None:
    case = Case(replace(LLAMA, **fact), "float32", 3)
    with pytest.raises(UserError, match="Triton kernels run GPT-2 and Llama's kind"):
        steps.TritonStep(case.model, case.cache)


def test_float64_and_four_bits_are_refused() -> None:
    case = Case(CONFIGS["tiny"], "float32", 3)
    for model in (FLOAT64.build(case.model), INT4.build(case.model)):
        with pytest.raises(UserError, match="Triton backends"):
            steps.TritonStep(model, case.cache)


def test_weights_off_a_16_byte_boundary_are_refused() -> None:
    case = Case(CONFIGS["tiny"], "float32", 3)
    shifted = torch.empty(case.model.ln_f.weight.numel() + 1)[1:]
    case.model.ln_f.weight = torch.nn.Parameter(shifted, requires_grad=False)
    with pytest.raises(UserError, match="16-byte"):
        steps.PersistentStep(case.model, case.cache)


@pytest.mark.parametrize("schedule", ["fused", "one launch"])
def test_the_step_can_be_captured(schedule: str) -> None:
    """The rules of a CUDA graph, on the op tape: no host value, fixed shapes, one operator per kernel."""
    case = Case(CONFIGS["tiny"], "float32", 3)
    backend = (
        fused(case) if schedule == "fused" else steps.PersistentStep(case.model, case.cache, block=BLOCK)
    )
    token, held = case.token.clone(), int(case.cache.length)

    def restore() -> None:
        case.token.copy_(token)
        case.cache.rewind(held)

    with torch.inference_mode():
        check_capturable(backend.step, case.token, restore)
        tape = record(backend.step, case.token, restore)
    launched = [call.func.name().split("::")[1] for call in tape.calls if "triton_step" in call.func.name()]
    per_layer = ["qkv", "attend", "residual", "up", "residual"]
    assert launched == ([*per_layer * 2, "head"] if schedule == "fused" else ["one_step"])
    assert len(tape.calls) == len(launched)
    twin = Case(CONFIGS["tiny"], "float32", 3)
    wanted = [twin.reference().step()]
    logits = tape.replay()
    assert (logits.double() - wanted[0]).abs().max() < 1e-5
    assert int(case.cache.length) == held + 1
    tape.replay()
    assert int(case.cache.length) == held + 2


@pytest.mark.parametrize("schedule", ["fused", "one launch"])
def test_torch_compile_sees_every_kernel(schedule: str) -> None:
    case = Case(CONFIGS["tiny"], "float32", 3)
    backend = (
        fused(case) if schedule == "fused" else steps.PersistentStep(case.model, case.cache, block=BLOCK)
    )
    seen: list[str] = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    expected = case.reference()
    logits = torch.compile(backend.step, backend=compiler, fullgraph=True)(case.token)
    assert len(seen) == (11 if schedule == "fused" else 1)
    assert (logits.double() - expected.step()).abs().max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fused Triton", "one launch"])
def test_the_gate_passes(backend: str) -> None:
    """The proof that a rung needs before it may have a time, over the interpreter."""
    from profiling.gate import Gate
    from variants.decoder import Decoder
    from variants.ladder import ladder

    kind = {"fused Triton": steps.TritonStep, "one launch": steps.PersistentStep}[backend]
    interpreted = replace(FUSED_TRITON, build=lambda modules, _: kind(modules.model, modules.static_cache()))
    model = random_model(CONFIGS["grouped"], 1)
    variant = ladder()["sdpa"].then("interpreted", "for this test", backend=interpreted)
    result = Gate(model, "float32", steps=6, forced=14).check(Decoder.of(variant, model))
    assert (result.status, result.reason) == ("pass", "")
