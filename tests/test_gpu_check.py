"""gpu_check survives whatever a part does, says which, and keeps what the others found."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path

import pytest
import torch

from experiments import floor, gpu_check
from experiments.gpu_check import goals, lines, page, parts, verdict
from experiments.shared import cli
from experiments.shared.parts import GRACE_S, Part, Result, archive, run_all
from profiling.measure.models import Wanted
from tests.floor_run import GOLDEN
from variants.errors import UserError
from variants.ladder import ladder


def python(name: str, code: str, limit_s: float = 20, parsed: bool = True) -> Part:
    return Part(name, (sys.executable, "-c", code), limit_s, parsed)


def test_a_part_that_fails_hangs_or_babbles_does_not_stop_the_others(tmp_path: Path) -> None:
    chosen = [
        python("raises", "raise ValueError('why' + ' and so on' * 99)"),
        python("hangs", "import time; print('before', flush=True); time.sleep(60)", limit_s=1),
        python("babbles", "print('no JSON')"),
        python("dies", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
        Part("is missing", ("/no/such/program",), 5),
        python("works", "print('noise'); print('{\"a\": 1}')"),
        python("says nothing", "", parsed=False),
    ]
    seen: list[int] = []
    results = run_all(
        chosen, tmp_path, tmp_path, 90, dict(os.environ), lambda so_far: seen.append(len(so_far))
    )
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert {r.name: r.status for r in results} == {
        "raises": "failed",
        "hangs": "timed out",
        "babbles": "failed",
        "dies": "failed",
        "is missing": "failed",
        "works": "passed",
        "says nothing": "passed",
    }
    reasons = {r.name: r.reason for r in results}
    assert "ValueError: why" in reasons["raises"] and len(reasons["raises"]) < 250
    assert "no JSON" in reasons["babbles"]
    assert "-9" in reasons["dies"] and "/no/such/program" in reasons["is missing"]
    assert results[5].output == {"a": 1}
    stored = json.loads((tmp_path / "gpu-check.json").read_text())
    assert [part["status"] for part in stored["parts"]] == [r.status for r in results]
    assert "before" in (tmp_path / "hangs.log").read_text()


def test_what_the_budget_does_not_reach_is_named(tmp_path: Path) -> None:
    chosen = [python("long", "import time; time.sleep(30)"), python("late", "print('{}')")]
    results = run_all(chosen, tmp_path, tmp_path, GRACE_S + 2, dict(os.environ), lambda so_far: None)
    assert [r.status for r in results] == ["timed out", "not started"]


STORE = """
import shutil, sys, time
shutil.copytree({run!r}, {runs!r})
{end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "failed"),  # an illegal access ends so
        ("time.sleep(60)", "timed out"),
        ("raise SystemExit(1)", "failed"),
    ],
)
def test_a_part_that_dies_leaves_what_it_had_stored_and_the_safe_rungs_their_verdict(
    end: str, status: str, tmp_path: Path
) -> None:
    runs = tmp_path / "onelaunch"
    dying = STORE.format(run=str(GOLDEN), runs=str(runs / GOLDEN.name), end=end)
    safe = python("floor float32", f"import json; print(json.dumps({FLOOR!r}))")
    risky = Part("onelaunch float32", (sys.executable, "-c", dying), 8, runs=runs)
    results = run_all([safe, risky], tmp_path, tmp_path, 90, dict(os.environ), lambda so_far: None)
    assert [r.status for r in results] == ["passed", status]
    assert verdict(results, rehearse=False) == "CONFIRMED: drop >= g/2 (A40)"
    assert results[1].output["variants"]["cat"]["floor_ms"] > 0
    text = str(page(results, rehearse=False))
    assert "**CONFIRMED" in text and "Failed: onelaunch float32" in text


def test_the_archive_leaves_out_what_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.shared.parts.MAX_ARCHIVE_BYTES", 300)
    folder = tmp_path / "check"
    (folder / "traces").mkdir(parents=True)
    for name, size in (("report.md", 100), ("run.json", 150), ("traces/big.gz", 200)):
        (folder / name).write_bytes(os.urandom(size))
    packed, left_out = archive(folder)
    assert left_out == [str(Path("traces/big.gz"))]
    with tarfile.open(packed) as tar:
        assert sorted(tar.getnames()) == ["check/report.md", "check/run.json"]


def test_the_parts_fit_the_budget_and_a_rehearsal_has_the_same() -> None:
    real, rehearsed = parts(False, Path("x")), parts(True, Path("x"))
    assert [p.name for p in real] == [p.name for p in rehearsed]
    assert sum(p.limit_s for p in real[:5]) <= gpu_check.BUDGET_S - GRACE_S, "these can never be crowded out"
    ahead = real[0]
    assert ahead.environment == {"TRITON_INTERPRET": "0"}, "what is interpreted is not compiled"
    studies = [p for p in real if p.runs]
    assert all("cuda" in p.command for p in studies) and len({p.runs for p in studies}) == len(studies)
    assert not any("cuda" in p.command for p in rehearsed)


def test_what_never_ran_on_a_device_runs_after_what_is_safe_and_in_a_process_of_its_own() -> None:
    real = parts(False, Path("x"))
    risky = [any(word in " ".join(part.command) for word in ("triton", "launch")) for part in real]
    first = next(i for i, part in enumerate(real) if part.name == "triton float32")
    safe = ["kernels ahead", "floor float32", "floor bfloat16", "tests"]
    assert not any(risky[1:3]) and [part.name for part in real[:first]] == safe
    assert real[-1].name == "tests of kernels"
    for part in real[first:]:
        assert not ("triton" in part.command and "onelaunch" in " ".join(part.command))


@pytest.mark.parametrize("rehearse", [False, True])
def test_no_part_is_refused_for_its_flags(rehearse: bool) -> None:
    """What runs on a device must not be found out there: a floor study's contexts and steps fit its model."""
    floors = [part for part in parts(rehearse, Path("x")) if "experiments.floor" in part.command]
    assert len(floors) == 8
    for part in floors:
        arguments = floor.parser().parse_args(part.command[3:])
        assert set(cli.names(arguments.variant)) <= set(ladder(arguments.precision))
        name = arguments.model
        workload = floor._workload(arguments, Wanted(name, torch.float32, torch.device("cpu"), 2048).config)
        assert workload.contexts == arguments.context


FLOOR = {
    "verdict": "CONFIRMED",
    "verdict_rule": "drop >= g/2",
    "device": "A40",
    "variants": {
        "cat": {"floor_ms": 5.0, "ratio_to_memory_floor": 7.0},
        "cudagraph": {"floor_ms": 1.5, "ratio_to_memory_floor": 2.1},
        "triton": {"floor_ms": None, "ratio_to_memory_floor": None},
    },
}


def test_the_table_and_the_verdict() -> None:
    ahead = {"compiled": 40, "arch": 90, "slowest": {"kernel": "one_step", "seconds": 21.4}, "errors": []}
    kernels = {"kernels": [{"kernel": "up", "gb_per_s": 512.3}, {"kernel": "head", "gb_per_s": None}]}
    phases = {"phases": [{"phase": "qkv", "us": 41.27}, {"phase": "head", "us": 60.0}]}
    results = [
        Result("floor float32", "passed", 12.0, output=FLOOR),
        Result("kernels float32", "passed", 3.0, output=kernels),
        Result("tests", "failed", 1.0, "exit code 1: boom"),
        Result("kernels ahead", "passed", 30.0, output=ahead),
        Result("phases float32", "passed", 9.0, output=phases),
    ]
    assert goals(FLOOR) == {
        "cudagraph / eager": 0.3,
        "triton / memory floor": None,
        "onelaunch / memory floor": None,
    }
    assert [row[3] for row in lines(results)] == [
        "cudagraph / eager 0.30",
        "up 512 GB/s",
        "exit code 1: boom",
        "40 kernels for 90, the slowest one_step in 21 s",
        "qkv 41.3 us, head 60 us",
    ]
    assert verdict(results, rehearse=False) == "CONFIRMED: drop >= g/2 (A40)"
    assert verdict(results[1:], rehearse=False).startswith("INCONCLUSIVE")
    rehearsed = verdict(results, rehearse=True)
    assert rehearsed.startswith("REHEARSAL") and rehearsed.endswith(verdict(results, rehearse=False))


@pytest.mark.parametrize(("ratio", "word"), [(1.14, "near"), (0.86, "near"), (1.2, "far off")])
def test_the_replay_is_compared_with_what_the_eager_trace_predicted(ratio: float, word: str) -> None:
    outcome = {"variant": "cudagraph", "predicted_ms": (0.9, 1.0, 1.1), "ratio": ratio}
    output = {**FLOOR, "replay_outcome": {**outcome, "measured_ms": (0.9, ratio, 1.5)}}
    _, (name, status, _, detail) = lines([Result("floor bfloat16", "passed", 12.0, output=output)])
    assert (name, status) == ("replay of floor bfloat16", word)
    assert detail.startswith("cudagraph: predicted 1 ms (0.9 to 1.1) from the eager trace, ")
    assert detail.endswith(f"measured {ratio} ms, {ratio:.2f} of it")


def test_without_a_device_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match="--rehearse"):
        gpu_check.main([])


def test_an_unknown_part_is_named_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"unknown part triton; known: kernels ahead, floor float32, .*kernels bfloat16"
    ):
        gpu_check.main(["--rehearse", "--part", "triton", "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_rehearsal_runs_every_part(tmp_path: Path) -> None:
    assert gpu_check.main(["--rehearse", "--out", str(tmp_path), "--quiet"]) == 0
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert (tmp_path / f"{folder.name}.tar.gz").stat().st_size < 16_000_000
    stored = json.loads((folder / "gpu-check.json").read_text())
    assert [part["status"] for part in stored["parts"]] == ["passed"] * 15
    assert stored["parts"][0]["output"]["compiled"] == 3  # one kernel of three models
    assert all(part["output"]["replay_outcome"]["variant"] == "tape" for part in stored["parts"][1:3])
    rows = next(part["output"]["kernels"] for part in stored["parts"] if part["name"] == "kernels float32")
    launches = {"qkv": 2, "attend": 2, "residual": 4, "up": 2, "head": 1, "one_step": 1}  # of two layers
    assert {row["kernel"]: row["launches"] for row in rows} == launches
    assert all(row["step_us"] > 0 for row in rows)
    stamped = next(part["output"]["phases"] for part in stored["parts"] if part["name"] == "phases bfloat16")
    assert [row["phase"] for row in stamped] == ["qkv", "attend", "out", "up", "down", "head"]
