"""What an engine is asked for, and the adapters of those that read a model from a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from profiling.peers import checkpoint
from variants.config import GPTConfig
from variants.model import GPT


@dataclass(frozen=True)
class Task:
    """One engine over one model, whose weights stand in a file; `folder` keeps conversions."""

    config: GPTConfig
    weights: Path
    folder: Path
    threads: int
    capacity: int  # the longest text, tokens


class Peer(ABC):
    """Batch 1, greedy: tokens in, the next token out. `logits` [V]: what it was chosen from, where given."""

    logits: Any = None

    @abstractmethod
    def prefill(self, tokens: list[int]) -> int:
        """Forget everything, read the prompt, and return the first token."""

    @abstractmethod
    def step(self, token: int) -> int:
        """Feed one token and return the next."""

    def chosen(self, logits: Any) -> int:
        """Keep the logits [V] and return their argmax."""
        self.logits = logits
        return int(logits.argmax())

    def rest(self) -> None:
        """Stop whatever would go on by itself after the last step."""
        return


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
        return self.chosen(out.logits[0, -1])

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
        if not loaded:
            raise RuntimeError(f"llama.cpp does not load {path}")
        settings = lib.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = task.capacity
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
        return self.chosen(np.ctypeslib.as_array(logits, (self.vocab,)))

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
