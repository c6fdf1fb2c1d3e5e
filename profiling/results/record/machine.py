"""What else the machine did while it was measured."""

from __future__ import annotations

from profiling.results.record.part import Count, Part, Share, Us


class MachineLook(Part, frozen=True, kw_only=True):
    """Since the look before: cores that other processes kept busy, the share of time that a hypervisor gave
    to others, bytes swapped, and how often a core was throttled for heat; and the most that this process has
    held in memory so far. None is what could not be seen.
    """

    round: Count
    busy_elsewhere: Us
    stolen: Share | None
    swapped_bytes: Count
    throttled: Count | None
    peak_resident_bytes: Count | None = None
