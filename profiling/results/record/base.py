"""What every record holds, and what every record of a runner's measurements holds."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from profiling.results.record.claim import Claim
from profiling.results.record.duel import DuelSteps
from profiling.results.record.entry import Entry
from profiling.results.record.machine import MachineLook
from profiling.results.record.page import Page
from profiling.results.record.part import Count, Part
from profiling.results.record.samples import FirstToken, FloorRead, MatmulSample, Sample
from profiling.results.record.setting import Environment, Model, Peaks
from profiling.results.record.traces import PredictedReplay
from profiling.results.record.workload import Workload
from variants.ladder import OURS, THEIRS


class Record(Part, frozen=True, kw_only=True, tag_field="experiment"):
    """Of one run of any experiment. Lists grow as results arrive; None is what is not known yet.

    `commit`: whose code ran, with "-changed" where files differed from it; None outside of a checkout.
    """

    schema: Literal[3] = 3
    status: Literal["incomplete", "complete"] = "incomplete"
    command: str
    commit: str | None = None
    started: str
    finished: str | None = None
    warnings: list[str] = []
    environment: Environment | None = None
    model: Model | None = None
    claims: list[Claim] = []
    page: Page | None = None

    @classmethod
    def kind(cls) -> str:
        """The name of the experiment."""
        return str(cls.__struct_config__.tag)

    @property
    def place(self) -> str:
        """Where it ran."""
        return self.environment.device_name if self.environment else "any device"


class Measurement(Record, frozen=True, kw_only=True):
    """Of a runner: its cases, and what was timed of them in rounds. `entropy` draws the order of a round."""

    workload: Workload | None = None
    peaks: Peaks | None = None
    entropy: Count = 0
    variants: dict[str, Entry] = {}
    samples: list[Sample] = []
    floors: list[FloorRead] = []
    matmuls: list[MatmulSample] = []
    machine: list[MachineLook] = []
    ttft: list[FirstToken] = []
    duel: DuelSteps | None = None
    predicted_replay: PredictedReplay | None = None
    recompiles_while_timing: Count | None = None

    def __post_init__(self) -> None:
        """A round visits everything once; what stands twice could belong to either round."""
        visits: Counter[tuple[object, ...]] = Counter(
            ("samples", s.round, s.variant, s.width, s.context, s.batch) for s in self.samples
        )
        visits.update(("floors", read.round, read.bytes, read.pages) for read in self.floors)
        visits.update(("ttft", first.round, first.variant) for first in self.ttft)
        for (where, number, *what), times in visits.items():
            if times > 1:
                raise ValueError(f"{where}: round {number} holds {', '.join(map(str, what))} {times} times")

    @property
    def baseline(self) -> str:
        """To whose step others are ratios, and which is timed under a second name too, for the run's noise.

        Our baseline, else that of transformers, and where neither is part of the run the first variant.
        """
        known = [trunk.baseline for trunk in (OURS, THEIRS) if trunk.baseline in self.variants]
        return next(iter([*known, *self.variants]), OURS.baseline)
