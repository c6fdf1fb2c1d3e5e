"""What is not the same in two runs, by what it is a difference of. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import asdict as fields

from profiling.results.record import Environment, Measurement


class Matter(StrEnum):
    """What a difference between two runs is a difference of."""

    WORK = "work"  # the steps do other work: no ratio is taken
    MACHINE = "machine"  # the ratios compare machines
    SOFTWARE = "software"  # what a comparison on one machine is made for
    METHOD = "method"  # how often and what was measured


SOFTWARE = ("os", "python")
GPU_SOFTWARE = ("runtime", "driver")


class Discrepancy(NamedTuple):
    """Something that is not the same in both runs; "unknown" is what a run did not say."""

    matter: Matter
    what: str
    before: str
    after: str


def discrepancies(before: Measurement, after: Measurement) -> list[Discrepancy]:
    """Everything that at least one of the runs knows and that is not the same in both, by matter."""
    earlier, later = dict(_facts(before)), dict(_facts(after))
    rows = []
    for key in earlier | later:
        one, other = (str(facts.get(key, "unknown")) for facts in (earlier, later))
        if one != other:
            rows.append(Discrepancy(*key, one, other))
    return sorted(rows, key=lambda row: list(Matter).index(row.matter))


def _facts(record: Measurement) -> Iterator[tuple[tuple[Matter, str], object]]:
    """What a run says of itself; of what it does not know, nothing."""
    model, workload = record.model, record.workload
    if record.environment is not None:
        yield from _machine(record.environment)
    if record.commit:
        yield (Matter.SOFTWARE, "commit"), record.commit
    if model is not None:
        yield (Matter.METHOD, "model's name"), model.name
        yield (Matter.WORK, "precision"), model.precision
        for name, value in (asdict(model.shape) if model.shape else {}).items():
            yield (Matter.METHOD if name == "n_ctx" else Matter.WORK, name), value
    for name, value in (fields(workload) if workload else {}).items():
        yield (Matter.METHOD, name.replace("_", " ")), value


def _machine(environment: Environment) -> Iterator[tuple[tuple[Matter, str], object]]:
    known = fields(environment)
    packages, gpu = known.pop("packages"), known.pop("gpu")
    del known["load_at_start"]  # of the minute, not of the machine
    known["memory"] = f"{known.pop('memory_bytes') / 2**30:.0f} GiB"
    if environment.device_name == environment.cpu:
        del known["device_name"]
    matters = {name: Matter.SOFTWARE if name in SOFTWARE else Matter.MACHINE for name in known}
    for name, value in (fields(gpu) if gpu else {}).items():
        known[f"GPU {name}"] = value
        matters[f"GPU {name}"] = Matter.SOFTWARE if name in GPU_SOFTWARE else Matter.MACHINE
    for name, value in known.items():
        if value is not None:
            yield (matters[name], name.replace("_", " ")), value
    for name, value in packages.items():
        yield (Matter.SOFTWARE, name), value or "not installed"
