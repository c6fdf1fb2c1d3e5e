"""A decoder that gives another answer after it was timed has no times."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from profiling.gate import KeptSteps
from profiling.measure.runner import Runner
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import FloorRecord, Peaks, Workload
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.ladder import BASELINE, ladder
from variants.model import random_model

WORKLOAD = Workload(contexts=(6, 40), gate_steps=4, brief_gate=True, rounds=1, ttft_rounds=0, prompt=4)


def loses_a_slot(decoder: Decoder) -> None:
    """At one context, of one slot: what nothing proved before."""
    decoder.our_modules.mask.tables[None][..., 40:, 3] = False


def test_a_kept_step_is_given_again_and_a_worn_out_decoder_is_found(tiny) -> None:
    decoder = Decoder.of(ladder()["sdpa"], tiny)

    def load(n: int) -> None:
        decoder.prefill(torch.arange(n)[None])

    steps = KeptSteps(decoder, (6, 40), load)
    assert steps.why_not_again() is None
    loses_a_slot(decoder)
    reason = steps.why_not_again()
    assert reason is not None and "context 40" in reason


@pytest.mark.parametrize("worn", [True, False])
def test_a_run_drops_what_does_not_agree_with_its_proof(worn: bool, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, FloorRecord, "cpu")
    variants = [ladder()[name] for name in ("naive", BASELINE, "sdpa")]
    runner = Runner(run, WORKLOAD, random_model(PRESETS["tiny"]), variants)
    run.update(peaks=Peaks(1e9, 1e9, 1.0, None, None), workload=WORKLOAD)
    runner.prove()
    runner.measure()
    if worn:
        loses_a_slot(next(case.decoder for case in runner.cases if case.name == "sdpa"))
    runner.repeat()
    status = {name: entry.status for name, entry in run.record.variants.items()}
    assert status == {"naive": "proven", BASELINE: "proven", "sdpa": "failed" if worn else "proven"}
    assert Measured(run.record).has_times("sdpa") is not worn
    assert ("after it was timed" in run.record.variants["sdpa"].reason) is worn
