"""One run as one JSON object: what `--json` prints. Torch-free."""

from __future__ import annotations

from dataclasses import asdict

from msgspec.structs import asdict as fields

from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.peaks import impossible, matmul_rate, peak_resident_bytes, rates, read_rate
from profiling.results.record import Measurement, PredictedReplay
from profiling.results.rung import ReplayOutcome, Rung
from profiling.results.verdict import Verdict, verdicts


def summary(run: RunFolder[Measurement]) -> dict[str, object]:
    """Scalars and intervals of every variant; None is unknown, never 0."""
    record, measured = run.record, Measured(run.record)
    judged = verdicts(measured)
    predicted = record.predicted_replay
    outcome = measured.replay_outcome(predicted) if predicted else None
    return {
        "run": str(run.path),
        "status": record.status,
        "device": record.environment.device_name if record.environment else None,
        "model": record.model.name if record.model else None,
        "read_gb_per_s": record.peaks.read_gb_per_s if record.peaks else None,
        "peaks": {"read_bytes_per_s": read_rate(record), "matmul_flop_per_s": matmul_rate(record)},
        "impossible": impossible(measured),
        "peak_resident_bytes": peak_resident_bytes(record),
        "aa_ratio": measured.aa_ratio,
        **_judged(judged[0]),
        "verdicts": {str(one.parent): _judged(one) for one in judged[1:]},
        "predicted_replay": _prediction(predicted) if predicted else None,
        "replay_outcome": _outcome(outcome) if outcome else None,
        "variants": {rung.variant: _variant(measured, rung) for rung in measured.ladder()},
        "warnings": record.warnings,
    }


def _judged(verdict: Verdict) -> dict[str, object]:
    return {
        "verdict": verdict.word,
        "verdict_rule": verdict.rule,
        "verdict_numbers": verdict.numbers.as_intervals() if verdict.numbers else None,
        "verdict_sentence": verdict.sentence,
        "verdict_bounds": verdict.bounds,
        "verdict_blocks": verdict.blocks,
        "verdict_blocks_needed": verdict.blocks_needed,
    }


def _prediction(predicted: PredictedReplay) -> dict[str, object]:
    replay = predicted.replay
    if replay is None:
        return {"from": predicted.parent}
    us = fields(replay.replay_us) if replay.replay_us else None
    return {"from": predicted.parent, **fields(replay), "replay_us": us, "saved_us": replay.saved_us}


def _outcome(outcome: ReplayOutcome) -> dict[str, object]:
    return {**asdict(outcome), "ratio": outcome.ratio, "inside": outcome.inside}


def _variant(measured: Measured, rung: Rung) -> dict[str, object]:
    entry = measured.entry(rung.variant)
    trace, memory = entry.trace, rung.memory
    floor, ratio = rung.floor_ms, rung.ratio_to_memory_floor
    counts = fields(trace.counts) if trace else None
    return {
        "gate": rung.gate,
        "reason": rung.reason,
        "step_ms": {str(n): step.median if step else None for n, step in rung.steps.items()},
        "floor_ms": floor.mid if floor else None,
        "memory_floor_ms": rung.memory_floor_ms,
        "ratio_to_memory_floor": ratio.mid if ratio else None,
        **(asdict(rates(measured, rung.variant, measured.contexts[0])) if rung.measured else {}),
        "host_ops_per_step": trace.counts.host_ops if trace else None,
        "warmup_s": rung.warm_up_s,
        "cache_bytes": memory.cache_bytes if memory else None,
        "buffer_bytes": memory.mask_bytes if memory else None,
        "parts_us": trace.parts_us if trace else None,
        "counts": counts,
        "profiler_ratio": rung.profiler_ratio,
        "excess_ms": rung.excess_ms,
        "excess_narrow_ms": rung.excess_narrow_ms,
        "removed_ms": rung.removed_ms,
    }
