"""Slot `backend` in Triton: `TritonStep` (a kernel per phase) and `PersistentStep` (one persistent kernel).

Both keep the contract of `variants.backends.backend.Backend` over the buffers of a static cache. They run on
CUDA, or in Triton's interpreter (TRITON_INTERPRET=1) on a CPU, which proves results and not speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import torch
import triton
from torch import Tensor

from variants.backends.backend import Backend
from variants.backends.triton_step import interpreter, ops, plan
from variants.backends.triton_step.persistent import STAMPS_PER_LAYER
from variants.backends.triton_step.plan import Ahead, Geometry, Setting
from variants.config import GPTConfig
from variants.errors import UserError
from variants.model import GPT
from variants.slots.static_cache import StaticCache

if triton.knobs.runtime.interpret:
    interpreter.correct()

POLLS = 1 << 22  # of one program in one step: seconds on a device, where a whole step takes less than 1 ms
ALIGNMENT_BYTES = 16  # of a 128-bit load


class Weights(NamedTuple):
    """What a kernel needs of a projection, in the order of its arguments."""

    matrix: Tensor  # [out,in], float32, bfloat16 or int8
    scale: Tensor | None  # float32 [out], for int8
    bias: Tensor  # [out]
    gain: Tensor  # [in], of the norm before it
    shift: Tensor


def weights(projection: Any, missing: Tensor, norm: Any = None) -> Weights:
    """The tensors of a projection as they lie in the model; `missing` stands where it has none."""
    weight, bias = projection.weight, projection.bias
    scale = projection.scale if weight.dtype == torch.int8 else None
    gain, shift = (None, None) if norm is None else (norm.weight, getattr(norm, "bias", None))
    bias, gain, shift = (missing if one is None else one for one in (bias, gain, shift))
    return Weights(weight, scale, bias, gain, shift)


class Scratch(NamedTuple):
    """Buffers between phases, in the order of the persistent kernel's arguments."""

    x: Tensor  # float32 [programs,B,C]: copies of the embedding, of which the first is the residual stream
    q: Tensor  # float32 [B,H*D], or [B,(H+Hkv)*D]: keys that are still to be turned stand behind
    o: Tensor  # float32 [B,H*D], attention's output
    h: Tensor  # float32 [B,F]
    partial: Tensor  # float32 [B*H,splits,D], a split's output
    weight: Tensor  # float32 [B*H,splits], its log-sum-exp
    value: Tensor  # float32 [B,programs], a program's best logit
    place: Tensor  # int32 [B,programs], and where
    arrived: Tensor  # int32 [B*H], splits that have finished
    counters: Tensor  # int32 [3]: programs that have finished, grid barrier, watchdog


def scratch(g: Geometry, device: torch.device) -> Scratch:
    """New buffers: floats are NaN, so that reading what no phase has written shows, and integers 0."""

    def floats(*shape: int) -> Tensor:
        return torch.full(shape, torch.nan, device=device)

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=torch.int32, device=device)

    B, C, pairs = g.batch, g.out.rows, g.batch * g.n_head
    return Scratch(
        x=floats(g.programs, B, C),
        q=floats(B, (g.n_head + g.n_kv_head * g.rotary) * g.head_dim),
        o=floats(B, g.out.columns),
        h=floats(B, g.down.columns),
        partial=floats(pairs, g.splits, g.head_dim),
        weight=floats(pairs, g.splits),
        value=floats(B, g.programs),
        place=zeros(B, g.programs),
        arrived=zeros(pairs),
        counters=zeros(3),
    )


def resident_programs(device: torch.device) -> int:
    """Programs that run at once, one per multiprocessor: 256 threads with up to 255 registers each fit."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    if not triton.knobs.runtime.interpret:
        raise UserError(
            "the Triton backends need a CUDA device; on a CPU they run in Triton's interpreter only "
            "(set TRITON_INTERPRET=1 before starting, to check results)"
        )
    return 1  # it runs programs one after another, so a second one would never reach a barrier


def has_dependent_launches(device: torch.device) -> bool:
    """Whether kernels can overlap their starts: Hopper and later.

    AMD's chips come as device type cuda too, and (9, 0) is another maker's there.
    """
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


def largest_matrix_bytes(model: GPT) -> int:
    """Of the matrices in a layer."""
    config = model.config
    inner = config.n_inner * (2 if config.gated else 1)
    return config.n_embd * inner * model.lm_head.weight.element_size()


def ahead_on(model: GPT) -> Ahead:
    """How the one launch asks for the next matrices, on the device of this model."""
    if model.device.type != "cuda" or torch.version.hip is not None:
        return Ahead.NONE
    cache_bytes = torch.cuda.get_device_properties(model.device).L2_cache_size
    return plan.ahead(largest_matrix_bytes(model), cache_bytes, has_dependent_launches(model.device))


def _refuse_layers_of_other_kinds(config: GPTConfig) -> None:
    """The kernels take every layer alike. Raises UserError for what differs between them, or comes on top."""
    if not config.alike:
        raise UserError(
            "the Triton kernels run GPT-2 and Llama's kind: no windows shorter than the run, layers without "
            "positions, norms behind attention and MLP, or scaled embeddings"
        )


class _Step(Backend):
    """What both schedules share: geometry, buffers, and the model's tensors as they lie in memory."""

    def __init__(
        self, model: GPT, cache: StaticCache, programs: int, block: int, ahead: Ahead = Ahead.NONE
    ) -> None:
        config, device = model.config, model.device
        _refuse_layers_of_other_kinds(config)
        if model.dtype not in (torch.float32, torch.bfloat16):
            raise UserError(f"the Triton backends run float32 and bfloat16 activations, not {model.dtype}")
        if model.lm_head.weight.dtype not in (torch.float32, torch.bfloat16, torch.int8):
            raise UserError("the Triton backends read float32, bfloat16 and int8 weights, not int4")
        batch, _, capacity, _ = cache.k[0].shape
        self.model, self.cache = model, cache
        no_bias = model.like.new_zeros(config.vocab_size if config.qkv_bias else 1)
        self.head = weights(model.lm_head, no_bias, model.ln_f)
        blocks, missing = cast("Iterable[Any]", model.blocks), model.like
        self.layers = [
            {
                "qkv": weights(block.qkv, missing, block.ln_1),
                "out": weights(block.out, missing),
                "up": weights(block.up, missing, block.ln_2),
                "down": weights(block.down, missing),
            }
            for block in blocks
        ]
        norms = [(block.q_norm, block.k_norm) for block in blocks]
        self.norms = [[missing if norm is None else norm.weight for norm in pair] for pair in norms]
        setting = Setting.of(
            config,
            capacity,
            batch,
            weight_bytes=self.head.matrix.element_size(),
            half=model.dtype == torch.bfloat16,
            programs=programs,
            block=block,
            ahead=ahead,
        )
        self.setting = list(setting)
        self.epsilon = config.layer_norm_epsilon
        self.geometry = ops.geometry(self.setting, self.epsilon)
        self.scratch = scratch(self.geometry, device)
        self.logits = torch.full((batch, config.vocab_size), torch.nan, dtype=model.dtype, device=device)


class TritonStep(_Step):
    """A kernel per phase: 5 per layer and the head. `pdl`: overlap their starts (default: where possible)."""

    def __init__(
        self,
        model: GPT,
        cache: StaticCache,
        *,
        programs: int | None = None,
        block: int = 64,
        pdl: bool | None = None,
    ) -> None:
        super().__init__(model, cache, programs or resident_programs(model.device), block)
        self.pdl = has_dependent_launches(model.device) if pdl is None else pdl

    def step(self, token: Tensor) -> Tensor:
        """One step from `token` int64 [B,1], which it overwrites; logits [B,V], valid until the next step."""
        s, cache, model = self.scratch, self.cache, self.model
        planned = (self.setting, self.epsilon)
        for layer, w in enumerate(self.layers):
            keys, turns = (cache.k[layer], cache.v[layer]), (model.positions, *self.norms[layer])
            embedding = (token, cache.length, model.wte.weight, model.positions)
            ops.qkv(*embedding, s.x, *w["qkv"], s.q, *keys, *planned, layer == 0, self.pdl)
            scratch = (s.o, s.partial, s.weight, s.arrived)
            ops.attend(cache.length, *turns, s.q, *keys, *scratch, *planned, self.pdl)
            ops.residual(s.x, s.o, *w["out"][:3], *planned, False, self.pdl)
            ops.up(s.x, *w["up"], s.h, *planned, self.pdl)
            ops.residual(s.x, s.h, *w["down"][:3], *planned, True, self.pdl)
        best = (s.value, s.place, s.counters)
        ops.head(token, cache.length, s.x, *self.head, self.logits, *best, *planned, self.pdl)
        return self.logits


class PersistentStep(_Step):
    """One persistent kernel, of at most as many programs as are `resident` at once (asked of the device).

    `cooperative`: launched so that the driver refuses a grid of which a part would have to wait. `ahead`: how
    the next matrices are asked for in the second-level cache (default: as suits the device). `stamped`: a
    step leaves the device's clock in `stamps` int64 [programs,10*layers+2], see `persistent`.
    """

    def __init__(
        self,
        model: GPT,
        cache: StaticCache,
        *,
        programs: int | None = None,
        resident: int | None = None,
        block: int = 64,
        cooperative: bool = True,
        polls: int = POLLS,
        ahead: Ahead | None = None,
        stamped: bool = False,
    ) -> None:
        most = resident or resident_programs(model.device)
        ahead = ahead_on(model) if ahead is None else ahead
        super().__init__(model, cache, min(programs or most, most), block, ahead)
        self.cooperative, self.polls = cooperative, polls
        shape = (self.geometry.programs, STAMPS_PER_LAYER * model.config.n_layer + 2)
        self.stamps = torch.zeros(shape, dtype=torch.int64, device=model.device) if stamped else None
        self.table = torch.tensor(self._addresses(), dtype=torch.int64, device=model.device)

    def _addresses(self) -> list[list[int]]:
        """Where everything lies, in the columns of `persistent`."""
        rows: list[list[Tensor | None]] = [
            [*(t for w in layer.values() for t in w), k, v, *norms]
            for layer, k, v, norms in zip(self.layers, self.cache.k, self.cache.v, self.norms, strict=True)
        ]
        rows.append([*self.head, *[None] * (len(rows[0]) - len(self.head))])
        addresses = [[0 if t is None else t.data_ptr() for t in row] for row in rows]
        if any(address % ALIGNMENT_BYTES for row in addresses for address in row):
            raise UserError("the one-launch kernel needs weights and caches on 16-byte boundaries")
        return addresses

    def step(self, token: Tensor) -> Tensor:
        """One step from `token` int64 [B,1], which it overwrites; logits [B,V], valid until the next step."""
        cache, model = self.cache, self.model
        embedding = (token, cache.length, model.wte.weight, model.positions)
        first = self.layers[0]["qkv"]
        types = [first.matrix, first.bias]
        ops.one_step(
            *(self.table, *embedding, types, cache.k, cache.v, list(self.scratch), self.logits),
            *(self.stamps, self.setting, self.epsilon, self.polls, self.cooperative),
        )
        return self.logits

    def verify(self) -> None:
        """Raises RuntimeError if a step has given up at the grid barrier, and puts the barrier back.

        Waits for the device.
        """
        if int(self.scratch.counters[2]):
            self.scratch.counters.zero_()
            self.scratch.arrived.zero_()
            raise RuntimeError(
                f"the grid barrier timed out after {self.polls} polls: not all {self.geometry.programs} "
                "programs were resident, or one was lost"
            )
