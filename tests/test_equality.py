"""Our model beside transformers' own code: the same logits and tokens, or it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments import equality
from profiling.results.folder import RunFolder
from profiling.results.record import EqualityRecord
from variants.model import Block


def run(out: Path, *flags: str) -> EqualityRecord:
    assert equality.main(["--model", "toy", "--quiet", *flags, "--out", str(out)]) == 0
    (folder,) = out.iterdir()
    return RunFolder.load(folder, EqualityRecord).record


def claims(record: EqualityRecord) -> dict[str, bool | None]:
    return {claim.key: claim.holds for claim in record.claims}


def test_the_same_weights_give_the_same_logits_and_tokens(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    record = run(tmp_path, "--quick")
    assert list(record.tokens) == ["naive", "cat", "hf"] and len({*map(tuple, record.tokens.values())}) == 1
    assert len(record.tokens["cat"]) == equality.QUICK_NEW and claims(record) == {"equality.logits": True}


def test_another_activation_is_no_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(Block, "activated", lambda self, x: torch.nn.functional.relu(x))
    assert claims(run(tmp_path, "--quick")) == {"equality.logits": False}


def test_200_tokens_are_judged_and_a_different_one_refutes(tmp_path: Path) -> None:
    ids = [[*range(200)], [*range(200)], [*range(199), 7]]
    made = {"command": "", "started": ""}
    for others, holds in ((ids[1], True), (ids[2], False)):
        model = equality.Model("by hand", "float32")
        record = EqualityRecord(**made, model=model, largest=1.0, tokens={"naive": ids[0], "cat": others})
        outcome = equality.outcome(record)
        assert [check.holds for check in outcome.checks] == [holds] and outcome.also is holds
        assert outcome.measured[0].rows[1][1] == ("200 of 200" if holds else "199 of 200")
        assert outcome.notes == ["transformers is not installed: its code is not compared"]
