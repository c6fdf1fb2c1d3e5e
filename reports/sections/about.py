"""What was not measured, what to be warned of, where it ran, and how to do it again."""

from __future__ import annotations

from profiling.results.peaks import peak_resident_bytes
from profiling.results.record import Gpu, Model
from profiling.results.record.page import Bullets, Code, Section, Sentence, Table
from profiling.results.record.workload import FLOOR_ROUNDS
from reports.numbers import at_commit, code, interval, joined, megabytes, number
from reports.study import Study

STATUS = {"failed": "**FAILED**", "not run": "not run", "planned": "not reached"}


def not_measured(study: Study) -> Section | None:
    rows = [
        [
            code(name),
            STATUS.get(entry.status, entry.status),
            entry.reason or "the run ended before it",
        ]
        for name, entry in study.variants.items()
        if name not in study.timed
    ]
    if not rows:
        return None
    return Section("Failed, and not run", [Table(["variant", "status", "reason"], rows, text_columns=3)])


def warnings(study: Study) -> Section | None:
    items = list(study.record.warnings)
    aa = study.measured.aa_ratio if study.timed else None
    if aa is not None and not aa.contains(1.0):
        items.append(f"the baseline differs from itself, {interval(aa, 4)}: the machine was not steady")
    recompiled = study.record.recompiles_while_timing
    if recompiled:
        items.append(f"{recompiled} graphs were compiled while steps were timed")
    missing: dict[str, list[str]] = {}
    for name, entry in study.variants.items():
        for check in entry.gate.unproven if entry.gate else ():
            missing.setdefault(f"{check.check} ({check.detail})", []).append(name)
    items += [f"not proven of {joined(names)}: {what}" for what, names in missing.items()]
    workload = study.record.workload
    if workload and workload.rounds < FLOOR_ROUNDS:
        items.append(f"{workload.rounds} rounds instead of the usual {FLOOR_ROUNDS}: intervals are wide")
    return Section("Warnings", [Bullets(items)]) if items else None


def environment(study: Study) -> Section | None:
    record = study.record
    e, model, peaks, workload = record.environment, record.model, record.peaks, record.workload
    if not e or not model or not peaks or not workload:
        return None
    rows = [
        ["device", f"{e.device}: {e.device_name}"],
        *([["GPU", _gpu(e.gpu)]] if e.gpu else []),
        ["processor", f"{e.cpu}, {e.cores} cores, {e.threads} threads, {e.simd}"],
        ["memory", f"{number(e.memory_bytes / 1e9)} GB, huge pages: {e.huge_pages or 'unknown'}"],
        ["system", f"{e.os}, Python {e.python}"],
        ["packages", ", ".join(f"{name} {version or 'unknown'}" for name, version in e.packages.items())],
        ["peak memory", f"{megabytes(peak_resident_bytes(record))} MB of the process, its proofs included"],
        ["load at the start", number(e.load_at_start)],
        ["read rate", f"{number(peaks.read_gb_per_s)} GB/s"],
        ["matmul rate", f"{number(peaks.matmul_flop_per_s / 1e9)} GFLOP/s"],
        ["smallest launch", f"{number(peaks.launch_us)} us"],
        ["graph node", _us(peaks.graph_node_us)],
        ["tape op", _us(peaks.tape_op_us)],
        ["model", _model(model)],
        [
            "workload",
            f"batch {workload.batch}, {workload.rounds} rounds, {workload.steps} timed steps per visit after "
            f"{workload.warm_up} untimed ones, seed {workload.seed}",
        ],
        ["started", f"{record.started}, finished {record.finished or 'never'}"],
    ]
    return Section("Environment", [Table(["what", "value"], rows, text_columns=2)])


def _gpu(gpu: Gpu) -> str:
    """The GPU and its settings in one line; "unknown" where no tool told."""
    cache = None if gpu.l2_bytes is None else f"L2 {number(gpu.l2_bytes / 1e6)} MB"
    clocks = [
        None if value is None else f"{what} up to {number(value)} {unit}"
        for what, value, unit in (
            ("multiprocessors", gpu.max_sm_mhz, "MHz"),
            ("memory", gpu.max_memory_mhz, "MHz"),
            ("power", gpu.power_limit_w, "W"),
        )
    ]
    facts = [
        f"driver {gpu.driver or 'unknown'}, runtime {gpu.runtime or 'unknown'}, capability {gpu.capability}",
        f"{gpu.multiprocessors} multiprocessors",
        *(part for part in (cache, *clocks) if part),
        f"MIG {gpu.mig or 'unknown'}, persistence mode {gpu.persistence or 'unknown'}",
        f"TF32 products {'on' if gpu.matmul_tf32 else 'off'}, in cuDNN {'on' if gpu.cudnn_tf32 else 'off'}",
    ]
    return "; ".join(facts)


def _model(model: Model) -> str:
    shape = model.shape
    if shape is None:
        return model.name
    return (
        f"{model.name}, {model.precision}: {shape.n_layer} layers, width {shape.n_embd}, {shape.n_head} "
        f"heads ({shape.n_kv_head} for keys and values), vocabulary {shape.vocab_size}"
    )


def _us(value: float | None) -> str:
    return "not measured on this device" if value is None else f"{number(value)} us"


def reproduce(study: Study) -> Section:
    return Section(
        "How to make it again",
        [
            Sentence(f"The run{at_commit(study.record.commit)}:"),
            Code(study.record.command),
            Sentence("This report, from the run folder alone:"),
            Code(f"python -m reports.build {study.folder}"),
        ],
    )


def traces(study: Study) -> Section | None:
    if not study.traces:
        return None
    return Section(
        "How to open the traces",
        [
            Sentence(
                f"`traces/` holds {joined(study.traces)}. They open in the Perfetto UI, in "
                "`chrome://tracing` and in TensorBoard's profiler plugin; a local viewer that needs no "
                "network:"
            ),
            Code(f"python -m experiments.view {study.folder}"),
        ],
    )
