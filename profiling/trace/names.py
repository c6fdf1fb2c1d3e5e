"""Which category and which name in a trace means what: the one table that everything else reads.

Sources:
- categories: libkineto `ActivityType` strings (`cpu_op`, `kernel`, `gpu_memcpy`, `cuda_runtime`,
  `cuda_driver`, `xpu_runtime`, `privateuse1_runtime`, `cuda_sync`, `overhead`, ...); the 2020-21 schema
  wrote `Kernel`, `Memcpy`, `Memset`, `Runtime`, `Operator`. They are compared in lower case.
- launch calls: CUDA runtime and driver API references, HIP runtime API reference, Unified Runtime and Level
  Zero specifications. Suffixes such as `_v2`, `_ptsz` and `_spt` are versions of the same call.
- step annotations: `torch.profiler` (`ProfilerStep#N`), vLLM's worker
  (`execute_...context_...generation_...`), SGLang's scheduler (`step[DECODE bs=16]`), TensorRT-LLM's
  executor (`[Executor] _forward_step N: ...`).
- op classes on CPU: `native_functions.yaml` of PyTorch 2.13 (tests compare them with the dispatcher of the
  installed one, which must have no CPU kernel for a composite).
"""

from __future__ import annotations

import re

KERNEL_CATEGORIES = frozenset({"kernel", "concurrent_kernel"})
MEMCPY_CATEGORIES = frozenset({"gpu_memcpy", "memcpy"})
MEMSET_CATEGORIES = frozenset({"gpu_memset", "memset"})
DEVICE_CATEGORIES = KERNEL_CATEGORIES | MEMCPY_CATEGORIES | MEMSET_CATEGORIES
OP_CATEGORIES = frozenset({"cpu_op", "operator"})
ANNOTATION_CATEGORIES = frozenset({"user_annotation"})
PYTHON_CATEGORIES = frozenset({"python_function"})
WAITING_FRAME = re.compile(
    r"<built-in (?:method|function) (?:sleep|acquire|wait\w*|select|poll|recv\w*|read\w*|synchronize\w*)\b"
    r"|.*(?:threading|queue|selectors)\.py\(\d+\): (?:wait|get|select|join)\b"
)
"""Python frames in which a thread does nothing."""
OVERHEAD_CATEGORIES = frozenset({"overhead"})
KNOWN_CATEGORY = re.compile(
    r"cpu_op|operator|kernel|concurrent_kernel|python_function|overhead|cpu_instant_event|trace|fwdbwd|ac2g|async"
    r"|.*(?:runtime|driver|annotation|memcpy|memset|cuda_sync|cuda_event|profiler_range)"
)
"""Categories of libkineto, whether read here or of no use."""
DEVICE_PROCESS = re.compile(
    r"(?i)(?:^|[^a-z])(?:npu|ascend hardware|mtia|tpu|gpus?|hpu|gaudi|neuron(?:core)?|xla|accelerator"
    r"|/device:(?!cpu)\w+|cuda hw|device \d+)(?:[^a-z]|$)"
)
"""Names of processes that stand for a device, in the traces of torch_npu, MTIA, JAX and exports of nsys."""
DEVICE_ARGUMENTS = re.compile(rb'"(?:Task Type|Stream Id|hlo_op|hlo_module|streamId|deviceId)"\s*:')
CALL_CATEGORY = re.compile(r"(?:^|_)(?:runtime|driver)$")
"""`runtime` (2020), `cuda_runtime`, `cuda_driver`, `xpu_runtime`, `privateuse1_driver`, ..."""

CALL_KINDS: dict[str, re.Pattern[str]] = {
    # A kernel launch: one call, one kernel.
    "kernel": re.compile(
        r"(?:cuda|cu|hip)(?:Ext|Drv)?(?:Module)?Launch(?:Cooperative|Multi)?Kernel"
        r"|cudaLaunch(?:_|$)|cuLaunch(?:Grid|GridAsync)?(?:_|$)|hipLaunchByPtr|hipHccModuleLaunchKernel"
        r"|(?:ur|pi)Enqueue(?:Cooperative)?KernelLaunch"
        r"|zeCommandListAppendLaunch(?:Cooperative)?Kernel|zeCommandListAppendLaunchMultipleKernels"
    ),
    # One call that replays a recorded graph: one correlation id for all its kernels.
    "graph": re.compile(
        r"(?:cuda|cu|hip)GraphLaunch|ur(?:CommandBufferEnqueueExp|EnqueueCommandBufferExp)"
        r"|zeCommandListImmediateAppend"
    ),
    "memcpy": re.compile(
        r"(?:cuda|cu|hip)Memcpy|(?:ur|pi)(?:EnqueueMemBuffer(?:Copy|Read|Write)|EnqueueUSMMemcpy|USMEnqueueMemcpy)"
        r"|zeCommandListAppendMemoryCopy"
    ),
    "memset": re.compile(
        r"(?:cuda|cu|hip)Memset|(?:ur|pi)(?:EnqueueMemBufferFill|EnqueueUSMFill|USMEnqueueFill|USMEnqueueMemset)"
        r"|zeCommandListAppendMemoryFill"
    ),
    # The host waits until the device has done something. (`cudaStreamWaitEvent` makes the device wait, not
    # the host.)
    "sync": re.compile(
        r"(?:cuda|cu|hip)(?:Device|Stream|Event|Ctx|Thread)Synchronize"
        r"|(?:ur|pi)(?:EventWait|EventsWait|QueueFinish)"
        r"|ze(?:EventHostSynchronize|CommandQueueSynchronize|CommandListHostSynchronize|FenceHostSynchronize)"
    ),
    "capture_begin": re.compile(r"(?:cuda|cu|hip)StreamBeginCapture"),
    "capture_end": re.compile(r"(?:cuda|cu|hip)StreamEndCapture"),
}
LAUNCH_KINDS = ("kernel", "graph", "memcpy", "memset")
WHOLE_DEVICE_SYNC = re.compile(
    r"(?:cuda|hip)DeviceSynchronize|cuCtxSynchronize|hipCtxSynchronize|cudaThreadSynchronize"
)
STREAM_SYNC = re.compile(r"(?:cuda|cu|hip)StreamSynchronize|(?:ur|pi)QueueFinish")
TO_HOST_COPY = re.compile(r".*(?:DtoH|Device -> (?:Host|Pageable|Pinned)|D2H)", re.IGNORECASE)

PROFILER_STEP = re.compile(r"ProfilerStep\s*#\s*\d+$")
ENGINE_STEP = re.compile(
    r"execute_(?:new_|model|context_|\d+_).*"  # vLLM
    r"|step\[.*\]"  # SGLang
    r"|\[Executor\] _forward_step \d+.*"  # TensorRT-LLM
)
NOT_STEPS = re.compile(
    r"## Call CompiledFxGraph|Torch-Compiled Region|nccl:|gloo:|Optimizer\.|DistributedDataParallel"
    r"|enumerate\(DataLoader"
    r"|\[param\||TorchDynamo|AOTDispatcher|PyTorch Profiler|Iteration Start|redacted annotation"
)
"""Annotations that mark a part of a step or nothing at all; they never bracket a whole one."""

# --- CPU: class of op by the op's own (self) time
# --------------------------------------------------------------------------
COMPILED_CODE = re.compile(r"## Call CompiledFxGraph|CompiledFxGraph|CompiledFunction")
"""Its own time is "unknown": generated kernels show only with the compiler's kernel-profile option."""
COMPILED_REGION = re.compile(r"Torch-Compiled Region")
"""Calls compiled code; where the trace has no events for that code itself, the region stands for it."""
COMPILER_OVERHEAD = re.compile(r"TorchDynamo Cache Lookup|AOTDispatcher Runtime Wrapper|Pregraph bytecode")

# Ops of `aten` whose own time is not arithmetic, by name without namespace and overload. First those without
# a kernel of their own for any device: what runs is the ops that they call, and a recording of a step (graph
# or tape) holds those and not these.
IMPLICIT = """
    linear matmul layer_norm group_norm batch_norm rms_norm scaled_dot_product_attention softmax log_softmax
    _scaled_dot_product_attention_math dropout feature_dropout to type_as einsum tensordot bilinear conv1d
    conv2d conv3d cross_entropy_loss nll_loss_nd concat concatenate hstack vstack tile pad true_divide
    square item reshape flatten unflatten numpy_T mT swapaxes swapdims movedim moveaxis narrow chunk
    unsafe_chunk expand_as view_as reshape_as real contiguous broadcast_to broadcast_tensors tensor_split
    resolve_conj resolve_neg conj atleast_1d atleast_2d result_type size stride
"""
VIEWS = """
    alias as_strided view _unsafe_view _reshape_alias transpose t permute select slice split split_with_sizes
    unsafe_split unbind expand squeeze squeeze_ unsqueeze unsqueeze_ transpose_ t_ diagonal unfold detach
    detach_ view_as_real view_as_complex lift_fresh lift _conj is_same_size
"""
ALLOCATION = """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize_ resize_as_ set_
    new_zeros new_ones new_full zeros zeros_like ones ones_like full full_like scalar_tensor
"""
# One kernel for every device that only calls other ops, and the read of one number to the host.
EXPLICIT = """
    embedding clone _to_copy stack repeat convolution _convolution _local_scalar_dense
"""
IMPLICIT_OPS = frozenset(IMPLICIT.split())
OVERHEAD_OPS = IMPLICIT_OPS.union(VIEWS.split(), ALLOCATION.split(), EXPLICIT.split())


def call_kind(name: str) -> str:
    """Kind of a runtime or driver call: a key of `CALL_KINDS`, or "other"."""
    return next((kind for kind, pattern in CALL_KINDS.items() if pattern.match(name)), "other")


def op_class(name: str) -> str:
    """Class of a host op by what its own time is.

    "compute"; "overhead" (views, allocation, composite dispatch, the compiler's wrappers); "region" (compiled
    region) and "unknown" (compiled code whose kernels leave no events).
    """
    if COMPILED_CODE.match(name):
        return "unknown"
    if COMPILED_REGION.match(name):
        return "region"
    if COMPILER_OVERHEAD.match(name) or _aten_base(name) in OVERHEAD_OPS:
        return "overhead"
    return "compute"


def is_implicit(name: str) -> bool:
    """Whether an op only calls others, so that a recorded step holds those in its place."""
    return _aten_base(name) in IMPLICIT_OPS or op_class(name) not in ("compute", "overhead")


def _aten_base(name: str) -> str | None:
    """`linear` of `aten::linear.overload`, None for ops of other namespaces."""
    namespace, _, base = name.partition("::")
    return base.partition(".")[0] if namespace == "aten" else None
