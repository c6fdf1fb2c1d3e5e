"""Reading traces: `load` a file to a table, find its `steps`, link device work to the calls that started
it.
"""

from profiling.trace.load import Trace, load
from profiling.trace.steps import Steps, steps

__all__ = ["Steps", "Trace", "load", "steps"]
