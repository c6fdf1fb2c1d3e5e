"""The report of a launch-bound device, from traces whose truth is known: eager launches, and one replay."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from floor_run import Record, copied, section, tables, text_of
from synthetic_trace import eager, replayed

from profiling.analysis.attribution import attributed
from profiling.analysis.predict import Costs
from profiling.measure.tracing import analyse
from profiling.results.folder import RunFolder
from profiling.results.record import Measurement
from reports.build import build

STEP_MS = {"sdpa": 0.250, "cudagraph": 0.050}  # 10 kernels of 3 us: busy 30 us, the memory floor 20 us


def on_device(record: Record) -> None:
    """A record as a CUDA run leaves it; the traces are written beside it."""
    record["environment"].update(device="cuda", device_name="NVIDIA H200")
    record["variants"]["cudagraph"] = record["variants"].pop("tape")
    record["variants"]["cudagraph"]["difference"] = ["executor", "eager", "CUDA graph"]
    record["predicted_replay"]["parent"] = "sdpa"
    for row in (*record["samples"], *record["ttft"]):
        row["variant"] = "cudagraph" if row["variant"] == "tape" else row["variant"]
    for sample in record["samples"]:
        ms = STEP_MS.get(sample["variant"], 0.3) + 1e-4 * (sample["round"] % 3)
        sample.update(steps_ms=[ms, ms], pipelined_ms=0.9 * ms)
    for floor in record["floors"]:
        floor["ms"] = [0.020 + 1e-5 * (floor["round"] % 2)]
    for entry in record["variants"].values():
        entry.pop("trace", None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = copied(tmp_path_factory.mktemp("device") / "floor", on_device)
    record = json.loads((path / "run.json").read_text())
    for name, trace in {"sdpa": eager(), "cudagraph": replayed()}.items():
        file = path / "traces" / f"{name}.pt.trace.json.gz"
        trace.write(file)
        context = record["workload"]["contexts"][0]
        analysed = analyse(attributed(file), context, [STEP_MS[name]] * 4, Costs())
        record["variants"][name]["trace"] = msgspec.to_builtins(analysed)
    record["predicted_replay"] = {"parent": "sdpa", "replay": record["variants"]["sdpa"]["trace"]["replay"]}
    (path / "run.json").write_text(json.dumps(record))
    return path


def test_verdict_is_confirmed(run: Path) -> None:
    assert re.search(r"^\*\*CONFIRMED\*\*\. Of the [\d.]+ ms ", text_of(run), flags=re.M)


def test_parts_are_those_of_a_device(run: Path) -> None:
    rows = {row["variant"]: row for row in tables(section(text_of(run), "Where the time goes"))[0]}
    assert float(rows["`sdpa`"]["busy, ms"]) == pytest.approx(0.030, rel=0.01)
    assert float(rows["`cudagraph`"]["busy, ms"]) == pytest.approx(0.030, rel=0.01)
    assert rows["`sdpa`"]["launches"] == "10" and rows["`cudagraph`"]["graph launches"] == "1"


def test_pipelined_time_is_named_beside_latency(run: Path) -> None:
    rows = tables(section(text_of(run), "The ladder"))[1]
    pipelined = {row["variant"]: float(row["pipelined, ms"]) for row in rows}
    assert pipelined["`sdpa`"] == pytest.approx(0.9 * 0.25, rel=0.01)


def test_timeline_shows_launches_work_and_waits(run: Path) -> None:
    build(run)
    data = json.loads((run / "figures" / "timeline.json").read_text())
    eager_step, replayed_step = data["steps"]
    labels = ["launch calls", "stream 7", "device waits"]
    assert [row["label"] for row in eager_step["rows"]] == labels
    kinds = {data["kinds"][bar[2]] for row in eager_step["rows"] for bar in row["bars"]}
    assert {"kernel", "sync", "before_call", "during_call"} <= kinds
    graphs = [bar for bar in replayed_step["rows"][0]["bars"] if data["kinds"][bar[2]] == "graph"]
    assert len(graphs) == 1 and len(replayed_step["rows"][1]["bars"]) == 10
    assert RunFolder.load(run, Measurement).record.variants["sdpa"].trace.counts.kernels == 10
