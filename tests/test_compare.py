"""Two runs held against each other: what may be compared, how far steps moved, and when a guard speaks."""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from floor_run import GOLDEN, ROOT, copied
from hypothesis import given
from hypothesis import strategies as st
from records import entry, setting

from experiments import compare
from experiments.shared import cli
from profiling.results.discrepancies import Matter
from profiling.results.record import (
    Environment,
    FloorRead,
    FloorRecord,
    Sample,
    StepPrediction,
    encoded,
    replaced,
)
from profiling.results.run_pair import RunPair
from profiling.results.stats import independent_ratio

PUBLISHED = ROOT / "reports" / "published"
ALL_RUNGS, DEFAULT = "2026-11-29-amd-epyc-2-cores-all-rungs", "2026-11-30-amd-epyc-2-cores"
BYTES, ROUNDS = 1000, 120
HERE = Environment("cpu", "a", "a", 2, 2, "AVX2", 1 << 34, None, "Linux", "3.11", {"torch": "2.13"}, 0.1)


def made(seed: int, slower: float = 1.0, machine: float = 1.0, **changes: Any) -> FloorRecord:
    """A run of two rungs at two contexts. The machine's speed, read and step alike, wanders and differs from
    run to run; `slower` multiplies the steps of one rung alone.
    """
    noise = np.random.default_rng(seed)
    names, contexts = ("cat", "sdpa"), (10, 100)
    expected = StepPrediction(BYTES, 1, 1.0, 1.0)
    known: dict[str, Any] = {"status": "proven", "prediction": dict.fromkeys((0, *contexts), expected)}
    known["slots"] = {n: n + 1 for n in contexts}
    samples, floors, wander = [], [], 0.0
    for number in range(ROUNDS):
        wander = 0.6 * wander + noise.normal(0, 0.02)

        def ms(of: float, wander: float = wander) -> list[float]:
            return [of * machine * float(np.exp(wander + noise.normal(0, 0.02))) for _ in range(2)]

        floors.append(FloorRead(round=number, bytes=BYTES, pages="default", ms=ms(5.0)))
        for name in names:
            for n in contexts:
                times = ms(10.0 * (slower if name == "sdpa" else 1.0))
                samples.append(
                    Sample(
                        round=number,
                        variant=name,
                        width=8,
                        context=n,
                        batch=1,
                        steps_ms=times,
                        pipelined_ms=None,
                    )
                )
    record = FloorRecord(
        **setting(contexts=contexts, rounds=ROUNDS),
        environment=HERE,
        variants={name: entry(**known) for name in names},
        samples=samples,
        floors=floors,
    )
    return replaced(record, **changes)


def kept(record: FloorRecord, folder: Path) -> str:
    folder.mkdir()
    (folder / "run.json").write_bytes(encoded(record))
    return str(folder)


def guard(before: FloorRecord, after: FloorRecord, tmp_path: Path) -> int:
    paths = kept(before, tmp_path / "before"), kept(after, tmp_path / "after")
    return compare.main([paths[1], "--baseline", paths[0], "--fail-if-slower", "5%", "--quiet"])


@pytest.mark.parametrize("seed", range(20))
def test_a_guard_lets_equal_runs_pass_also_on_a_slower_day(seed: int, tmp_path: Path) -> None:
    day = float(np.exp(np.random.default_rng(seed + 100).normal(0, 0.05)))
    assert guard(made(2 * seed), made(2 * seed + 1, machine=day), tmp_path) == 0


@pytest.mark.parametrize("seed", range(20))
def test_a_guard_sees_a_step_that_takes_a_tenth_longer(seed: int, tmp_path: Path, capsys: Any) -> None:
    paths = kept(made(seed), tmp_path / "before"), kept(made(seed + 50, slower=1.1), tmp_path / "after")
    assert compare.main([*paths, "--fail-if-slower", "5%"]) == 1
    said = capsys.readouterr().out
    assert "Slower by more than 5 %: sdpa at context 10, sdpa at context 100" in said
    assert "2 slower" in said


def test_a_slower_machine_is_not_a_slower_step() -> None:
    pair = RunPair(made(1), made(2, machine=1.2))
    assert {shift.word for shift in pair.shifts} == {"as the reads"}
    assert all(shift.ratio and shift.ratio.contains(1.2) for shift in pair.shifts)


def test_where_the_two_readings_disagree_both_are_left_open() -> None:
    """Reads that became slower for another reason prove nothing about a step."""
    after = made(2, slower=1.3)
    after.floors[:] = [replaced(read, ms=[3 * ms for ms in read.ms]) for read in after.floors]
    (shift, *_) = [s for s in RunPair(made(1), after).shifts if s.cell.variant == "sdpa"]
    assert shift.word == "as the reads" and shift.slower_by
    assert shift.slower_by.low < 0 and shift.slower_by.contains(0.3)


def test_a_faster_step_is_called_so() -> None:
    words = {(s.cell.variant, s.word) for s in RunPair(made(1), made(2, slower=0.8)).shifts}
    assert words == {("cat", "not seen"), ("sdpa", "faster")}


@given(st.integers(2, 40), st.integers(2, 40), st.floats(0.2, 5.0), st.integers(0, 10**6))
def test_a_ratio_turns_over_with_its_runs_and_scales(n: int, m: int, by: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    one, other = np.exp(draw.normal(0, 0.1, n)), np.exp(draw.normal(0, 0.1, m))
    there, back = independent_ratio(by * one, other), independent_ratio(other, by * one)
    plain = independent_ratio(one, other)
    assert there and back and plain
    assert np.allclose(there, [1 / x for x in reversed(back)]) and np.allclose(there, plain.scaled(by))


def test_a_single_round_has_no_interval() -> None:
    assert independent_ratio([1.0], [1.0, 2.0]) is None


CHANGES: dict[str, tuple[Matter, Callable[[FloorRecord], dict[str, Any]]]] = {
    "cpu": (Matter.MACHINE, lambda r: {"environment": replaced(HERE, cpu="b", device_name="b")}),
    "threads": (Matter.MACHINE, lambda r: {"environment": replaced(HERE, threads=1)}),
    "simd": (Matter.MACHINE, lambda r: {"environment": replaced(HERE, simd="AVX512")}),
    "torch": (Matter.SOFTWARE, lambda r: {"environment": replaced(HERE, packages={"torch": "2.14"})}),
    "python": (Matter.SOFTWARE, lambda r: {"environment": replaced(HERE, python="3.14")}),
    "commit": (Matter.SOFTWARE, lambda r: {"commit": "0123456789ab-changed"}),
    "precision": (Matter.WORK, lambda r: {"model": replaced(r.model, precision="bfloat16")}),
    "seed": (Matter.METHOD, lambda r: {"workload": replaced(r.workload, seed=1)}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_differs_is_listed_with_what_it_means(what: str, tmp_path: Path, capsys: Any) -> None:
    matter, change = CHANGES[what]
    before = made(1)
    after = made(2, **change(before))
    pair = RunPair(before, after)
    assert [(row.matter, row.what) for row in pair.discrepancies] == [(matter, what)]
    assert (not pair.shifts) == (matter is Matter.WORK)
    if matter in (Matter.WORK, Matter.MACHINE):
        paths = kept(before, tmp_path / "before"), kept(after, tmp_path / "after")
        error = refusal([*paths, "--fail-if-slower", "5%"], capsys)
        assert f"after cannot be held against before: {what} is" in error
    else:
        assert guard(before, after, tmp_path) == 0


def test_another_model_is_other_work() -> None:
    changed = made(2, **setting(width=16, contexts=(10, 100), rounds=ROUNDS))
    pair = RunPair(made(1), changed)
    assert [row.what for row in pair.of(Matter.WORK)] == ["n_embd", "n_inner"] and not pair.shifts


def test_cells_that_do_other_work_are_left_out() -> None:
    before, after = made(1), made(2)
    after.variants["sdpa"] = replaced(after.variants["sdpa"], slots={10: 128, 100: 101})
    after.variants["cat"] = replaced(after.variants["cat"], precision="int8")
    del after.samples[:]
    after.samples.extend(s for s in made(2).samples if (s.variant, s.context) != ("sdpa", 100))
    reasons = {(c.variant, c.context): why for c, why in RunPair(before, after).left_out.items()}
    assert reasons == {
        ("sdpa", 100): "only in the first",
        ("sdpa", 10): "attends over 11 slots and 128",
        ("cat", 10): "precision float32 and int8",
        ("cat", 100): "precision float32 and int8",
    }


def test_two_published_runs_are_compared(tmp_path: Path, capsys: Any) -> None:
    paths = [str(PUBLISHED / name) for name in (ALL_RUNGS, DEFAULT)]
    flags = ["--json", "--csv", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "report")]
    assert compare.main([*paths, *flags]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed["before"] == ALL_RUNGS and list(printed["after"]) == [DEFAULT]
    steps = printed["after"][DEFAULT]["steps"]
    assert {"naive", "cat", "sdpa", "tape", "onelaunch"} <= {step["variant"] for step in steps}
    rows = list(csv.DictReader((tmp_path / "rows.csv").open()))
    assert [row["variant"] for row in rows] == [step["variant"] for step in steps]
    assert all(float(row["ratio_mid"]) == step["ratio"][1] for row, step in zip(rows, steps, strict=True))
    report = (tmp_path / "report" / "report.md").read_text()
    assert all(f"`{step['variant']}`" in report for step in steps)
    assert (tmp_path / "report" / "figures" / "steps-0.png").stat().st_size > 1000


def test_several_runs_are_held_against_the_first(tmp_path: Path, capsys: Any) -> None:
    paths = [kept(made(seed), tmp_path / f"run{seed}") for seed in range(3)]
    assert compare.main([*paths, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (printed["before"], list(printed["after"])) == ("run0", ["run1", "run2"])


def refusal(flags: list[str], capsys: Any) -> str:
    with pytest.raises(SystemExit) as stopped:
        cli.run(compare.main, flags)
    error: str = capsys.readouterr().err
    assert stopped.value.code == 2 and error.startswith("error: ") and error.count("\n") == 1
    return error


def test_bad_input_is_one_line(tmp_path: Path, capsys: Any) -> None:
    peers = str(PUBLISHED / "2026-11-30-amd-epyc-2-cores-peers")
    assert "is a run of peers without times" in refusal([peers, str(GOLDEN)], capsys)
    assert "give a second RUN, or --baseline" in refusal([str(GOLDEN)], capsys)
    assert "expected a run folder" in refusal([str(GOLDEN), str(tmp_path)], capsys)
    assert "expected a share like 5%" in refusal([str(GOLDEN)] * 2 + ["--fail-if-slower", "0.05"], capsys)
    (tmp_path / "half.json").write_text("{")
    assert "is not valid JSON" in refusal([str(GOLDEN), str(tmp_path / "half.json")], capsys)
    alone = copied(tmp_path / "alone", lambda record: record.update(samples=record["samples"][:1]))
    assert "no step was timed in two rounds" in refusal(
        [str(GOLDEN), str(alone), "--fail-if-slower", "5%"], capsys
    )


def test_the_example_for_ci_is_a_workflow_of_commands_that_exist() -> None:
    yaml = pytest.importorskip("yaml", reason="comes with the extra `docs`")
    text = (ROOT / "docs" / "comparing.md").read_text("utf-8")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", text, flags=re.M | re.S)
    workflow = yaml.safe_load(block)
    (job,) = workflow["jobs"].values()
    ran = [shlex.split(line) for step in job["steps"] for line in step.get("run", "").splitlines()]
    ours = [words for words in ran if words[:2] == ["python", "-m"] and words[2].startswith("experiments.")]
    assert {words[2] for words in ours} == {"experiments.floor", "experiments.compare"}
    for _, _, module, *flags in ours:
        import_module(module).parser().parse_args(flags)
