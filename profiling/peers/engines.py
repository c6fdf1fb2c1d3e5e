"""One small adapter per engine, and `ALL`: what can be asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from profiling.cost import work
from profiling.gate import Gate
from profiling.peers import checkpoint
from profiling.peers.graphs import OnnxRuntime, OpenVino
from profiling.peers.peer import Peer, Task
from profiling.results.record import BUCKETS
from variants.config import GPTConfig
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import GPT

PROVEN_STEPS = 4


class Ours(Peer):
    """A rung of the ladder, proven briefly; `python -m experiments.floor` proves it in full."""

    def __init__(self, model: GPT, task: Task, rung: str) -> None:
        n_ctx = model.config.n_ctx
        buckets = (*(slots for slots in BUCKETS if slots < n_ctx), n_ctx)
        self.decoder = Decoder.of(ladder()[rung], model, buckets=buckets)
        needed = next(n for n, slots in enumerate(buckets, 1) if slots >= task.tokens)
        self.decoder.warm_up(buckets[:needed])
        gate = Gate(model, "float32", capacity=n_ctx, steps=PROVEN_STEPS, forced=PROVEN_STEPS, brief=True)
        result = gate.check_briefly(self.decoder)
        if result.status != "pass":
            raise RuntimeError(f"it does not compute the reference function: {result.reason}")

    def prefill(self, tokens: list[int]) -> int:
        self.decoder.prefill(torch.tensor([tokens]))
        return int(self.decoder.token)

    def step(self, token: int) -> int:
        self.decoder.advance()  # the token was fed back inside the last step
        return int(self.decoder.token)


class HuggingFace(Peer):
    """transformers, dynamic cache, as its `generate` loop runs it."""

    def __init__(self, model: GPT, task: Task, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        path = checkpoint.once(task.folder / "hf", lambda part: checkpoint.hugging_face(model, part))
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))

    @torch.inference_mode()
    def _run(self, tokens: list[int], past: Any) -> int:
        out = self.model(torch.tensor([tokens]), past_key_values=past, use_cache=True, logits_to_keep=1)
        self.past = out.past_key_values
        return int(out.logits[0, -1].argmax())

    def prefill(self, tokens: list[int]) -> int:
        return self._run(tokens, None)

    def step(self, token: int) -> int:
        return self._run([token], self.past)


class LlamaCpp(Peer):
    """llama.cpp through its low-level binding. Its cache is its default, float16, unless all is float32."""

    def __init__(self, model: GPT, task: Task, kind: str) -> None:
        import llama_cpp as lib

        path = checkpoint.once(task.folder / f"{kind}.gguf", lambda part: checkpoint.gguf(model, part, kind))
        self.lib, self.vocab = lib, model.config.vocab_size
        self.silent = lib.llama_log_callback(lambda level, text, data: None)  # kept: C calls it until the end
        lib.llama_log_set(self.silent, None)
        lib.llama_backend_init()
        loaded = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        settings = lib.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = model.config.n_ctx
        settings.n_threads = settings.n_threads_batch = task.threads
        if kind == "F32":
            settings.type_k = settings.type_v = lib.GGML_TYPE_F32
        self.context = lib.llama_init_from_model(loaded, settings)

    def _run(self, tokens: list[int]) -> int:
        import numpy as np

        array = (self.lib.llama_token * len(tokens))(*tokens)
        if self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(array, len(tokens))):
            raise RuntimeError("llama_decode failed")
        logits = self.lib.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocab,)).argmax())

    def prefill(self, tokens: list[int]) -> int:
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        return self._run(tokens)

    def step(self, token: int) -> int:
        return self._run([token])


class CTranslate2(Peer):
    """CTranslate2's generator, which writes on in a thread of its own until it is closed."""

    def __init__(self, model: GPT, task: Task, compute: str) -> None:
        import ctranslate2

        source = checkpoint.once(task.folder / "hf", lambda part: checkpoint.hugging_face(model, part))
        path = checkpoint.once(
            task.folder / f"ct2-{compute}",
            lambda part: ctranslate2.converters.TransformersConverter(str(source)).convert(
                str(part), quantization=compute
            ),
        )
        self.limit = model.config.n_ctx
        self.generator = ctranslate2.Generator(str(path), compute_type=compute, intra_threads=task.threads)

    def prefill(self, tokens: list[int]) -> int:
        self.stream = self.generator.generate_tokens(
            [f"t{token}" for token in tokens], max_length=self.limit, min_length=self.limit, sampling_topk=1
        )
        return self.step(0)

    def step(self, token: int) -> int:
        return int(next(self.stream).token_id)

    def rest(self) -> None:
        self.stream.close()  # else it computes through the others' visits


@dataclass(frozen=True)
class Engine:
    """An adapter with the weights' `kind` in its own words; `precision` says what it is compared with.

    `bits` of a weight with its share of a group's scale, `cache_bits` of a key or value: where an engine
    chooses by itself, the fewest that it may take.
    """

    build: Callable[[GPT, Task, str], Peer]
    kind: str
    precision: str
    package: str = "torch"  # whose version is reported
    settings: str = ""
    bits: float = 32
    cache_bits: int = 32

    def step_bytes(self, config: GPTConfig, context: int) -> int:
        """Bytes of weights and cache that a step at this context must read."""
        return work.step_bytes(config, context, self.bits / 8, self.cache_bits / 8)

    @property
    def version(self) -> str | None:
        """The installed version; None where it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None


def _transformers(dtype: str, precision: str, bits: int) -> Engine:
    settings = f"{dtype}, dynamic cache, its own SDPA attention"
    return Engine(HuggingFace, dtype, precision, "transformers", settings, bits, bits)


def _llama(kind: str, precision: str, bits: float) -> Engine:
    cache, cache_bits = ("float32", 32) if kind == "F32" else ("float16", 16)
    settings = f"GGUF {kind}, cache {cache}, built here"
    return Engine(LlamaCpp, kind, precision, "llama-cpp-python", settings, bits, cache_bits)


def _ctranslate2(compute: str, precision: str, bits: int) -> Engine:
    settings = f"compute type {compute}, generate_tokens one by one"
    return Engine(CTranslate2, compute, precision, "ctranslate2", settings, bits)


def _onnx(kind: str, precision: str, weights: str, bits: float) -> Engine:
    settings = f"{weights}, all graph optimisations, cache in its own memory"
    return Engine(OnnxRuntime, kind, precision, "onnxruntime", settings, bits)


def _openvino(kind: str, precision: str, weights: str, bits: float, cache_bits: int = 8) -> Engine:
    settings = f"{weights}, latency hint, cache as the model's state"
    return Engine(OpenVino, kind, precision, "openvino", settings, bits, cache_bits)


INT8, INT4 = 8.0, 4.5  # a scale per output channel is next to nothing, one of 32 bits per group of 64 is not


OURS = {
    "cat": Engine(Ours, "cat", "float32", settings="the study's baseline, growing cache"),
    "sdpa": Engine(Ours, "sdpa", "float32", settings="eager, static cache"),
    "aoti": Engine(Ours, "aoti", "float32", settings="the same step by AOTInductor"),
    "onelaunch": Engine(Ours, "onelaunch", "float32", settings="one parallel region per step"),
    "onelaunch-bf16": Engine(
        Ours, "onelaunch-bf16", "16 bit", settings="weights and cache bfloat16", bits=16, cache_bits=16
    ),
    "onelaunch-int8": Engine(
        Ours, "onelaunch-int8", "8 bit", settings="int8 per channel, int8 activations", bits=INT8
    ),
    "onelaunch-int4": Engine(
        Ours, "onelaunch-int4", "4 bit", settings="groups of 64, int8 activations", bits=INT4
    ),
}
PEERS = {
    "transformers": _transformers("float32", "float32", 32),
    "transformers bf16": _transformers("bfloat16", "16 bit", 16),
    "llama.cpp": _llama("F32", "float32", 32),
    "llama.cpp F16": _llama("F16", "16 bit", 16),
    "llama.cpp BF16": _llama("BF16", "16 bit", 16),
    "llama.cpp Q8_0": _llama("Q8_0", "8 bit", 8.5),
    "llama.cpp Q4_0": _llama("Q4_0", "4 bit", 4.5),
    "CTranslate2": _ctranslate2("float32", "float32", 32),
    "CTranslate2 int8": _ctranslate2("int8", "8 bit", 8),
    "ONNX Runtime": _onnx("float32", "float32", "float32", 32),
    "ONNX Runtime int8": _onnx("int8", "8 bit", "dynamic int8 per channel", INT8),
    "ONNX Runtime int4": _onnx("int4", "4 bit", "MatMulNBits, groups of 64, int8 activations", INT4),
    "OpenVINO": _openvino("f32", "float32", "float32", 32, 32),
    "OpenVINO bf16": _openvino("bf16", "16 bit", "bfloat16", 16, 16),
    "OpenVINO int8": _openvino("i8", "8 bit", "int8 weights per channel", INT8),
    "OpenVINO int4": _openvino("i4", "4 bit", "int4 weights in groups of 64", INT4),
}
ALL = OURS | PEERS
