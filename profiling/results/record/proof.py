"""What the gate found of one decoder."""

from __future__ import annotations

from typing import Literal

from profiling.results.record.part import Count, Part, Share


class CheckErrors(Part, frozen=True):
    """Errors against float64 and what is allowed: root mean square, and largest."""

    rms: float | None
    max: float | None
    allowed_rms: float | None
    allowed_max: float | None

    @property
    def nearness(self) -> float | None:
        """The larger of error over allowed error; None where one is unknown."""
        if self.rms is None or self.max is None or not self.allowed_rms or not self.allowed_max:
            return None
        return max(self.rms / self.allowed_rms, self.max / self.allowed_max)


class GateCheck(Part, frozen=True):
    """One check. `errors`: None for one that compares no numbers, or that failed before it could.

    "not proven": other people's code does not answer what the check asks; `detail` says what.
    """

    check: str
    status: Literal["pass", "fail", "not proven"]
    detail: str = ""
    errors: CheckErrors | None = None


class Drift(Part, frozen=True):
    """A reduced precision against the root's, over positions fed with a random text.

    `first_divergence`: the first position with another top token; `margin_there`: how far the root's two
    best logits are apart there.
    """

    top1_agreement: Share
    mean_kl_nats: float | None
    rms_logit_error: float | None
    first_divergence: Count | None
    margin_there: float | None


class GateResult(Part, frozen=True):
    """Every check that was made, in order; `drift` is of reduced precisions only."""

    greedy_steps: Count = 0
    checks: list[GateCheck] = []
    drift: Drift | None = None

    @property
    def failed(self) -> GateCheck | None:
        """The first check that failed."""
        return next((check for check in self.checks if check.status == "fail"), None)

    @property
    def unproven(self) -> list[GateCheck]:
        """Checks that could not be made, since what they ask is not answered."""
        return [check for check in self.checks if check.status == "not proven"]

    @property
    def status(self) -> Literal["pass", "fail"]:
        """Pass where no check failed."""
        return "fail" if self.failed else "pass"

    @property
    def reason(self) -> str:
        """Which check failed first, and how; empty where none did."""
        return f"{self.failed.check}: {self.failed.detail}" if self.failed else ""
