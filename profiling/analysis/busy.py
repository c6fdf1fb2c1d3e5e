"""What a device is busy with: compute, communication that nothing hides, copies that nothing hides."""

from __future__ import annotations

import re

import pandas as pd

from profiling.trace.devices import matching, union_ns

COMMUNICATION = re.compile(
    r"(?i).*(?:nccl|rccl|oneccl|hccl|nvshmem|mscclpp|deep_?ep|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
    r"|cross_device_reduce|multimem|symm_mem|quick_?reduce)"
)
"""Kernels of the collective libraries, and of vLLM's, SGLang's and TensorRT-LLM's own."""
SPLIT = ("compute", "communication", "copies")


def busy_split_ns(work: pd.DataFrame) -> dict[str, int]:
    """Busy time of one device's events, by start, divided over `SPLIT`; sums to the union of all of them.

    An instant in which several run belongs to the first of the three.
    """
    copies = work["kind"].isin(["memcpy", "memset"]).to_numpy()
    talking = ~copies & matching(work["name"], COMMUNICATION)
    covered = [_union_ns(work[mask]) for mask in (~copies & ~talking, ~copies, copies | True)]
    compute, with_talk, everything = covered
    return {"compute": compute, "communication": with_talk - compute, "copies": everything - with_talk}


def _union_ns(work: pd.DataFrame) -> int:
    return union_ns(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
