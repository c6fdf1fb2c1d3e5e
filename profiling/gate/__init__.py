"""The proof that a variant computes the reference function. No proof, no time."""

from profiling.gate.checks import CHECKS
from profiling.gate.evidence import Errors
from profiling.gate.gate import Gate
from profiling.gate.oracle import Oracle
from profiling.gate.trial import KeptSteps

__all__ = ["CHECKS", "Errors", "Gate", "KeptSteps", "Oracle"]
