"""Faults planted to be caught: in the modules, by region and by numerics, and in the one-launch kernels."""
