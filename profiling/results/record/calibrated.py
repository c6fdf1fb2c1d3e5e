"""What the instrument found where the truth was known."""

from __future__ import annotations

from msgspec import field

from profiling.results.record.base import Record
from profiling.results.record.part import Count, Ms, Part, Share, Us


class StepDifference(Part, frozen=True):
    """Two steps in a duel: the first's median, and per block the share of it that the second takes off."""

    step_ms: Ms
    shares: list[float]


class InjectedWait(Part, frozen=True):
    """A step that waits `ms` beside the same step without the wait; gaps of both, ms, one per trace."""

    kind: str
    ms: Ms
    difference: StepDifference = field(name="found")
    gaps_plain_ms: list[float]
    gaps_waiting_ms: list[float]


class Truth(Part, frozen=True):
    """A made machine: what its step, drop, gap and excess are, ms, and the word that is right."""

    name: str
    step: Ms
    drop: Us
    gap: Us
    excess: Us
    word: str


class WordsGiven(Part, frozen=True):
    """How often each word was given on a made truth; `loaded`: with a load that comes and goes."""

    truth: Truth
    loaded: bool
    words: dict[str, Count]

    @property
    def runs(self) -> int:
        """How many made records were judged."""
        return sum(self.words.values())


class FalseAlarms(Part, frozen=True):
    """How often an estimator's 95 % interval missed the truth, 0, over `of` series of so many values drawn
    from `noise`; `width`: the median interval's, in units of the noise's median deviation.
    """

    estimator: str
    noise: str
    values: Count
    alarms: Count
    of: Count
    width: float


class RunAnswer(Part, frozen=True):
    """What a run of the study answered. `launching`: low and high share of the excess; `aa_ratio`: low,
    middle and high of its baseline beside itself in the rounds; None where the run cannot tell.
    """

    started: str
    rounds: Count
    word: str
    headline: str
    launching: tuple[Share, Share] | None
    aa_ratio: tuple[float, float, float] | None


class CalibrateRecord(Record, frozen=True, kw_only=True, tag="calibrate"):
    """False alarms, injected waits, verdicts on made truths, and the answers of whole runs."""

    entropy: Count = 0
    beside_itself: list[StepDifference] = []
    injected: list[InjectedWait] = []
    simulated: list[WordsGiven] = field(name="made", default_factory=list)
    estimators: list[FalseAlarms] = []
    runs: list[RunAnswer] = []
