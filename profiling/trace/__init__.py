"""Reading traces: `load` a file to a table, find its `steps`, link device work to the calls that started
it.
"""

from profiling.trace.file import Trace, load
from profiling.trace.marks import Steps, steps

__all__ = ["Steps", "Trace", "load", "steps"]
