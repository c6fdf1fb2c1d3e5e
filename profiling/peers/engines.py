"""One small adapter per engine: prefill a prompt, then greedy steps of one token.

Every engine runs batch 1 on the CPU with the given threads and returns the next token, chosen by argmax.
`ALL` names what can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import torch

from profiling.peers import checkpoint
from variants.model import GPT


class Peer(Protocol):
    def prefill(self, tokens: list[int]) -> int:
        """Forget everything, read the prompt, and return the first token."""
        ...

    def step(self, token: int) -> int:
        """Feed one token and return the next."""
        ...


class Ours:
    """A rung of the ladder."""

    def __init__(self, model: GPT, folder: Path, threads: int, rung: str) -> None:
        from variants.decoder import Decoder
        from variants.ladder import ladder

        self.decoder = Decoder(ladder()[rung], model)
        self.decoder.warm_up()

    def prefill(self, tokens: list[int]) -> int:
        self.decoder.prefill(torch.tensor([tokens]))
        return int(self.decoder.token)

    def step(self, token: int) -> int:
        self.decoder.advance()  # the token was fed back inside the last step
        return int(self.decoder.token)


class HuggingFace:
    """transformers, dynamic cache, as its `generate` loop runs it."""

    def __init__(self, model: GPT, folder: Path, threads: int, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        path = checkpoint.once(folder / "hf", lambda part: checkpoint.hugging_face(model, part))
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


class LlamaCpp:
    """llama.cpp through its low-level binding; float32 KV cache, flash attention off (its CPU default)."""

    def __init__(self, model: GPT, folder: Path, threads: int, kind: str) -> None:
        import llama_cpp as lib

        path = checkpoint.once(folder / f"{kind}.gguf", lambda part: checkpoint.gguf(model, part, kind))
        self.lib, self.vocab = lib, model.config.vocab_size
        lib.llama_backend_init()
        loaded = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        settings = lib.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = model.config.n_ctx
        settings.n_threads = settings.n_threads_batch = threads
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


class CTranslate2:
    """CTranslate2's generator, asked for one token at a time."""

    def __init__(self, model: GPT, folder: Path, threads: int, compute: str) -> None:
        import ctranslate2

        source = checkpoint.once(folder / "hf", lambda part: checkpoint.hugging_face(model, part))
        path = checkpoint.once(
            folder / f"ct2-{compute}",
            lambda part: ctranslate2.converters.TransformersConverter(str(source)).convert(
                str(part), quantization=compute
            ),
        )
        self.limit = model.config.n_ctx
        self.generator = ctranslate2.Generator(str(path), compute_type=compute, intra_threads=threads)

    def prefill(self, tokens: list[int]) -> int:
        self.stream = self.generator.generate_tokens(
            [f"t{token}" for token in tokens], max_length=self.limit, min_length=self.limit, sampling_topk=1
        )
        return self.step(0)

    def step(self, token: int) -> int:
        return int(next(self.stream).token_id)


class OnnxRuntime:
    """ONNX Runtime; the cache stays in its own memory between steps."""

    def __init__(self, model: GPT, folder: Path, threads: int, kind: str) -> None:
        import onnxruntime

        path = checkpoint.once(folder / "step.onnx", lambda part: checkpoint.onnx(model, part))
        if kind == "int8":
            path = checkpoint.once(folder / "step-int8.onnx", lambda part: self._quantise(path, part))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "1")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.ort, self.names = onnxruntime, checkpoint.past_names(model)
        self.empty = [t.numpy() for t in checkpoint.empty_past(model)]
        self.past: list[Any] = []

    @staticmethod
    def _quantise(path: Path, part: Path) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(path, part, weight_type=QuantType.QInt8, per_channel=True)

    def _run(self, tokens: list[int]) -> int:
        import numpy as np

        binding = self.session.io_binding()
        binding.bind_cpu_input("tokens", np.array([tokens]))
        for name, value in zip(self.names, self.past, strict=True):
            binding.bind_ortvalue_input(f"past_{name}", value)
        for name in ("logits", *(f"present_{name}" for name in self.names)):
            binding.bind_output(name, "cpu")
        self.session.run_with_iobinding(binding)
        logits, *self.past = binding.get_outputs()
        return int(logits.numpy().argmax())

    def prefill(self, tokens: list[int]) -> int:
        self.past = [self.ort.OrtValue.ortvalue_from_numpy(array) for array in self.empty]
        return self._run(tokens)

    def step(self, token: int) -> int:
        return self._run([token])


class OpenVino:
    """OpenVINO with the cache as the model's own state."""

    def __init__(self, model: GPT, folder: Path, threads: int, kind: str) -> None:
        import openvino
        from openvino._offline_transformations import apply_make_stateful_transformation

        def convert(part: Path) -> None:
            names = checkpoint.past_names(model)
            example = (torch.zeros(1, 2, dtype=torch.int64), *checkpoint.empty_past(model, 3))
            shape = [1, model.config.n_head, -1, model.config.head_dim]
            converted = openvino.convert_model(
                checkpoint.GrowingStep(model), example_input=example, input=[[1, -1], *([shape] * len(names))]
            )
            for port, name in zip(converted.inputs, ["tokens", *(f"past_{n}" for n in names)], strict=True):
                port.get_tensor().set_names({name})
            for port, name in zip(
                converted.outputs, ["logits", *(f"present_{n}" for n in names)], strict=True
            ):
                port.get_tensor().set_names({name})
            apply_make_stateful_transformation(converted, {f"past_{n}": f"present_{n}" for n in names})
            part.mkdir()
            openvino.save_model(converted, part / "step.xml", compress_to_fp16=False)

        path = checkpoint.once(folder / "openvino", convert)
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": kind,
            "KV_CACHE_PRECISION": kind,
        }
        compiled = openvino.Core().compile_model(path / "step.xml", "CPU", settings)
        self.request = compiled.create_infer_request()

    def _run(self, tokens: list[int]) -> int:
        import numpy as np

        return int(next(iter(self.request.infer({"tokens": np.array([tokens])}).values())).argmax())

    def prefill(self, tokens: list[int]) -> int:
        self.request.reset_state()
        return self._run(tokens)

    def step(self, token: int) -> int:
        return self._run([token])


@dataclass(frozen=True)
class Engine:
    """An adapter with the weights' format; `precision` says what it is compared with."""

    build: Callable[[GPT, Path, int, str], Peer]
    format: str
    precision: str
    package: str  # whose version is reported; none: ours

    @property
    def version(self) -> str | None:
        """The installed version; None where it is not installed."""
        try:
            return metadata.version(self.package or "torch")
        except metadata.PackageNotFoundError:
            return None


OURS = {
    "sdpa": Engine(Ours, "sdpa", "float32", ""),
    "aoti": Engine(Ours, "aoti", "float32", ""),
    "onelaunch": Engine(Ours, "onelaunch", "float32", ""),
    "onelaunch-bf16": Engine(Ours, "onelaunch-bf16", "bfloat16", ""),
    "onelaunch-int8": Engine(Ours, "onelaunch-int8", "int8", ""),
    "onelaunch-int4": Engine(Ours, "onelaunch-int4", "int4", ""),
}
PEERS = {
    "transformers": Engine(HuggingFace, "float32", "float32", "transformers"),
    "transformers bf16": Engine(HuggingFace, "bfloat16", "bfloat16", "transformers"),
    "llama.cpp": Engine(LlamaCpp, "F32", "float32", "llama-cpp-python"),
    "llama.cpp BF16": Engine(LlamaCpp, "BF16", "bfloat16", "llama-cpp-python"),
    "llama.cpp Q8_0": Engine(LlamaCpp, "Q8_0", "int8", "llama-cpp-python"),
    "llama.cpp Q4_0": Engine(LlamaCpp, "Q4_0", "int4", "llama-cpp-python"),
    "CTranslate2": Engine(CTranslate2, "float32", "float32", "ctranslate2"),
    "CTranslate2 int8": Engine(CTranslate2, "int8", "int8", "ctranslate2"),
    "ONNX Runtime": Engine(OnnxRuntime, "float32", "float32", "onnxruntime"),
    "ONNX Runtime int8": Engine(OnnxRuntime, "int8", "int8", "onnxruntime"),
    "OpenVINO": Engine(OpenVino, "f32", "float32", "openvino"),
    "OpenVINO bf16": Engine(OpenVino, "bf16", "bfloat16", "openvino"),
}
ALL = OURS | PEERS
