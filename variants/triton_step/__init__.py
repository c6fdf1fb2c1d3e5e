"""The decode step in Triton: the same phases under two schedules.

`TritonStep` launches one kernel per phase, `OneLaunch` one persistent kernel per step. Nothing here is
imported before a decoder asks for such a body, so that the project works where Triton does not.
"""
