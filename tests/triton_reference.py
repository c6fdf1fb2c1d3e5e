"""The step in plain float64 PyTorch, cut at the same places as the kernels.

After every operator the buffers that it writes are compared with those of the reference phase, so that a
wrong kernel is named, and not only a wrong token.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from variants.backends.triton_step import ops, steps
from variants.config import GPTConfig, Rope
from variants.model import GPT, random_model
from variants.option import declared
from variants.slots.exact import exact_copy
from variants.slots.precision import PrecisionOption
from variants.slots.static_cache import StaticCache

# of the kind of Llama 3.2 and of Qwen3, smaller: heads apart from the width, which is no round number
LLAMA = GPTConfig(
    n_layer=2,
    n_head=4,
    n_embd=40,
    n_kv_head=2,
    n_ctx=32,
    vocab_size=53,
    n_inner=36,
    norm="rms",
    activation="silu",
    gated=True,
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    rope=Rope(1e4),
)
QWEN3 = replace(
    LLAMA, n_head=6, n_embd=36, head_width=16, qk_norm=True, tied_head=False, layer_norm_epsilon=1e-6
)
QWEN2 = replace(LLAMA, n_head=5, n_embd=30, n_kv_head=1, qkv_bias=True)
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2, "int8": 2e-6}  # relative RMS, of a few layers of small models
PHASES = ("qkv", "attend", "out", "up", "down")


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm().clamp(min=1e-30))


class Reference:
    """One float64 step over a copy of the cache; `after(phase, layer)` gives what that phase wrote."""

    def __init__(self, model: GPT, cache: StaticCache, token: Tensor) -> None:
        self.model, self.n = model, int(cache.length)
        self.k = [k[:, :, : self.n].double() for k in cache.k]
        self.v = [v[:, :, : self.n].double() for v in cache.v]
        self.x, self.turn = model.wte(token[:, 0]), None
        if model.config.rope is None:
            self.x = self.x + model.wpe.weight[self.n]
        else:
            self.turn = model.rope[self.n : self.n + 1, 0]

    def qkv(self, layer: int) -> dict[str, Tensor]:
        block: Any = self.model.blocks[layer]
        q, k, v = block.heads(block.ln_1(self.x)[:, None], self.turn)
        self.q = q
        self.k[layer] = torch.cat([self.k[layer], k], 2)
        self.v[layer] = torch.cat([self.v[layer], v], 2)
        if self.turn is None:
            return {"q": q.flatten(1), "k": k[:, :, 0], "v": v[:, :, 0]}
        unturned = block.qkv(block.ln_1(self.x))[:, : -v[0].numel()]
        return {"q": unturned, "v": v[:, :, 0]}

    def attend(self, layer: int) -> dict[str, Tensor]:
        k, v = self.k[layer], self.v[layer]
        self.o = F.scaled_dot_product_attention(self.q, k, v, enable_gqa=True).flatten(1)
        return {"o": self.o, "k": k[:, :, self.n]}

    def out(self, layer: int) -> dict[str, Tensor]:
        self.x = self.x + self.model.blocks[layer].out(self.o)  # type: ignore[operator, union-attr]
        return {"x": self.x}

    def up(self, layer: int) -> dict[str, Tensor]:
        block: Any = self.model.blocks[layer]
        y = block.up(block.ln_2(self.x))
        if self.model.config.gated:
            self.h = F.silu(y[..., 0::2]) * y[..., 1::2]
        else:
            self.h = F.gelu(y, approximate="tanh")
        return {"h": self.h}

    def down(self, layer: int) -> dict[str, Tensor]:
        self.x = self.x + self.model.blocks[layer].down(self.h)  # type: ignore[operator, union-attr]
        return {"x": self.x}

    def head(self) -> Tensor:
        logits: Tensor = self.model.lm_head(self.model.ln_f(self.x))
        return logits

    def step(self) -> Tensor:
        for layer in range(len(self.model.blocks)):
            for phase in PHASES:
                getattr(self, phase)(layer)
        return self.head()


class Case:
    """A model in one precision, its exact float64 twin, and a cache that holds `length` random tokens.

    Slots past the length hold noise: whatever reads them is wrong by a lot.
    """

    def __init__(
        self,
        config: GPTConfig,
        precision: str,
        length: int,
        batch: int = 1,
        capacity: int = 24,
        seed: int = 0,
    ) -> None:
        model = random_model(config, seed)
        with torch.no_grad():  # GPT-2's small weights leave attention nearly uniform at these widths
            for block in model.blocks:
                block.qkv.weight.mul_(8)  # type: ignore[operator, union-attr]
        stored = declared(PrecisionOption)[precision]
        self.model, self.exact = stored.build(model), exact_copy(model, stored)
        self.precision, self.batch = precision, batch
        self.cache = StaticCache(config, batch, capacity, self.model.like)
        generator = torch.Generator().manual_seed(seed)
        for buffer in (*self.cache.k, *self.cache.v):
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
        self.cache.poison(length, torch.full((config.head_dim,), 1e3).to(buffer))
        self.cache.length.fill_(length)
        self.token = torch.randint(0, config.vocab_size, (batch, 1), generator=generator)

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.precision]

    def reference(self) -> Reference:
        return Reference(self.exact, self.cache, self.token)

    def check_step(self, backend: Any) -> None:
        """One step of `backend` against the reference: logits, token, length, appended keys and values."""
        expected, n, token = self.reference(), int(self.cache.length), self.token.clone()
        with torch.inference_mode():
            logits = backend.step(self.token)
            wanted = expected.step()
        assert relative(logits, wanted) < self.tolerance
        assert torch.equal(self.token[:, 0], logits.argmax(-1)), "the token is the argmax of the logits"
        assert int(self.cache.length) == n + 1
        for mine, theirs in zip((*self.cache.k, *self.cache.v), (*expected.k, *expected.v), strict=True):
            assert relative(mine[:, :, : n + 1], theirs) < self.tolerance
            assert (mine[:, :, n + 1 :].float() == torch.tensor(1e3).to(mine).float()).all(), (
                "a free slot changed"
            )
        assert int(backend.scratch.arrived.abs().max()) == 0 and backend.scratch.counters.tolist() == [
            0,
            0,
            0,
        ], token


def check_phases(case: Case, backend: steps.TritonStep, monkeypatch: Any) -> list[str]:
    """Run one step and compare after every operator; returns the phases seen."""
    reference, seen = case.reference(), []

    def compared(name: str, operator: Any) -> Any:
        def run(*arguments: Any) -> None:
            operator(*arguments)
            layer, phase = divmod(len(seen), len(PHASES))
            phase_name = PHASES[phase] if name != "head" else "head"
            seen.append(phase_name)
            wanted = {"logits": reference.head()} if name == "head" else getattr(reference, phase_name)(layer)
            for buffer, value in wanted.items():
                error = relative(written(backend, buffer, layer, reference.n), value)
                assert error < case.tolerance, f"{phase_name} of layer {layer}: {buffer} off by {error:.1e}"

        return run

    for name in ("qkv", "attend", "residual", "up", "head"):
        monkeypatch.setattr(ops, name, compared(name, getattr(ops, name)))
    with torch.inference_mode():
        backend.step(case.token)
    return seen


def written(backend: steps.TritonStep, buffer: str, layer: int, slot: int) -> Tensor:
    if buffer in ("k", "v"):
        cached: Tensor = getattr(backend.cache, buffer)[layer][:, :, slot]
        return cached
    if buffer == "logits":
        return backend.logits
    values: Tensor = getattr(backend.scratch, buffer)
    return values[0] if buffer == "x" else values
