"""Every known silent bug is silent, and caught by the check that is meant for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from experiments.faults import NOTHING, difference, main, outcome
from experiments.shared.demo import attentive
from profiling.gate import CHECKS, Gate
from profiling.gate.examine import Finding, examine
from profiling.gate.faults import FAULTS, Fault
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import random_model

# the check that each bug must not get past; most fail others too
MEANT = {
    "mask aligned top left": "greedy",
    "mask off": "forced",
    "history hidden from a chunk": "chunks",
    "future visible in a chunk": "chunks",
    "position starts at 0": "forced",
    "position counted twice": "forced",
    "first token not written": "forced",
    "position of the last prompt": "second prompt",
    "old tail visible after rewind": "rewind",
    "ragged rows padded on the left": "ragged rows",
    "positions wrap past the context": "capacity",
    "cache rounded on the way": "forced",
    "new before old": "rewind",
    "token not copied before the replay": "forced",
    "position frozen into the recording": "forced",
    "new tokens not appended": "greedy",
    "query cached too": "greedy",
    "another requests cache": "second prompt",
    "block table not updated": "forced",
    "newest scale for all": "forced",
}
BROAD = [fault for fault in FAULTS if fault.variant == "sdpa" and fault.batch == 1]
# of the bugs written for a plain static cache: these have no meaning, or no effect, in another kind
ELSEWHERE = {
    "paged": {"first token not written", "positions wrap past the context"},  # the pool refuses past its end
    "kv-int8": {"first token not written", "cache rounded on the way"},
}


@pytest.fixture(scope="module")
def gates(tiny) -> dict[int, Gate]:
    return {batch: Gate(tiny, "float32", batch=batch, steps=26, forced=26) for batch in (1, 2)}


def failing(fault: Fault, variant: str, gate: Gate, names: list[str]) -> list[str]:
    checks = []
    for name in names:
        decoder = Decoder.of(ladder()[variant], gate.model, batch=fault.batch)
        fault.inject(decoder)
        checks += [name] if gate.check_only(decoder, name).status == "fail" else []
    return checks


def test_every_fault_has_its_check() -> None:
    assert sorted(MEANT) == sorted(fault.name for fault in FAULTS)
    assert set(MEANT.values()) <= set(CHECKS)
    cases = " ".join(fault.source for fault in FAULTS).replace(",", " ").split()
    assert {str(n) for n in [*range(1, 13), 15]} <= set(cases)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_is_caught_by_the_check_meant_for_it(gates, fault: Fault) -> None:
    """On a model as it is drawn, whose attention hardly matters: the hardest to see."""
    meant = MEANT[fault.name]
    assert failing(fault, fault.variant, gates[fault.batch], [meant]) == [meant]


@pytest.mark.parametrize("variant", list(ELSEWHERE))
@pytest.mark.parametrize("fault", BROAD, ids=lambda fault: fault.name)
def test_the_same_bugs_are_caught_in_the_caches_that_serving_uses(gates, fault: Fault, variant: str) -> None:
    if fault.name in ELSEWHERE[variant]:
        pytest.skip(f"no such bug in {variant}")
    assert failing(fault, variant, gates[1], list(CHECKS))


def test_wrong_order_passes_the_check_of_greedy_tokens(gates) -> None:
    """CASES 12: single steps stay right, which is why the gate also looks into the cache."""
    (fault,) = (fault for fault in FAULTS if fault.name == "new before old")
    assert failing(fault, "cat", gates[1], ["greedy", "forced", "chunks"]) == ["forced", "chunks"]


@pytest.mark.parametrize("name", ["mask off", "new before old", "token not copied before the replay"])
def test_a_finding_names_what_was_seen(tiny, name: str) -> None:
    model = attentive(tiny)
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    assert not ladder()[fault.variant].why_not("cpu")
    finding = examine(fault, model, "float32", Gate(model, "float32", steps=8, forced=16), seed=0)
    assert finding.crashed == "" and MEANT[name] in finding.caught_by and finding.reason
    assert len(finding.right) == len(finding.broken) == 28


def test_a_hole_makes_the_claim_fail() -> None:
    hole = Finding("some bug", "case 0", "sdpa", "", [1, 2], [1, 3], "", [], "")
    result = outcome([hole])
    assert result.verdict.startswith("Claim does not hold here: 0 of 1 silent bugs")
    assert "faults.caught" in result.verdict and result.measured[1].rows[0][-1] == "HOLE"


def test_the_difference_starts_one_token_early() -> None:
    assert difference([5, 6, 7, 8], [5, 6, 9, 8]) == ("6 7 8", "6 9 8")
    assert difference([5, 6], [5, 6]) == ("5 6", NOTHING)
    assert difference("refused: no", [1, 2]) == ("refused", "1 2")


def test_what_was_written_is_shown_as_letters_where_there_is_a_tokenizer() -> None:
    tokenizer = SimpleNamespace(decode=lambda ids, skip_special_tokens: "".join(map(chr, ids)))
    right, broken = [*b"To be\nor not to be"], [*b"To be\nor,,,,,,,,,"]
    assert difference(right, broken, tokenizer) == ("r not to be", "r,,,,,,,,,")
    assert difference(right, right, tokenizer) == ("To be·or not to be", NOTHING)


def test_a_frozen_model_writes_fewer_tokens_than_before() -> None:
    def finding(fault: str, broken: list[int]) -> Finding:
        return Finding(fault, "article 3", "sdpa", "", [*range(28)], broken, "", ["greedy"], "")

    frozen = finding("new tokens not appended", [16] * 8 + [*range(20)])
    leak = finding("another requests cache", [*range(16), *range(40, 52)])
    checks = {check.key: check for check in outcome([frozen, leak]).checks}
    assert checks["faults.frozen"].here == "1 distinct of 8 instead of 8" and checks["faults.frozen"].holds
    assert checks["faults.leak.text"].here.startswith("[40, 41, 42, 43, 44, 45, 46, 47] instead of [16, 17")
    alive = finding("new tokens not appended", [*range(28)])
    assert {c.key: c.holds for c in outcome([alive]).checks}["faults.frozen"] is False


def test_a_longer_text_makes_every_part_of_a_session_longer() -> None:
    """As long as its last part finds room behind all others, which another request's cache leaves there."""
    toy = attentive(random_model(PRESETS["toy"]))
    (fault,) = (fault for fault in FAULTS if fault.name == "another requests cache")
    gate = Gate(toy, "float32", steps=4, forced=4)
    finding = examine(fault, toy, "float32", gate, seed=0, text=torch.arange(80) % 50)
    assert len(finding.right) == len(finding.broken) == 3 * 28 and not finding.crashed


@pytest.mark.parametrize("flags", [["--fault", "mask of"], ["--model", "nowhere"], ["--device", "cuda"]])
def test_bad_input_is_refused(flags: list[str], tmp_path) -> None:
    with pytest.raises(UserError):
        main([*flags, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_the_experiment_writes_its_folder_and_verdict(tmp_path, capsys) -> None:
    assert (
        main(["--fault", "mask off,new before old", "--quick", "--quiet", "--json", "--out", str(tmp_path)])
        == 0
    )
    assert '"verdict":"Claim holds here: 2 of 2' in capsys.readouterr().out.splitlines()[-1]
    (folder,) = tmp_path.iterdir()
    assert (folder / "report.md").read_text().count("mask off") >= 2
