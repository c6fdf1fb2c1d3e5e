"""What was wrong with the machine while it was measured, and what to do about it. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from profiling.results.record import Environment, MachineLook, Measurement

MAX_LOAD = 1.0  # per core, at the start: beyond it a step waits for its turn
MAX_BUSY_ELSEWHERE = 0.1  # cores, in a round
MAX_STOLEN = 0.02  # of the time of all cores, in a round


def disturbances(record: Measurement) -> list[str]:
    """One sentence per kind, with the rounds that it was seen in and what to do."""
    return [*_before(record.environment), *_while_measured(record.machine)]


def _before(e: Environment | None) -> list[str]:
    if e is None or not e.cores or e.load_at_start <= MAX_LOAD * e.cores:
        return []
    return [f"the load was {e.load_at_start:.1f} before anything ran: end what else is running, or wait"]


def _while_measured(looks: Sequence[MachineLook]) -> list[str]:
    sentences = []
    busy = [look.busy_elsewhere for look in looks if look.busy_elsewhere > MAX_BUSY_ELSEWHERE]
    if busy:
        sentences.append(
            f"other processes kept up to {max(busy):.1f} cores busy ({_in(busy, looks)}): end them, or run "
            "again"
        )
    stolen = [look.stolen for look in looks if look.stolen is not None and look.stolen > MAX_STOLEN]
    if stolen:
        sentences.append(
            f"the hypervisor gave up to {max(stolen):.0%} of the cores' time to other machines "
            f"({_in(stolen, looks)}): another time or a machine of your own is steadier"
        )
    swapped = [look.swapped_bytes for look in looks if look.swapped_bytes]
    if swapped:
        sentences.append(
            f"{sum(swapped) >> 20} MiB were swapped ({_in(swapped, looks)}): free memory, or take a "
            "smaller model"
        )
    hot = [look.throttled for look in looks if look.throttled]
    if hot:
        sentences.append(
            f"cores were throttled for heat {sum(hot)} times ({_in(hot, looks)}): let the machine cool down"
        )
    return sentences


def _in(seen: Sequence[float], looks: Sequence[MachineLook]) -> str:
    return f"in {len(seen)} of {len(looks)} rounds"
