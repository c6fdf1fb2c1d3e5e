"""The floor study from the command line: what it writes, what it says, and how it refuses and recovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import floor
from profiling.measure.visits import Steps
from profiling.results.folder import RunFolder
from profiling.results.peaks import matmul_rate, read_rate
from profiling.results.record import FloorRecord
from variants.decoder import Decoder
from variants.errors import UserError

ROOT = Path(__file__).parent.parent
FAST = ["--model", "tiny", "--context", "6,20", "--rounds", "3", "--quick", "--max-time", "1s"]
FIELDS = {
    "gate", "reason", "step_ms", "floor_ms", "memory_floor_ms", "ratio_to_memory_floor", "host_ops_per_step",
    "warmup_s", "cache_bytes", "buffer_bytes", "parts_us", "counts", "profiler_ratio", "excess_ms",
    "removed_ms",
}  # fmt: skip


def run(arguments: list[str], capsys) -> dict:
    assert floor.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> RunFolder:
    out = tmp_path_factory.mktemp("runs")
    floor.main([*FAST, "--variant", "naive,tape", "--out", str(out), "--quiet"])
    (folder,) = out.iterdir()
    return RunFolder.load(folder, FloorRecord)


def test_the_json_has_every_promised_field(tmp_path: Path, capsys) -> None:
    result = run([*FAST, "--variant", "tape", "--out", str(tmp_path)], capsys)
    assert set(result) >= {"run", "device", "model", "read_gb_per_s", "aa_ratio", "verdict", "variants"}
    assert list(result["variants"]) == ["cat", "boolmask", "lasthead", "static", "sdpa", "tape"]
    for variant in result["variants"].values():
        assert set(variant) >= FIELDS
        assert variant["gate"] == "pass" and variant["step_ms"].keys() == {"6", "20"}
        assert sum(variant["parts_us"].values()) > 0
    assert result["verdict_blocks"] > 0 and result["verdict_sentence"].endswith(".")
    assert result["verdict_bounds"] is None or set(result["verdict_bounds"]) >= {"launching"}
    assert result["aa_ratio"][0] <= result["aa_ratio"][1] <= result["aa_ratio"][2]


def test_prediction_stands_in_the_record_before_any_sample(finished: RunFolder) -> None:
    entry = finished.record.variants["tape"]
    assert entry.prediction[6].bytes > 0 and entry.ops.computing_ops > 0
    assert finished.record.predicted_replay.parent == "sdpa"


def test_every_round_visits_every_subject_in_shuffled_order(finished: RunFolder) -> None:
    order = {}
    for sample in finished.record.samples:
        if sample.width == 48:
            order.setdefault(sample.round, []).append((sample.variant, sample.context))
    cached = {"cat", "cat again", "boolmask", "lasthead", "static", "sdpa", "tape"}
    for visited in order.values():
        assert {v for v in visited if v[0] in cached} == {(name, n) for name in cached for n in (6, 20)}
    assert len({tuple(visits) for visits in order.values()}) > 1
    assert finished.record.recompiles_while_timing == 0


def test_every_round_asks_what_the_machine_reaches_and_what_else_it_did(finished: RunFolder) -> None:
    rounds = sorted({sample.round for sample in finished.record.samples})
    assert [sample.round for sample in finished.record.matmuls] == rounds
    assert [look.round for look in finished.record.machine] == rounds
    for rate in (read_rate(finished.record), matmul_rate(finished.record)):
        assert rate is not None and rate.mid > 0


def test_parts_of_every_traced_step_sum_to_its_parts(finished: RunFolder) -> None:
    for entry in finished.record.variants.values():
        assert len(entry.trace.steps_parts_us) == 5 and entry.trace.problems == []


def test_every_trace_loads_in_tensorboards_own_loader(finished: RunFolder) -> None:
    from torch_tb_profiler.io.cache import Cache
    from torch_tb_profiler.profiler.loader import RunLoader

    loaded = RunLoader("run", str(finished.traces), Cache()).load()
    assert len(loaded.profiles) == len(list(finished.traces.iterdir()))
    assert all(profile.operation_table_by_name for profile in loaded.profiles.values())


def test_a_crashing_variant_is_failed_and_the_others_are_measured(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    build = Decoder.of

    def broken(variant, *arguments, **options):
        if variant.name == "tape":
            raise RuntimeError("boom\nsecond line")
        return build(variant, *arguments, **options)

    monkeypatch.setattr(Decoder, "of", broken)
    result = run([*FAST, "--variant", "tape", "--out", str(tmp_path)], capsys)
    assert result["variants"]["tape"]["gate"] == "fail"
    assert result["variants"]["tape"]["reason"] == "RuntimeError: boom"
    assert result["variants"]["tape"]["step_ms"] == {"6": None, "20": None}
    assert result["variants"]["sdpa"]["step_ms"]["6"] > 0
    assert result["verdict"] == "INCONCLUSIVE"


@pytest.mark.parametrize("calls", [0, 3])  # verified after each proof, and after each visit of a round
def test_a_variant_that_sees_itself_fail_is_out(calls: int, tmp_path: Path, capsys, monkeypatch) -> None:
    build, left = Decoder.of, iter(range(calls))

    def failing() -> None:
        if next(left, None) is None:
            raise RuntimeError("the grid barrier timed out")

    def watched(variant, *arguments, **options):
        decoder = build(variant, *arguments, **options)
        if variant.name == "tape":
            decoder.backend.verify = failing
        return decoder

    monkeypatch.setattr(Decoder, "of", watched)
    result = run([*FAST, "--variant", "tape", "--out", str(tmp_path)], capsys)
    assert result["variants"]["tape"]["reason"] == "RuntimeError: the grid barrier timed out"
    assert result["variants"]["tape"]["step_ms"] == {"6": None, "20": None}
    assert result["variants"]["sdpa"]["step_ms"]["6"] > 0


def test_a_variant_that_fails_the_gate_has_no_time(tmp_path: Path, capsys, mask_turned_over) -> None:
    result = run([*FAST, "--variant", "sdpa", "--out", str(tmp_path)], capsys)
    assert result["variants"]["sdpa"]["gate"] == "fail" and result["variants"]["sdpa"]["step_ms"]["6"] is None


@pytest.mark.parametrize("chosen", [["--variant", "tape"], []], ids=["by name", "default"])
def test_an_interrupted_run_resumes_to_the_same_record(
    chosen: list[str], tmp_path: Path, capsys, monkeypatch
) -> None:
    whole = run([*FAST, *chosen, "--out", str(tmp_path / "a")], capsys)
    timed = Steps.__call__

    def interrupted(self, number):
        if number == 1:
            raise KeyboardInterrupt
        timed(self, number)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Steps, "__call__", interrupted)
        floor.main([*FAST, *chosen, "--out", str(tmp_path / "b")])
    (folder,) = (tmp_path / "b").iterdir()
    half = RunFolder.load(folder, FloorRecord).record
    assert half.status == "incomplete" and {s.round for s in half.samples} == {0}
    assert (folder / "report.md").exists()
    capsys.readouterr()
    resumed = run(["--resume", str(folder), "--max-time", "1s"], capsys)
    first, second = (RunFolder.load(Path(r["run"]), FloorRecord).record for r in (whole, resumed))
    visits = [sorted((s.round, s.variant, s.width, s.context) for s in d.samples) for d in (first, second)]
    assert visits[0] == visits[1]
    assert first.variants.keys() == second.variants.keys() and first.workload == second.workload
    with pytest.raises(UserError, match="complete"):
        floor.main(["--resume", str(folder)])
    before = len(second.duel.blocks)
    extended = run(["--resume", str(folder), "--max-time", "1s"], capsys)
    duel = RunFolder.load(folder, FloorRecord).record.duel
    assert len(duel.blocks) > before and extended["verdict_blocks"] in (0, duel.turns)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--variant", "turbo"], "unknown variant turbo"),
        (["--model", "gpt5"], "--model gpt5"),
        (["--device", "cuda"], "--device cuda"),
        (["--model", "tiny", "--context", "64"], "limit"),
        (["--model", "tiny", "--steps", "0"], "--steps"),
        (["--model", "tiny", "--out", "/proc/nowhere"], "--out"),
        (["--model", "tiny", "--variant", "cudagraph"], "CUDA"),
        (["--model", "tiny", "--precision", "float8"], "float8"),
        (["--model", "tiny", "--threads", "0"], "--threads"),
        (["--resume", "/nowhere"], "expected a run folder"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path: Path, arguments: list[str], said: str) -> None:
    if "--out" not in arguments and "--resume" not in arguments:
        arguments = [*arguments, "--out", str(tmp_path / "runs")]
    done = subprocess.run(
        [sys.executable, "-m", "experiments.floor", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
    assert not (tmp_path / "runs").exists()


def test_no_compiler_is_said_in_one_line(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": str(tmp_path), "CXX": ""}
    done = subprocess.run(
        [sys.executable, "-m", "experiments.floor", "--variant", "compile", "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment,
    )  # fmt: skip
    assert done.returncode == 2 and "compiler" in done.stderr and done.stderr.count("\n") == 1


def test_ctrl_c_leaves_a_run_that_can_be_reported(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "experiments.floor",
        "--model",
        "tiny",
        "--variant",
        "tape",
        "--quick",
        "--rounds",
        "5000",
    ]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        records = list(tmp_path.glob("*/run.json"))
        if records and '"round": 2' in records[0].read_text():
            break
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in errors
    (record,) = tmp_path.glob("*/run.json")
    assert json.loads(record.read_text())["status"] == "incomplete"
    assert "unfinished" in (record.parent / "report.md").read_text()
