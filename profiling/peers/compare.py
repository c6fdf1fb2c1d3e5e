"""What a record of peers says: a row per engine, and the fastest of others at each precision."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from profiling.results.record import EngineSample, PeerEntry, PeersRecord
from profiling.results.stats import Interval, Quantiles, quantiles, ratio_interval

AGAINST = {
    "float32": "onelaunch",
    "16 bit": "onelaunch-bf16",
    "8 bit": "onelaunch-int8",
    "4 bit": "onelaunch-int4",
}
REFERENCE = "sdpa"  # whose tokens count as right


@dataclass(frozen=True)
class PeerRow:
    """One engine: its step in ms, `ratio` of it to our one launch at its precision, to the plain read of its
    own bytes (`over_floor`), and how many of its tokens are the reference's. Unknown is None.
    """

    name: str
    ours: bool
    version: str | None
    precision: str
    step_ms: Quantiles
    ratio: Interval | None
    floor_ms: float | None
    over_floor: Interval | None
    right_tokens: float | None


Samples = dict[str, list[EngineSample]]  # by engine


def rows(record: PeersRecord, context: int) -> list[PeerRow]:
    """The rows precision by precision, in the record's order; engines without times have no row.

    Ratios are taken within rounds.
    """
    seen: Samples = {}
    for sample in record.samples:
        if sample.context == context and record.engines[sample.engine].status == "measured":
            seen.setdefault(sample.engine, []).append(sample)
    in_order = [
        _row(name, entry, seen, _floors(record, entry.step_bytes.get(context)))
        for name, entry in record.engines.items()
        if name in seen
    ]
    return sorted(in_order, key=lambda row: list(AGAINST).index(row.precision))


def _floors(record: PeersRecord, size: int | None) -> dict[int, float]:
    """Median read of so many bytes, ms, by round."""
    return {read.round: median(read.ms) for read in record.floors if read.bytes == size}


def _row(name: str, engine: PeerEntry, seen: Samples, floors: dict[int, float]) -> PeerRow:
    ours = AGAINST[engine.precision]
    both = [(median(s.ms), floors[s.round]) for s in seen[name] if s.round in floors]
    return PeerRow(
        name=name,
        ours=engine.ours,
        version=engine.version,
        precision=engine.precision,
        step_ms=quantiles([ms for sample in seen[name] for ms in sample.ms]),
        ratio=ratio_interval(_medians(seen[name]), _medians(seen[ours])) if ours in seen else None,
        floor_ms=median(floors.values()) if floors else None,
        over_floor=ratio_interval(*zip(*both, strict=True)) if both else None,
        right_tokens=_right(seen[name], seen.get(REFERENCE)),
    )


def _medians(samples: list[EngineSample]) -> list[float]:
    return [median(sample.ms) for sample in samples]


def _right(samples: list[EngineSample], reference: list[EngineSample] | None) -> float | None:
    if reference is None:
        return None
    pairs = [
        pair
        for mine, right in zip(samples, reference, strict=True)
        for pair in zip(mine.tokens, right.tokens, strict=True)
    ]
    return float(sum(mine == right for mine, right in pairs)) / len(pairs)


def fastest_others(rows: list[PeerRow]) -> dict[str, tuple[PeerRow, PeerRow]]:
    """Per precision that has both: the row of our one launch, and the row of the fastest engine of others."""
    pairs = {}
    for precision, name in AGAINST.items():
        mine = [row for row in rows if row.name == name]
        others = [row for row in rows if row.precision == precision and not row.ours]
        if mine and others:
            pairs[precision] = mine[0], min(others, key=lambda row: row.step_ms.median)
    return pairs


def wrong(rows: list[PeerRow]) -> list[str]:
    """Names of float32 engines that left the reference's tokens: they did other work than the others."""
    exact = [row for row in rows if row.precision == "float32"]
    return [row.name for row in exact if row.right_tokens not in (1, None)]
