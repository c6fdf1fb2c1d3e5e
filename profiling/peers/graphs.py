"""ONNX Runtime and OpenVINO: engines that take a step as a graph, and the model as such graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from profiling.peers.checkpoint import once
from profiling.peers.peer import Peer, Task
from variants.errors import UserError
from variants.model import GPT
from variants.slots.quantised import GROUP, quantise_rows


class GrowingStep(nn.Module):
    """A step with the cache as input and output, which is what graph formats can express."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        """tokens int64 [1,T], past: per layer k and v [1,Hkv,n,D] -> logits [1,V], k and v [1,Hkv,n+T,D]."""
        present: list[Tensor] = []
        n, shared = past[0].size(2), self.model.config.n_head // self.model.config.n_kv_head

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = torch.cat([past[2 * layer], k], dim=2), torch.cat([past[2 * layer + 1], v], dim=2)
            present.extend((k, v))
            visible = torch.arange(k.size(2))[None, :] <= positions[:, None]
            if shared > 1:  # an ONNX graph has no attention of grouped queries
                k, v = (part.repeat_interleave(shared, dim=1) for part in (k, v))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=visible[None, None])

        positions = torch.arange(n, n + tokens.size(1))
        logits = self.model(tokens, positions, attend, lambda head, hidden: head(hidden[:, -1:]))
        return logits[:, 0], *present


def empty_past(model: GPT, n: int = 0) -> list[Tensor]:
    """Keys and values of n tokens, zeros [1,Hkv,n,D] for each layer, k and v in turn."""
    config = model.config
    return [torch.zeros(1, config.n_kv_head, n, config.head_dim) for _ in range(2 * config.n_layer)]


def past_names(model: GPT) -> list[str]:
    return [f"{part}{layer}" for layer in range(model.config.n_layer) for part in "kv"]


# -- ONNX -------------------------------------------------------------------------------------


def onnx(model: GPT, path: Path) -> None:
    """`GrowingStep` as ONNX with inputs `tokens`, `past_*` and outputs `logits`, `present_*`."""
    names = past_names(model)
    grows: dict[str, Any] = {"tokens": {1: "T"}}
    grows |= {f"past_{name}": {2: "n"} for name in names} | {f"present_{name}": {2: "m"} for name in names}
    torch.onnx.export(
        GrowingStep(model),
        (torch.zeros(1, 2, dtype=torch.int64), *empty_past(model, 3)),
        str(path),
        input_names=["tokens", *(f"past_{name}" for name in names)],
        output_names=["logits", *(f"present_{name}" for name in names)],
        dynamic_axes=grows,
        opset_version=18,
        dynamo=False,
    )


def onnx_int8(source: Path, path: Path) -> None:
    """Weights int8 per channel, activations quantised as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, path, weight_type=QuantType.QInt8, per_channel=True)


def onnx_int4(source: Path, path: Path) -> None:
    """Weights in symmetric blocks of four bits, int8 activations inside the kernel (accuracy level 4)."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(str(source), block_size=GROUP, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path))


class OnnxRuntime(Peer):
    """ONNX Runtime; the cache stays in its own memory between steps."""

    def __init__(self, model: GPT, task: Task, kind: str) -> None:
        import onnxruntime

        if model.config.norm != "layer":
            raise UserError("its export knows no RMS norms: ONNX Runtime runs GPT-2's kind alone here")
        path = once(task.folder / "step.onnx", lambda part: onnx(model, part))
        if kind != "float32":
            narrow, source = {"int8": onnx_int8, "int4": onnx_int4}[kind], path
            path = once(task.folder / f"step-{kind}.onnx", lambda part: narrow(source, part))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = task.threads
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.ort, self.names = onnxruntime, past_names(model)
        self.empty = [t.numpy() for t in empty_past(model)]
        self.past: list[Any] = []

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
        return self.chosen(logits.numpy()[0])

    def prefill(self, tokens: list[int]) -> int:
        self.past = [self.ort.OrtValue.ortvalue_from_numpy(array) for array in self.empty]
        return self._run(tokens)

    def step(self, token: int) -> int:
        return self._run([token])


# -- OpenVINO ---------------------------------------------------------------------------------


def openvino(model: GPT, folder: Path) -> None:
    """`GrowingStep` as step.xml in `folder`, its cache turned into the model's own state."""
    import openvino as ov
    from openvino._offline_transformations import apply_make_stateful_transformation

    names = past_names(model)
    shape = [1, model.config.n_kv_head, -1, model.config.head_dim]
    converted = ov.convert_model(
        GrowingStep(model),
        example_input=(torch.zeros(1, 2, dtype=torch.int64), *empty_past(model, 3)),
        input=[[1, -1], *([shape] * len(names))],
    )
    past, present = [f"past_{name}" for name in names], [f"present_{name}" for name in names]
    ports = zip((*converted.inputs, *converted.outputs), ("tokens", *past, "logits", *present), strict=True)
    for port, name in ports:
        port.get_tensor().set_names({name})
    _gather_rows(converted, past)
    apply_make_stateful_transformation(converted, dict(zip(past, present, strict=True)))
    _begin_empty(converted, (1, model.config.n_kv_head, 0, model.config.head_dim))
    folder.mkdir()
    ov.save_model(converted, folder / "step.xml", compress_to_fp16=False)


def _gather_rows(converted: Any, past: list[str]) -> None:
    """Rows of the past chosen by an input `beam_idx`, as OpenVINO's own tools export a model.

    By this the CPU plug-in knows attention over a cache that it keeps in place; else each step copies it.
    """
    import numpy as np
    from openvino import opset13 as ops

    beam_idx = ops.parameter([-1], np.int32, name="beam_idx")
    beam_idx.output(0).get_tensor().set_names({"beam_idx"})
    converted.add_parameters([beam_idx])
    for port in map(converted.input, past):
        readers = port.get_target_inputs()
        rows = ops.gather(port, beam_idx, ops.constant(0, np.int64))
        for reader in readers:
            reader.replace_source_output(rows.output(0))
    converted.validate_nodes_and_infer_types()


def _begin_empty(converted: Any, shape: tuple[int, ...]) -> None:
    """States of this shape, which holds nothing, after a reset."""
    import numpy as np
    from openvino import opset13 as ops

    for state in (op for op in converted.get_ops() if op.get_type_name() == "ReadValue"):
        zero, wanted = ops.constant(0.0, dtype=np.float32), ops.constant(np.array(shape))
        state.set_arguments([ops.broadcast(zero, wanted)])
    converted.validate_nodes_and_infer_types()


def openvino_narrow(source: Path, folder: Path, bits: int) -> None:
    """The graph in `source` with int8 weights per row, or int4 weights in groups, that its kernels widen."""
    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops

    model = ov.Core().read_model(source / "step.xml")
    for product in (op for op in model.get_ordered_ops() if op.get_type_name() == "MatMul"):
        constant = product.input_value(1).get_node()
        if constant.get_type_name() != "Constant":
            continue  # queries by keys, not a weight
        weight = torch.from_numpy(constant.data.copy())  # [out, in]
        if bits == 8:
            stored, scale = quantise_rows(weight)
            narrow = ops.constant(stored.numpy())
        else:
            group = GROUP if weight.size(1) % GROUP == 0 else weight.size(1)
            groups = weight.unflatten(1, (-1, group))
            scale = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 7
            nibbles = (groups / scale).round().to(torch.int8).numpy().view(np.uint8) & 15
            packed = nibbles[..., ::2] | nibbles[..., 1::2] << 4
            narrow = ops.constant(ov.Tensor(packed, list(groups.shape), ov.Type.i4), shared_memory=False)
        wide = ops.multiply(ops.convert(narrow, "f32"), ops.constant(scale.numpy()))
        wide = ops.reshape(wide, ops.constant(np.array(weight.shape)), special_zero=False)
        product.input(1).replace_source_output(wide.output(0))
    folder.mkdir()
    ov.save_model(model, folder / "step.xml", compress_to_fp16=False)


class OpenVino(Peer):
    """OpenVINO with the cache as the model's own state.

    Float32 and bfloat16 hold for arithmetic and cache; with narrow weights both are OpenVINO's own choice.
    """

    def __init__(self, model: GPT, task: Task, kind: str) -> None:
        import openvino as ov

        path = once(task.folder / "openvino", lambda part: openvino(model, part))
        settings = {"INFERENCE_NUM_THREADS": task.threads, "PERFORMANCE_HINT": "LATENCY"}
        if kind in ("i8", "i4"):
            source, bits = path, int(kind[1:])
            narrow = task.folder / f"openvino-{kind}"
            path = once(narrow, lambda part: openvino_narrow(source, part, bits))
        else:
            settings |= {"INFERENCE_PRECISION_HINT": kind, "KV_CACHE_PRECISION": kind}
        compiled = ov.Core().compile_model(path / "step.xml", "CPU", settings)
        used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if used != kind and kind == "bf16":
            raise RuntimeError(f"this processor has no {kind} arithmetic, OpenVINO takes {used}")
        self.request = compiled.create_infer_request()

    def _run(self, tokens: list[int]) -> int:
        import numpy as np

        given = {"tokens": np.array([tokens]), "beam_idx": np.zeros(1, np.int32)}
        return self.chosen(next(iter(self.request.infer(given).values()))[0])

    def prefill(self, tokens: list[int]) -> int:
        self.request.reset_state()
        return self._run(tokens)

    def step(self, token: int) -> int:
        return self._run([token])
