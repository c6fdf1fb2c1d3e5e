"""Faults of every kind are caught, also those that nothing but one check sees."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from experiments.planted import alarms, answer, holes, main, tables
from profiling.gate import Gate, checks
from profiling.gate.planted import faults_of_every_kind
from profiling.gate.planted.hunt import (
    LOOPS,
    MANY_STEPS,
    NUMERICS,
    ONE_CONTEXT,
    PAGES,
    POSITIONS,
    RECORDED,
    SCALES,
    STORED,
    Planted,
    first_to_catch,
    gate_for,
)
from profiling.gate.planted.kernels import EDITS, SWITCH, planted_kernels, write_sources
from profiling.results.folder import RunFolder
from profiling.results.record import CleanRung, PlantedFault, PlantedRecord
from variants.errors import UserError
from variants.ladder import ladder

ROOT = Path(__file__).parents[1]
# a rung that has what the kind breaks, and the check without which a fault of the kind would pass
NEEDED = [
    (ONE_CONTEXT, "sdpa", "contexts"),
    (ONE_CONTEXT, "int8", "every slot"),
    (NUMERICS, "sdpa", "numerics"),
    (LOOPS, "sdpa", "numerics"),
    (SCALES, "int8", "weights"),
    (MANY_STEPS, "sdpa", "long run"),
    (PAGES, "paged", "long run"),
]
# in a rung that shows them, the kinds that the others would only repeat
SHOWN = {
    "sdpa": (ONE_CONTEXT, NUMERICS, LOOPS, MANY_STEPS, POSITIONS, STORED),
    "int8": (ONE_CONTEXT, LOOPS, SCALES, MANY_STEPS),
    "kv-int8": (SCALES,),
    "tape": (RECORDED,),
    "paged": (PAGES,),
    "cat": (STORED,),
}


@pytest.fixture(autouse=True)
def whole_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "LONG_RUN", 1000)


@pytest.fixture(scope="module")
def gate(tiny) -> Gate:
    return gate_for(tiny, "float32", steps=16, seed=0)


def fitting(rung: str, *kinds: str) -> list[Planted]:
    return [fault for fault in faults_of_every_kind() if fault.fits(ladder()[rung]) and fault.kind in kinds]


@pytest.mark.parametrize(
    ("rung", "fault"),
    [
        pytest.param(rung, fault, id=f"{fault.name} in {rung}")
        for rung, kinds in SHOWN.items()
        for fault in fitting(rung, *kinds)
    ],
)
def test_every_planted_fault_is_caught(gate: Gate, rung: str, fault: Planted) -> None:
    check, reason = first_to_catch(ladder()[rung], gate, fault)
    assert check and reason


@pytest.mark.parametrize("kind,rung,check", NEEDED)
def test_every_kind_has_a_fault_that_its_check_sees(gate: Gate, kind: str, rung: str, check: str) -> None:
    assert check in {first_to_catch(ladder()[rung], gate, fault)[0] for fault in fitting(rung, kind)}


@pytest.mark.parametrize("rung", ["cat", "sdpa", "tape", "paged", "kv-int8", "int8"])
def test_nothing_is_caught_where_nothing_is_planted(gate: Gate, rung: str) -> None:
    assert first_to_catch(ladder()[rung], gate, None) == ("", "")


def test_every_kernel_fault_has_its_place_in_the_sources(tmp_path: Path) -> None:
    write_sources(tmp_path / "csrc")
    texts = {path.name: path.read_text("utf-8") for path in (tmp_path / "csrc").iterdir()}
    assert sum(text.count("planted == ") for text in texts.values()) == len(EDITS) == len(planted_kernels())
    assert all(wrong in texts[file] for file, _, wrong in SWITCH)


def test_a_text_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiling.gate.planted.kernels.SWITCH", (("vec.h", "no such text", ""),))
    with pytest.raises(UserError, match="'no such text' stands in the sources 0 times"):
        write_sources(tmp_path / "csrc")


def test_holes_and_false_alarms_are_named_and_counted() -> None:
    record = PlantedRecord(command="", started="2026-11-30")
    record.planted.extend(
        PlantedFault("a kind", f"fault {n}", "sdpa", check, "") for n, check in enumerate(("greedy", ""))
    )
    record.clean.extend(CleanRung("cat", n, check, "") for n, check in enumerate(("", "rewind")))
    assert answer(record) == (
        "1 of 2 planted faults are caught; 1 of 2 judgements without a fault pass; "
        "holes of the gate: fault 1 in sdpa; false alarms: cat by rewind"
    )
    assert tables(record)[0].rows == [["a kind", "1 of 2"]]


@pytest.mark.parametrize("model", ["gpt2", "shallow"])
def test_the_committed_table_has_enough_of_each_kind_and_no_hole(model: str) -> None:
    (folder,) = (ROOT / "reports" / "published").glob(f"*planted-{model}")
    record = RunFolder.load(folder, PlantedRecord).record
    assert record.model is not None and record.model.name == model
    assert not holes(record) and not alarms(record)
    kinds = Counter(one.kind for one in record.planted)
    assert set(kinds) == {fault.kind for fault in faults_of_every_kind()}
    assert min(kinds.values()) >= 12 and kinds.total() >= 120


@pytest.mark.slow
def test_the_command_finds_every_kernel_fault(tmp_path: Path) -> None:
    """In a process of its own, whose kernels are the faulty copy."""
    flags = ["--variant", "onelaunch,onelaunch-int4", "--quiet", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.planted", *flags], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "flags",
    [
        ["--variant", "nobody"],
        ["--kind", "weather"],
        ["--variant", "naive"],
        ["--clean", "-1"],
        ["--resume", "nowhere"],
    ],
)
def test_bad_input_is_refused(flags: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError):
        main([*flags, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_a_run_that_is_stopped_reports_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catches = iter([("numerics", "")])
    monkeypatch.setattr("profiling.gate.planted.kernels.build_with_faults", nullcontext)
    monkeypatch.setattr("profiling.gate.planted.kernels.planted_kernels", list)

    def first_to_catch(*_: object) -> tuple[str, str]:
        for one in catches:
            return one
        raise KeyboardInterrupt

    monkeypatch.setattr("profiling.gate.planted.hunt.first_to_catch", first_to_catch)
    with pytest.raises(KeyboardInterrupt):
        main(["--quiet", "--variant", "int8", "--kind", SCALES, "--out", str(tmp_path)])
    (folder,) = tmp_path.iterdir()
    assert RunFolder.load(folder, PlantedRecord).record.status == "incomplete"
    assert "1 of 1 planted faults are caught" in (folder / "report.md").read_text("utf-8")


def test_a_run_is_gone_on_with_by_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiling.gate.planted.kernels.build_with_faults", nullcontext)
    monkeypatch.setattr("profiling.gate.planted.kernels.planted_kernels", list)
    monkeypatch.setattr(checks, "LONG_RUN", 32)
    few = ["--quiet", "--clean", "1", "--kind", SCALES]
    assert main([*few, "--variant", "int8", "--seed", "3", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    first = RunFolder.load(folder, PlantedRecord).record
    assert main([*few, "--variant", "int8,kv-int8", "--resume", str(folder)]) == 0
    second = RunFolder.load(folder, PlantedRecord).record
    assert second.planted[: len(first.planted)] == first.planted
    assert {one.rung for one in second.planted[len(first.planted) :]} == {"kv-int8"}
    assert [(one.rung, one.seed) for one in second.clean] == [("int8", 3), ("kv-int8", 3)]
