"""The command line of `explain`: its JSON, its console, its report, what it shares and what it compares."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.explain import main
from profiling.analysis.explanation import as_json, explain
from profiling.trace.redaction import redact
from tests.synthetic_trace import Synthetic, eager, on_host, replayed
from variants.errors import UserError

FILE_KEYS = [
    *("file", "reading", "rule", "gpu_events", "kernels", "launch_calls", "graph_launch_calls"),
    *("gpu_events_without_call", "devices", "step_source", "steps", "prediction", "warnings"),
]
STEP_KEYS = ["name", "wall_us", "kernel_launch_calls", "graph_launch_calls", "parts_us", "devices"]
DEVICE_KEYS = ["span_us", "busy_us", "idle_us", "longest_gap_us", "idle_split_us"]
ROOT = Path(__file__).resolve().parents[1]


def answer(capsys, *arguments: object) -> dict:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_json_has_the_promised_shape(tmp_path, capsys) -> None:
    synthetic = eager(steps=3)
    entry = answer(capsys, synthetic.write(tmp_path / "t.json.gz"))["files"][0]
    assert [key for key in entry if key in FILE_KEYS] == FILE_KEYS
    assert entry["file"] == "t.json.gz"
    assert (entry["gpu_events"], entry["kernels"], entry["launch_calls"]) == (30, 30, 30)
    assert set(DEVICE_KEYS) <= set(entry["devices"]["0"])
    assert set(entry["devices"]["0"]["idle_split_us"]) == {
        "before_call",
        "during_call",
        "after_call",
        "unknown",
    }
    assert len(entry["steps"]) == 3
    for step in entry["steps"]:
        assert set(STEP_KEYS) <= set(step)
        assert sum(step["parts_us"].values()) == pytest.approx(step["interval_us"])
        assert step["devices"]["0"]["kernels"] == 10
        assert {"kernels", "busy_us", "gpu_span_us"} <= set(step["devices"]["0"])
    assert entry["reading"] == "launch-bound"
    assert entry["prediction"]["replay_us"]["low"] < entry["prediction"]["step_us"]


def test_a_cut_file_without_device_events_is_not_taken_for_a_cpu_trace(tmp_path, capsys) -> None:
    synthetic = eager(steps=3)
    # as profilers write them: the device last
    synthetic.events.sort(key=lambda event: event.get("cat") == "kernel")
    whole = synthetic.text()
    (tmp_path / "cut.json").write_bytes(whole[: whole.index(b'"kernel"')])
    entry = answer(capsys, tmp_path / "cut.json")["files"][0]
    assert (entry["reading"], entry["gpu_events"], entry["prediction"]) == ("cannot tell", 0, None)
    assert "cut" in entry["rule"]


def test_the_console_fits_80_columns(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    synthetic = eager()
    for event in synthetic.events:
        if event["cat"] == "kernel":
            event["name"] = "void at::native::" + "a_long_name_" * 20 + event["name"]
    a = synthetic.write(tmp_path / "a_long_file_name_of_a_trace_that_somebody_sent.json")
    b = replayed().write(tmp_path / "b.json")
    assert main([str(a), "--against", str(b)]) == 0
    text = capsys.readouterr().out
    _, *others = text.splitlines()  # the answer, in a pipe a line however long
    cells = [line for line in others if not line.endswith(".")]  # nor its sentences
    assert max(map(len, cells)) <= 80
    for expected in (
        "launch-bound",
        "host had not issued",
        "Predicted step as one graph replay",
        "longest gaps",
    ):
        assert expected in text


@pytest.mark.parametrize(
    ("make", "begins"),
    [
        (eager, "launch-bound: the device waits for the host's launches for 8"),
        (lambda: replayed(kernel_ns=60_000), "device-bound: the device works"),
        (on_host, "host Python-bound: the host is in Python between ops for"),
        (lambda: eager(steps=1, kernels=3), "too small to judge: 3 device events"),
        (Synthetic, "no device events: the trace has no device events and no steps"),
    ],
    ids=["launch", "device", "host", "small", "empty"],
)
def test_the_answer_is_the_first_line_of_everything(tmp_path, capsys, make, begins) -> None:
    path = make().write(tmp_path / "t.json")
    assert main([str(path), "--out", str(tmp_path / "out")]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(begins)
    assert not any(first in line for line in others), "it is said once"
    assert (tmp_path / "out" / "report.md").read_text().splitlines()[0] == f"# {first}"
    html = (tmp_path / "out" / "report.html").read_text()
    for tag in ("title", "h1"):
        assert unescape(html.split(f"<{tag}>")[1].split("<")[0]) == first


def test_the_first_line_of_several_files_counts_them_and_of_two_says_what_differs(tmp_path, capsys) -> None:
    paths = [
        synthetic.write(tmp_path / f"{n}.json") for n, synthetic in enumerate([eager(), replayed(), eager()])
    ]
    assert main([*map(str, paths)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "2 launch-bound, 1 mixed"
    assert main([str(paths[1]), "--against", str(paths[0])]) == 0
    assert capsys.readouterr().out.startswith("same device work, launches removed: 10 -> 1 launch calls")


@pytest.mark.parametrize("make", [eager, replayed, on_host], ids=["eager", "replayed", "host"])
def test_a_step_has_one_length(tmp_path, capsys, make) -> None:
    """In the first line, the table of its parts, the prediction and the comparison."""
    path = make().write(tmp_path / "t.json")
    explained = answer(capsys, path, "--against", path)
    for entry in explained["files"]:
        step_us = entry["step_us"]
        assert sum(entry["step_parts_us"].values()) == pytest.approx(step_us)
        assert f" {step_us:.0f} us" in entry["headline"]
        assert entry["prediction"]["step_us"] == step_us
    assert explained["comparison"]["per_step"]["step_us"] == {"this": step_us, "against": step_us}
    assert main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"where the {step_us:.0f} us of a step go" in printed
    assert set(re.findall(r"(?:instead of|where the) (\d+) us", printed)) == {f"{step_us:.0f}"}


@given(lengths=st.lists(st.integers(20, 38), min_size=4, max_size=8))
@settings(max_examples=15, deadline=None)
def test_parts_of_the_mean_step_by_hand(tmp_path_factory, lengths) -> None:
    """Steps of one kernel of 5 us each, which starts 1 us after its call: that is in no step's time."""
    synthetic, at = Synthetic(), 0
    for number, us in enumerate(lengths):
        synthetic.launch((at + 1_000, at + 3_000), (at + 4_000, at + 9_000))
        synthetic.step(at, at + 1_000 * us, f"ProfilerStep#{number}")
        at += 1_000 * us
    entry = as_json(explain(synthetic.write(tmp_path_factory.mktemp("t") / "t.json")), "t")
    assert entry["steps_read"] == list(range(len(lengths)))
    assert (entry["step_parts_us"]["busy"], entry["step_parts_us"]["in_call"]) == pytest.approx((5, 2))
    assert entry["step_us"] == pytest.approx(fmean(lengths) - 1)


def test_several_files_give_one_table(tmp_path, capsys) -> None:
    paths = [
        synthetic.write(tmp_path / f"{n}.json")
        for n, synthetic in enumerate([eager(), replayed(), Synthetic()])
    ]
    assert main([*map(str, paths)]) == 0
    table = capsys.readouterr().out.split("replay us")[-1]
    assert "launch-bound" in table and "no device events" in table
    names = [entry["file"] for entry in answer(capsys, *paths)["files"]]
    assert names == ["0.json", "1.json", "2.json"]


def test_files_of_one_name_are_told_apart(tmp_path, capsys) -> None:
    (tmp_path / "b").mkdir()
    paths = [eager().write(tmp_path / "t.json"), replayed().write(tmp_path / "b" / "t.json")]
    assert [entry["file"] for entry in answer(capsys, *paths)["files"]] == [str(p) for p in paths]


def with_secrets() -> Synthetic:
    synthetic = eager()
    synthetic.event("python_function", "/home/secret/model.py(12): forward", 1_000_000, 1_200_000)
    synthetic.op("mylib::/home/secret/kernel.py:12", 1_000_100, 1_000_200)
    synthetic.step(1_000_300, 1_000_400, "customer secret")
    for event in synthetic.events:
        event.setdefault("args", {})["Input Dims"] = "secret"
    return synthetic


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_a_redacted_trace_reads_the_same_and_tells_nothing(tmp_path, capsys, name) -> None:
    original = with_secrets().write(tmp_path / "secret.json")
    first = answer(capsys, original, "--redact", tmp_path / name)["files"][0]
    second = answer(capsys, tmp_path / name)["files"][0]
    import gzip

    data = (tmp_path / name).read_bytes()
    text = gzip.decompress(data) if name.endswith("gz") else data
    for word in (b"secret", b"/home", b"host_name", b"Input Dims"):
        assert word not in text
    for entry in (first, second):
        entry.pop("file")
        entry["top"] = [row["self_us"] for row in entry["top"]["host_ops"]]
    assert first == second


def test_own_step_marks_keep_their_names(tmp_path, capsys) -> None:
    synthetic = eager()
    for event in synthetic.events:
        event["name"] = event["name"].replace("ProfilerStep#", "my private loop ")
    original = synthetic.write(tmp_path / "t.json")
    first = answer(capsys, original, "--step", "my private loop", "--redact", tmp_path / "r.json")
    second = answer(capsys, tmp_path / "r.json", "--step", "my private loop")
    assert first["files"][0]["steps"] == second["files"][0]["steps"]


def test_exact_times_survive_redaction(tmp_path) -> None:
    synthetic = Synthetic(numbers="text")
    synthetic.launch(
        (1_712_195_495_505_582_988, 1_712_195_495_505_592_988),
        (1_712_195_495_505_600_001, 1_712_195_495_505_600_003),
    )
    from profiling.trace import load

    source = synthetic.write(tmp_path / "t.json")
    source.write_text(source.read_text().replace('"ts": "', '"ts": ').replace('", "dur"', ', "dur"'))
    redact(source, tmp_path / "r.json")
    assert load(tmp_path / "r.json").events["ts_ns"].tolist() == load(source).events["ts_ns"].tolist()
    assert load(source).events["ts_ns"].tolist()[1] == 1_712_195_495_505_600_001


def test_redaction_does_not_replace_the_trace(tmp_path) -> None:
    path = eager().write(tmp_path / "t.json")
    before = path.read_bytes()
    with pytest.raises(UserError, match="another name"):
        redact(path, path)
    with pytest.raises(UserError, match="cannot be written"):
        redact(path, tmp_path / "nowhere" / "t.json")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("this", "against", "said"), [(replayed, eager, "removed"), (eager, replayed, "added")]
)
def test_launches_removed_from_the_same_work_are_seen(tmp_path, capsys, this, against, said) -> None:
    a, b = this().write(tmp_path / "a.json"), against().write(tmp_path / "b.json")
    answered = answer(capsys, a, "--against", b)
    assert answered["comparison"]["finding"].startswith(f"same device work, launches {said}")
    assert answered["comparison"]["kernels"] == []
    assert len(answered["files"]) == 2


def test_kernels_that_appeared_vanished_and_changed(tmp_path, capsys) -> None:
    synthetic = eager()
    for event in synthetic.events:
        if event["name"] == "kernel_1":
            event["name"] = "fused"
        if event["name"] == "kernel_2":
            event["dur"] *= 2
    answered = answer(
        capsys, synthetic.write(tmp_path / "a.json"), "--against", eager().write(tmp_path / "b.json")
    )
    changes = {row["name"]: row["change"] for row in answered["comparison"]["kernels"]}
    assert changes == {"fused": "appeared", "kernel_1": "vanished", "kernel_2": "slower"}
    assert answered["comparison"]["finding"].startswith("different device work: 20%")


def test_the_report_has_a_picture_per_file(tmp_path, capsys) -> None:
    paths = [eager().write(tmp_path / "a.json"), Synthetic().write(tmp_path / "empty.json")]
    out = tmp_path / "out"
    answered = answer(capsys, *paths, "--out", out)
    report = (out / "report.md").read_text()
    assert "launch-bound" in report and "figures/step_1.png" in report and "figures/step_2.png" not in report
    assert (out / "figures" / "step_1.png").stat().st_size > 5_000
    assert json.loads((out / "explain.json").read_text()) == answered
    assert (out / "report.html").read_text().count("<canvas") == 1
    assert sorted(p.name for p in out.iterdir()) == ["explain.json", "figures", "report.html", "report.md"]


def test_longest_gaps_say_what_the_host_did(tmp_path, capsys) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 900_000)
    for at in (0, 400_000):
        synthetic.launch((at + 10_000, at + 12_000), (at + 13_000, at + 20_000))
    synthetic.op("aten::outer", 25_000, 390_000)
    synthetic.op("aten::item", 30_000, 380_000)
    synthetic.event("python_function", "model.py(1): main", 0, 900_000)
    synthetic.event("python_function", "model.py(7): sample", 21_000, 395_000)
    gap = answer(capsys, synthetic.write(tmp_path / "t.json"))["files"][0]["top"]["gaps"][1]
    assert (gap["op"], gap["frame"], gap["call"]) == ("aten::item", "model.py(7): sample", None)
    assert gap["waited_for"] == "before_call"
    assert gap["length_us"] == pytest.approx(393)


def test_another_tools_trace_and_a_large_one_are_said(tmp_path, capsys, monkeypatch) -> None:
    import profiling.analysis.explanation

    synthetic = Synthetic()
    synthetic.event("tf_op", "MatMul", 0, 1000)
    path = synthetic.write(tmp_path / "t.json")
    assert any("another tool" in w for w in answer(capsys, path)["files"][0]["warnings"])
    monkeypatch.setattr(profiling.analysis.explanation, "VIEWER_BYTES", 10)
    assert any("viewers may show it empty" in w for w in answer(capsys, path)["files"][0]["warnings"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.json"], "cannot be read"),
        (["a.json", "--step", "nothing"], "nothing is named like"),
        (["a.json", "a.json", "--against", "a.json"], "--against"),
        (["a.json", "a.json", "--redact", "b.json"], "--redact"),
        (["a.json", "--top", "-1"], "--top"),
        (["a.json", "--redact", "a.json"], "another name"),
        (["broken.json"], "byte"),
        (["a.json", "--out", "a.json"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, arguments, said) -> None:
    eager().write(tmp_path / "a.json")
    (tmp_path / "broken.json").write_text("nonsense")
    before = sorted(tmp_path.iterdir())
    command = [sys.executable, "-m", "experiments.explain", *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert said in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "module", ["reports.explain", "experiments.explain", "profiling.analysis.explanation"]
)
def test_nothing_of_it_needs_torch(module) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
