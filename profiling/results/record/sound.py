"""Do the parts of a record belong together? What its types cannot say."""

from __future__ import annotations

from collections.abc import Iterator

from profiling.results.record.base import Measurement
from profiling.results.record.samples import AGAIN_SUFFIX


def faults(record: Measurement) -> Iterator[str]:
    """What is missing or foreign: the field, and what was expected there."""
    names = [*(steps.variant for steps in record.samples), *(first.variant for first in record.ttft)]
    timed = {name.removesuffix(AGAIN_SUFFIX) for name in names}
    for name in sorted(timed - record.variants.keys()):
        yield f"variants: expected {name}, which was timed"
    proven = {name: entry for name, entry in record.variants.items() if entry.status == "proven"}
    if proven or timed:
        if record.workload is None:
            yield "workload: expected object, got null in a run that measured"
        if record.model is None or record.model.shape is None:
            yield "model.shape: expected object, got null in a run that measured"
    contexts = record.workload.contexts if record.workload else ()
    for name, entry in proven.items():
        for field, known in (("slots", entry.slots.keys()), ("prediction", entry.prediction.keys())):
            if missing := [n for n in contexts if n not in known]:
                yield f"variants.{name}.{field}: expected context {missing[0]}"
