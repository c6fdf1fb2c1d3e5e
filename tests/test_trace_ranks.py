"""Several ranks in one file are told apart, each with its verdict; what a device is busy with is said."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.explain import main
from profiling.analysis.attribution.device import busy_split_ns
from profiling.analysis.explanation import explain, explain_ranks
from profiling.trace import load
from tests.synthetic_trace import Synthetic, eager, replayed

MADE = {
    "launch-bound": eager(steps=5, kernels=20, kernel_ns=3_000, host_ns=20_000),
    "device-bound": eager(steps=5, kernels=20, kernel_ns=100_000, host_ns=20_000),
    "mixed": eager(steps=5, kernels=20, kernel_ns=18_000, host_ns=28_000),
}


def merged(parts: list[Synthetic], prefixes: list[str], same_numbers: bool) -> Synthetic:
    """Ranks as merge tools write them: process ids with the rank's name, device numbers and ids repeated."""
    synthetic = Synthetic()
    for rank, (part, prefix) in enumerate(zip(parts, prefixes, strict=True)):
        for event in copy.deepcopy(part.events):
            on_device = event["cat"] == "kernel"
            if not same_numbers and on_device:
                event["args"]["device"] = event["pid"] = rank
            if not same_numbers:
                event["pid"] = event["pid"] if on_device else 5_000 + rank
                if "correlation" in event.get("args", {}):
                    event["args"]["correlation"] += 100_000 * rank
            else:
                event["pid"] = f"{prefix}{event['pid']}"
            synthetic.events.append(event)
    return synthetic


@given(
    labels=st.lists(st.sampled_from(sorted(MADE)), min_size=2, max_size=4),
    same_numbers=st.booleans(),
    prefix=st.sampled_from(["[TP0{}] ", "[rank{}] ", "host-{} pid "]),
)
@settings(max_examples=12, deadline=None)
def test_every_rank_has_its_verdict(tmp_path_factory, labels, same_numbers, prefix) -> None:
    prefixes = [prefix.format(n) for n in range(len(labels))]
    synthetic = merged([MADE[label] for label in labels], prefixes, same_numbers)
    ranks = explain_ranks(synthetic.write(Path(tmp_path_factory.mktemp("t")) / "t.json"))
    assert [one.reading.label for one in ranks] == labels
    assert all(len(one.steps) == 5 for one in ranks)
    assert all(any(f"{len(labels)} ranks" in note for note in one.warnings) for one in ranks)


@pytest.mark.parametrize("synthetic", [eager(), replayed()], ids=["eager", "replayed"])
def test_one_rank_is_the_trace(tmp_path, synthetic) -> None:
    """Python's own rows, and a second thread that launches on the same device, are no rank."""
    synthetic = copy.deepcopy(synthetic)
    synthetic.event("Trace", "PyTorch Profiler (0)", 0, 10_000_000, pid="Spans", tid="PyTorch Profiler")
    synthetic.launch((9_000_000, 9_001_000), (9_002_000, 9_003_000))
    synthetic.events[-2]["tid"] = 77
    assert [one.rank for one in explain_ranks(synthetic.write(tmp_path / "t.json"))] == [""]


def test_ranks_are_entries_of_the_report(tmp_path, capsys) -> None:
    synthetic = merged(
        [MADE["launch-bound"], MADE["device-bound"]], ["[TP00] ", "[TP01] "], same_numbers=True
    )
    path = synthetic.write(tmp_path / "t.json")
    assert main([str(path), "--json"]) == 0
    files: list[dict[str, Any]] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])["files"]
    assert [(f["file"], f["reading"]) for f in files] == [
        ("t.json [TP00]", "launch-bound"),
        ("t.json [TP01]", "device-bound"),
    ]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(...)", "communication"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>(...)", "compute"),
        ("void at::native::reduce_kernel<512, 1>(...)", "compute"),
    ],
)
def test_what_the_device_is_busy_with(tmp_path, name, part) -> None:
    """An instant in which several run is compute's first, then communication's."""
    synthetic = Synthetic()
    synthetic.launch((0, 1_000), (10_000, 20_000), name="gemm")
    synthetic.launch((1_000, 2_000), (15_000, 40_000), name=name, stream=9)
    copied = synthetic.call("cudaMemcpyAsync", 2_000, 3_000)
    synthetic.work(copied, 30_000, 45_000, "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", stream=11)
    split = busy_split_ns(load(synthetic.write(tmp_path / "t.json")).device_events)
    hidden = {"compute": 10_000, "communication": 0, "copies": 5_000}
    assert split == hidden | {part: hidden[part] + 20_000}


def test_the_rule_says_what_the_device_is_busy_with(tmp_path) -> None:
    synthetic = eager(kernel_ns=100_000, host_ns=100_000)
    for event in synthetic.events:
        if event["name"] in ("kernel_2", "kernel_5"):
            event["name"] = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    reading = explain(synthetic.write(tmp_path / "t.json")).reading
    assert reading.label == "device-bound"
    assert "busy with compute 80%, communication 20%" in reading.rule
