"""One run as one JSON object: what `--json` prints. Torch-free."""

from __future__ import annotations

from typing import Any

from profiling.results.metrics import Measured
from profiling.results.record import RunFolder
from profiling.results.verdict import verdict


def summary(run: RunFolder) -> dict[str, Any]:
    """Scalars and intervals of every variant; None is unknown, never 0."""
    measured = Measured(run.data)
    judged = verdict(measured)
    predicted = run.data.get("predicted_replay")
    return {
        "run": str(run.path),
        "status": run.data["status"],
        "device": run.data["environment"]["device_name"],
        "model": run.data["model"]["name"],
        "read_gb_per_s": run.data["ceilings"]["read_gb_per_s"],
        "aa_ratio": measured.aa_ratio,
        "verdict": judged.word,
        "verdict_rule": judged.rule,
        "verdict_numbers": judged.numbers.as_intervals() if judged.numbers else None,
        "verdict_sentence": judged.sentence,
        "verdict_bounds": judged.bounds,
        "verdict_blocks": judged.blocks,
        "verdict_blocks_needed": judged.blocks_needed,
        "predicted_replay": predicted,
        "replay_outcome": measured.replay_outcome(predicted) if predicted else None,
        "variants": {row["variant"]: _variant(row, run.data) for row in measured.ladder()},
        "warnings": run.data["warnings"],
    }


def _variant(row: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    entry = record["variants"][row["variant"]]
    analysis = entry.get("trace", {}).get("analysis", {})
    memory = row.get("memory") or {}
    floor, ratio = row.get("floor_ms"), row.get("ratio_to_memory_floor")
    return {
        "gate": row["gate"],
        "reason": row["reason"],
        "step_ms": {str(n): q["median"] if q else None for n, q in row["steps"].items()},
        "floor_ms": floor.mid if floor else None,
        "memory_floor_ms": row.get("memory_floor_ms"),
        "ratio_to_memory_floor": ratio.mid if ratio else None,
        "host_ops_per_step": analysis.get("counts", {}).get("host_ops"),
        "warmup_s": row.get("warm_up_s"),
        "cache_bytes": memory.get("cache_bytes"),
        "buffer_bytes": memory.get("mask_bytes"),
        "parts_us": analysis.get("parts_us"),
        "counts": analysis.get("counts"),
        "profiler_ratio": row.get("profiler_ratio"),
        "excess_ms": row.get("excess_ms"),
        "excess_narrow_ms": row.get("excess_narrow_ms"),
        "removed_ms": row.get("removed_ms"),
    }
