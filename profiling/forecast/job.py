"""What one decode step reads: bytes of weights and cache, from a model's shape and a precision."""

from __future__ import annotations

from dataclasses import dataclass

from profiling.forecast.devices import Device
from profiling.forecast.engines import Family
from profiling.results.record import ModelShape
from profiling.sizing.model_shape import KV_FORMATS, attention_pairs, kv_bytes
from variants.errors import UserError

NATIVE_BITS = {"fp32": 32, "float32": 32, "bf16": 16, "bfloat16": 16, "fp16": 16, "float16": 16}
# bits of a weight with its scale; a scale of 16 bits per group, and a zero point where the format has one
PACKED_BITS = {
    "int8": 8.0, "fp8": 8.0, "int4g32": 5.0, "int4g64": 4.5, "gf4": 4.0, "exl2-4.0": 4.0,
    "q2_k": 2.6, "q3_k_m": 3.9, "q4_0": 4.5, "q4_k_m": 4.85, "q5_k_m": 5.7, "q6_k": 6.6, "q8_0": 8.5,
    "gptq-int4": 4.15, "gptq-int8": 8.15, "awq": 4.15,
}  # fmt: skip
# a layer of these launches about what the family's does
FAMILY_OF = {
    "gpt2": Family.GPT2, "gpt_bigcode": Family.GPT2, "starcoder2": Family.GPT2, "gpt_neox": Family.NEOX,
    "llama": Family.LLAMA, "granite": Family.LLAMA, "smollm3": Family.LLAMA, "mistral": Family.MISTRAL,
    "qwen2": Family.QWEN2, "qwen3": Family.QWEN3, "olmo2": Family.QWEN3, "olmo3": Family.QWEN3,
    "phi3": Family.PHI3, "gemma": Family.GEMMA, "gemma2": Family.GEMMA, "gemma3_text": Family.GEMMA,
    "cohere2": Family.LLAMA,
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """One decode step: bytes that it reads, and how many weights those of the weights hold."""

    family: Family
    layers: int
    weight_bytes: float
    weights: float
    cache_bytes: float
    packed: bool = False  # weights of fewer than 16 bits, which a kernel unpacks
    casts: bool = True  # norms and rotations in float32 between weights of 16 bits

    def floor_ms(self, device: Device) -> float:
        """Memory floor: what reading its bytes takes at the bandwidth that the device's maker states, ms."""
        return (self.weight_bytes + self.cache_bytes) / device.bandwidth_gb_per_s / 1e6


def job_of(shape: ModelShape, precision: str, context: int) -> Job:
    """A step of this model at batch 1 with `context` tokens held; the cache is as wide as the weights, at
    least 16 bits. Raises UserError for a model whose step is not known here."""
    bits = NATIVE_BITS.get(precision) or PACKED_BITS.get(precision)
    if bits is None:
        names = ", ".join([*NATIVE_BITS, *PACKED_BITS])
        raise UserError(f"precision {precision!r} is not known; known: {names}")
    if context < 0:
        raise UserError(f"--context must be at least 0, got {context}")
    if shape.max_context is not None and context > shape.max_context:
        raise UserError(f"{shape.name} has {shape.max_context:,} positions, fewer than --context {context:,}")
    if shape.step_parameters is None or shape.model_type not in FAMILY_OF:
        raise UserError(
            f"{shape.name}: what a step of this model reads is not known here (a mixture of experts reads "
            "those that the token takes)"
        )
    cache = KV_FORMATS["float32" if bits == 32 else "bfloat16"]
    return Job(
        FAMILY_OF[shape.model_type],
        shape.n_layer,
        shape.step_parameters * bits / 8,
        shape.step_parameters,
        kv_bytes(shape, context, cache) if context else 0,
        packed=precision not in NATIVE_BITS,
        casts=bits != 32,
    )


def prompt_flops(shape: ModelShape, tokens: int) -> float:
    """Floating-point operations that a prompt of this length needs: two per weight and token (the head is
    counted at every position), and four per number of a head for each pair that attention scores."""
    assert shape.step_parameters is not None  # as `job_of` requires
    pairs = attention_pairs(shape, tokens) * shape.n_head * shape.head_dim
    return 2.0 * shape.step_parameters * tokens + 4.0 * pairs
