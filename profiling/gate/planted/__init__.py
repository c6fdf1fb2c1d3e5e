"""Faults planted to be caught: in the modules, by region and by numerics, and in the one-launch kernels."""

from profiling.gate.planted import held, kernels, layouts, numerics, regions
from profiling.gate.planted.hunt import Planted


def faults_of_every_kind() -> list[Planted]:
    """In the modules, and in the one-launch kernels of a process that was built with faults."""
    groups = (regions, numerics, held, layouts)
    return [*(fault for group in groups for fault in group.PLANTED), *kernels.planted_kernels()]
