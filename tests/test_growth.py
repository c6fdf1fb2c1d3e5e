"""Growth: one point per thing changed, beside the floor of its own bytes; slopes by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from records import entry, setting

from experiments import growth
from profiling.cost.work import weights_read_bytes
from profiling.measure import growth as points_and_steps
from profiling.measure.growth import Point, points, slope_over_bytes, slopes, steps_by_axis
from profiling.results.folder import RunFolder
from profiling.results.metrics import Measured
from profiling.results.record import FloorRead, GrowthRecord, PointRecord, Sample, StepPrediction
from profiling.results.record.page import Table
from variants.config import PRESETS, GPTConfig
from variants.errors import UserError

TINY = PRESETS["tiny"]
OTHER = GPTConfig(n_layer=2, n_head=2, n_embd=96, n_ctx=64, vocab_size=101)
FLAGS = ["--variant", "sdpa", "--models", "tiny,other", "--batches", "1,3", "--threads", "1,2"]
FLAGS += ["--kv-heads", "3,1"]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    out = tmp_path_factory.mktemp("growth")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "other", OTHER)
        assert growth.main([*FLAGS, "--context", "6,20", "--quick", "--quiet", "--out", str(out)]) == 0
    (path,) = out.iterdir()
    return RunFolder.load(path, GrowthRecord)


def test_each_axis_has_a_table_and_the_base_stands_first(ran: RunFolder) -> None:
    blocks = ran.record.page.sections[1].blocks
    tables = {block.title: block.rows for block in blocks if isinstance(block, Table)}
    values = {title: [row[0] for row in rows] for title, rows in tables.items()}
    assert values == {
        "Over context": ["6", "20"],
        "Over batch": ["1", "3"],
        "Over threads": ["1", "2"],
        "Over model": ["tiny", "other"],
        "Over width": ["64"],
        "A token of context": ["1", "3"],
        "A token of context, by heads and bits": ["3", "3", "3", "1", "1", "1"],
    }
    said = [text for text in ran.record.warnings if "left out" in text or "failed" in text]
    assert not said and ran.record.status == "complete"
    assert tables["Over batch"][0][1:] == tables["Over context"][0][1:] == tables["Over model"][0][1:]
    per_token = 2 * TINY.n_layer * TINY.n_embd * 4 / 1e3
    assert [float(row[1]) for row in tables["A token of context"]] == pytest.approx(
        [per_token, 3 * per_token], rel=0.01
    )


def test_heads_and_bits_multiply_the_bytes_of_a_token(ran: RunFolder) -> None:
    (table,) = (
        block
        for block in ran.record.page.sections[1].blocks
        if isinstance(block, Table) and block.title.endswith("by heads and bits")
    )
    values = 2 * TINY.n_layer * TINY.head_dim / 1e3
    scales = 2 * TINY.n_layer * 4 / 1e3
    expected = [
        (str(heads), rung, heads * kb)
        for heads in (3, 1)
        for rung, kb in (("sdpa", 4 * values), ("kv-bf16", 2 * values), ("kv-int8", values + scales))
    ]
    assert [tuple(row[:2]) for row in table.rows] == [row[:2] for row in expected]
    assert [float(row[2]) for row in table.rows] == pytest.approx([row[2] for row in expected], rel=0.01)
    assert (ran.path / "figures" / "stored.png").stat().st_size > 1000


def test_every_point_is_proven_and_keeps_its_own_record(ran: RunFolder) -> None:
    folders = sorted((ran.path / "points").iterdir())
    records = [RunFolder.load(path, PointRecord).record for path in folders]
    assert len(records) == 6
    assert all(record.variants["sdpa"].status == "proven" for record in records)
    assert {record.environment.threads for record in records} == {1, 2}
    assert {record.workload.batch for record in records} == {1, 3}
    weights = weights_read_bytes(OTHER, 4)
    (other,) = (record for record in records if record.model.name == "other")
    assert other.variants["sdpa"].prediction[0].bytes == weights


def test_the_report_says_what_the_console_says(ran: RunFolder) -> None:
    text = (ran.path / "report.md").read_text(encoding="utf-8")
    assert ran.record.page.sections[0].blocks[-1].text in text and "memory floor" in text
    assert (ran.path / "figures" / "growth.png").stat().st_size > 1000


def test_points_differ_from_the_base_in_one_thing() -> None:
    measured = points(["a", "b"], [1, 4], [2, 1], [3])
    assert measured == [
        Point("a", 1, 2),
        Point("a", 4, 2, "batch"),
        Point("a", 1, 1, "threads"),
        Point("a", 1, 2, "kv_heads", 3),
        Point("b", 1, 2, "model"),
    ]
    assert [point.value for point in measured] == ["base", "4", "1", "3", "b"]


def by_hand(per_token_ms: float) -> Measured:
    """1000 bytes in 1 ms of floor, 10 more bytes per token of context, in two rounds of unequal speed."""
    speeds = {0: 1.0, 1: 1.2}
    samples = [
        Sample(
            round=r,
            variant="x",
            width=8,
            context=n,
            batch=1,
            steps_ms=[s * (2 + per_token_ms * n)],
            pipelined_ms=None,
        )
        for r, s in speeds.items()
        for n in (0, 100)
    ]
    floors = [
        FloorRead(round=r, bytes=kb * 1000, pages="default", ms=[s * kb])
        for r, s in speeds.items()
        for kb in (1, 2)
    ]
    prediction = {0: StepPrediction(1000, 0, 1, 1), 100: StepPrediction(2000, 0, 1, 1)}
    record = PointRecord(
        **setting(contexts=(0, 100)),
        variants={"x": entry(status="proven", prediction=prediction)},
        samples=samples,
        floors=floors,
    )
    return Measured(record)


def test_slope_by_hand() -> None:
    """A token's 10 bytes take 0.01 ms at the floor's rate: a slope of 0.013 ms is 1.3 times that."""
    fitted = slope_over_bytes(by_hand(0.013), "x")
    assert fitted is not None and fitted == pytest.approx((1.3, 1.3, 1.3))
    assert slope_over_bytes(by_hand(-0.01), "x") == pytest.approx((-1, -1, -1))  # noise may turn a line over


def test_slopes_are_those_of_batches_with_more_than_one_context() -> None:
    one_context = by_hand(0.013)
    one_context.contexts = (0,)
    measured = {
        Point("a", 1, 1): by_hand(0.013),
        Point("a", 16, 1, "batch"): by_hand(0.02),
        Point("a", 2, 1, "batch"): one_context,
        Point("b", 1, 1, "model"): by_hand(0.03),
    }
    by_parent = slopes("x", measured)
    assert [(row.batch, row.bytes_per_token) for row in by_parent] == [(1, 10), (16, 10)]
    assert [row.over_bytes for row in by_parent] == [pytest.approx((n, n, n)) for n in (1.3, 2.0)]


def test_steps_by_hand() -> None:
    (step, _), *rest = steps_by_axis("x", {Point("a", 1, 1): by_hand(0.013)}).values()
    assert (step.value, step.bytes, step.step_ms, step.floor_ms) == ("0", 1000, 2.2, 1.1)
    assert step.ratio is not None and step.ratio.mid == pytest.approx(2)
    assert rest == [[]]  # no widths, and axes that were not varied have no rows


def test_a_model_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(points_and_steps, "free_bytes", lambda device: 1)
    with pytest.raises(UserError, match=r"base is left out: memory .* tiny"):
        growth.main(["--models", "tiny", "--context", "6,20", "--quick", "--quiet", "--out", str(tmp_path)])


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--models", "gpt5", "--models takes"),
        ("--batches", "0", "--models takes"),
        ("--threads", "0,1", "--threads must"),
        ("--kv-heads", "5", "--kv-heads takes divisors of the 12 heads"),
    ],
)
def test_bad_flags_are_refused(flag: str, value: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        growth.main([flag, value, "--out", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--variant", "sdpa", "--models", "tiny", "--batches", "1", "--threads", "1", "--context", "6"]
    assert growth.main([*flags, "--rounds", "2", "--json", "--out", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["steps"]) == {"context", "width"} and result["slopes"] == []
