"""The articles' measuring experiments: what they write, that counts agree, and how they refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from records import PEAKS, entry, setting

from experiments import articles, batch, context, memory, throughput
from experiments.shared import claims, cli
from experiments.shared.parts import Part, Result
from experiments.shared.published import PUBLISHED, Check
from profiling.cost import work
from profiling.cost.work import kv_bytes_per_token
from profiling.measure.footprint import cache_bytes, mask_bytes
from profiling.measure.proving import add_batches
from profiling.measure.runner import Runner
from profiling.results import throughput as achieved
from profiling.results.folder import RunFolder
from profiling.results.peaks import beyond_peaks
from profiling.results.record import (
    Batch,
    BatchRecord,
    CacheSizes,
    ClaimKind,
    ContextRecord,
    GenerationSample,
    HeldBytes,
    Record,
    ThroughputRecord,
    Workload,
)
from profiling.results.record.page import Table
from profiling.results.throughput import Loops
from reports import build as report
from reports.experiment import claim_counts
from variants.config import PRESETS
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import GPT, random_model

ROOT = Path(__file__).parent.parent
TINY = ["--model", "tiny", "--quick", "--quiet"]
MEASURING = {
    "throughput": (throughput, ["--new", "4,12"]),
    "context": (context, ["--context", "6,20", "--rounds", "3"]),
    "memory": (memory, ["--context", "5,64"]),
    "batch": (batch, ["--batches", "2,5", "--prompts", "4,20", "--rounds", "2"]),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """Every experiment once, on the tiny model."""
    folders = {}
    for name, (module, flags) in MEASURING.items():
        out = tmp_path_factory.mktemp(name)
        assert module.main([*TINY, *flags, "--out", str(out)]) == 0
        (path,) = out.iterdir()
        folders[name] = RunFolder.load(path, Record)
    return folders


def verdict_of(run: RunFolder) -> str:
    return run.record.page.sections[0].blocks[-1].text


@pytest.mark.parametrize("name", MEASURING)
def test_a_run_is_complete_and_reported(ran: dict[str, RunFolder], name: str) -> None:
    run = ran[name]
    assert run.record.status == "complete" and run.record.kind() == name
    assert run.record.warnings == []
    text = (run.path / "report.md").read_text(encoding="utf-8")
    assert verdict_of(run) in text and f"figures/{name}.png" in text
    assert (run.path / "figures" / f"{name}.png").stat().st_size > 1000
    question, verdict = run.record.page.sections[0].blocks
    assert "?" in question.text and verdict.text.startswith("**Claim ")


@pytest.mark.parametrize("name", MEASURING)
def test_claims_are_rows_of_published_figures(ran: dict[str, RunFolder], name: str) -> None:
    rows = ran[name].record.claims
    assert rows and len({row.key for row in rows}) == len(rows)
    for row in rows:
        figure = PUBLISHED[row.key]
        assert (row.article, row.claim, row.published) == (
            figure.article,
            figure.claim,
            figure.value,
        )
        assert figure.kind is row.kind is not ClaimKind.ARITHMETIC and row.here and row.why
        assert (row.holds is None) == (row.kind is ClaimKind.ELSEWHERE)


@pytest.mark.parametrize("name", MEASURING)
def test_the_report_can_be_made_again_from_the_folder(ran: dict[str, RunFolder], name: str) -> None:
    path = ran[name].path
    before = (path / "report.md").read_text(encoding="utf-8")
    (path / "report.md").unlink()
    report.main([str(path)])
    assert (path / "report.md").read_text(encoding="utf-8") == before


def test_the_loops_count_what_the_formula_says(ran: dict[str, RunFolder]) -> None:
    record = ran["throughput"].record
    assert set(record.counted) == {"naive", "cat"}
    loops = Loops(record, PRESETS["tiny"])
    for name, counted in record.counted.items():
        expected = loops.work(name, counted.new)
        assert (counted.tokens, counted.macs) == (
            expected.tokens,
            work.macs(PRESETS["tiny"], expected),
        )
    assert record.counted["naive"].tokens == sum(range(10, 14))
    assert record.counted["cat"].tokens == 10 + 3


def test_one_loop_gives_all_shorter_ones() -> None:
    record = ThroughputRecord(
        **setting(prompt=10, batch=2),
        variants={"naive": entry(), "cat": entry()},
        new=[1, 3],
        generations=[
            GenerationSample(round=0, variant=name, prompt=10, tokens_ms=[base, base / 2, base / 2])
            for name, base in (("naive", 400.0), ("cat", 100.0), ("cat", 300.0), ("cat", 200.0))
        ],
    )
    loops = Loops(record, PRESETS["tiny"])
    assert loops.seconds("cat", 10, 1) == pytest.approx(0.2)  # the median round
    assert loops.rate("cat", 3) == pytest.approx(2 * 3 / 0.4)
    assert loops.speedup(1) == pytest.approx(2.0)
    flops = 2 * work.macs(PRESETS["tiny"], work.naive_loop(10, 3))
    assert loops.flop_rate("naive", 3) == pytest.approx(2 * flops / 0.8)


def test_every_context_is_timed_after_the_proof(ran: dict[str, RunFolder]) -> None:
    record = ran["context"].record
    assert {entry.status for entry in record.variants.values()} == {"proven"}
    assert {(s.variant, s.context) for s in record.samples} >= {
        (name, n) for name in ("naive", "cat", "sdpa") for n in (6, 20)
    }
    titles = [block.title for block in record.page.sections[1].blocks if isinstance(block, Table)]
    assert len(titles) == 3 and "peak" in titles[1] and "95 %" in titles[2]


def test_a_variant_that_is_not_proven_has_no_time(tmp_path: Path, mask_turned_over: None) -> None:
    flags = ["--context", "6,20", "--rounds", "2", "--out", str(tmp_path)]
    assert context.main([*TINY, *flags]) == 0
    (path,) = tmp_path.iterdir()
    record = RunFolder.load(path, ContextRecord).record
    assert record.variants["sdpa"].status == "failed"
    assert "sdpa" not in {sample.variant for sample in record.samples}
    assert any(warning.startswith("sdpa: failed") for warning in record.warnings)


@pytest.mark.parametrize("name", ["cat", "static", "sdpa"])
@pytest.mark.parametrize("rows", [1, 3])
def test_the_tensors_hold_what_the_formula_says(model: GPT, name: str, rows: int) -> None:
    variant, config = ladder()[name], model.config
    for n in (2, 17, config.n_ctx):
        held = config.n_ctx if variant.fixed_shape else n
        sizes = cache_bytes(variant, model, rows, n)
        assert sizes.tensors == kv_bytes_per_token(config, 4) * held * rows
        assert sizes.requested is None and sizes.allocated is None


def test_the_articles_leave_each_experiment_its_own_model_and_precision(monkeypatch, tmp_path: Path) -> None:
    commands = []

    def fails(part: Part, *_: object) -> Result:
        commands.append(part.command)
        return Result(part.name, "failed", 0.0, "not run here")

    monkeypatch.setattr(articles, "run_part", fails)
    assert articles.main(["--only", "purity", "--quiet", "--out", str(tmp_path)]) == 1
    assert articles.main(["--only", "purity", "--model", "gpt2", "--quiet", "--out", str(tmp_path)]) == 1
    first, given = commands
    assert "--model" not in first and "--precision" not in first
    assert given[given.index("--model") + 1] == "gpt2"


def test_mask_buffers_of_gpt2_are_the_articles() -> None:
    sizes = mask_bytes(PRESETS["gpt2"], torch.device("cpu"))
    assert sizes["per-layer float32"] == 48 * 2**20
    assert sizes["shared bool"] == 2**20


@pytest.mark.gpu
def test_the_allocator_counts_the_cache_exactly_after_a_warm_up() -> None:
    cuda = random_model(PRESETS["tiny"], device="cuda")
    cache_bytes(ladder()["cat"], cuda, 1, 8)
    for n in (8, 33, 64):
        assert cache_bytes(ladder()["cat"], cuda, 1, n).requested == kv_bytes_per_token(cuda.config, 4) * n


def test_every_batch_is_proven_and_predicted(ran: dict[str, RunFolder]) -> None:
    record = ran["batch"].record
    assert list(record.batches) == [1, 2, 5]
    for n, batch_size in record.batches.items():
        assert batch_size.status == "proven" and batch_size.prediction.bytes > 0
        assert n == 1 or batch_size.gate.status == "pass"
    assert {s.batch for s in record.samples} == {1, 2, 5}
    assert {p.prompt for p in record.prefills} == {4, 20}


def test_a_batch_beyond_memory_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from profiling.measure import proving

    run = RunFolder.create(tmp_path, BatchRecord, "cpu")
    workload = Workload(contexts=(6,), gate_steps=2, brief_gate=True, prompt=1)
    runner = Runner(run, workload, random_model(PRESETS["tiny"]), [ladder()["sdpa"]])
    run.update(peaks=PEAKS)
    runner.prove()
    permitted = proving.needed_bytes(runner, 2, 64)
    monkeypatch.setattr(proving, "free_bytes", lambda device: permitted)
    add_batches(runner, runner.cases[0], [2, 3], 6, 64)
    assert runner.record.batches[2].status == "proven"
    assert runner.record.batches[3] == Batch(status="left out", reason="memory does not permit it")
    assert [case.decoder.batch for case in runner.cases] == [1, 1, 2]  # the one row twice, for A/A


def test_compute_takes_over_where_both_times_are_equal() -> None:
    config, n, read, flops = PRESETS["gpt2"], 100, 30e9, 100e9
    at = achieved.takeover(config, n, 4, read, flops)
    assert at is not None
    memory_s = (work.weights_read_bytes(config, 4) + at * n * kv_bytes_per_token(config, 4)) / read
    assert memory_s == pytest.approx(at * 2 * work.step_macs(config, n) / flops)
    assert achieved.takeover(config, 1000, 4, 1e9, 1e15) is None  # the cache alone takes longer


@pytest.mark.parametrize(
    ("module", "flags", "message"),
    [
        (throughput, ["--new", "0,4"], "--new must be between 1 and 54"),
        (throughput, ["--new", "60"], "--new must be between 1 and 54"),
        (throughput, ["--context", "3,4"], "one number"),
        (throughput, ["--variant", "nonsense"], "unknown variant nonsense"),
        (throughput, ["--batch", "0"], "--batch must be at least 1"),
        (context, ["--context", "10"], "at least two contexts"),
        (context, ["--context", "10,60"], "beyond what this model allows"),
        (context, ["--context", "57,58"], "leaves no room for a trace"),
        (context, ["--variant", "cudagraph"], "needs a CUDA device"),
        (context, ["--rounds", "0"], "--rounds must be at least 1"),
        (context, ["--precision", "float12"], "--precision"),
        (memory, ["--context", "1"], "between 2 and 64"),
        (memory, ["--context", "65"], "between 2 and 64"),
        (memory, ["--batch", "0"], "--batch must be at least 1"),
        (batch, ["--batch", "4"], "--batches"),
        (batch, ["--batches", "0,2"], "--batches must be at least 1"),
        (batch, ["--prompts", "100"], "--prompts must be between 1 and 58"),
        (batch, ["--variant", "naive"], "a rung with a cache"),
        (batch, ["--variant", "int8"], "--precision"),
        (articles, ["--only", "floor"], "--only floor"),
        (articles, ["--full"], "exclude each other"),
        (articles, ["--rounds", "3"], "--rounds is for the single experiments"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, module: ModuleType, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "cudagraph" in flags and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(SystemExit) as stopped:
        cli.run(module.main, [*TINY, *flags, "--out", str(tmp_path / "runs")])
    error = capsys.readouterr().err
    assert stopped.value.code == 2
    assert error.startswith("error: ") and message in error and len(error.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_what_was_measured_elsewhere_is_shown_beside_ours_and_never_judged() -> None:
    far = claims.measured("generate.naive", 146.6, "{:.1f} s", "another machine")
    assert (far.here, far.holds, far.why) == ("146.6 s", None, "10 times the published: another machine")
    assert claims.measured("memory.workspace", 8_519_680).holds is None
    assert claims.verdict("it", [Check("tokens.cached", "522"), far]).startswith(
        "Claim holds here: it (1 of 1 "
    )
    assert Check("throughput.flat", "whatever", by_rule=True).holds
    assert not Check("tokens.cached", "522", by_rule=False).holds


def test_all_claims_stand_in_the_merged_table_once() -> None:
    rows = claims.rows([Check("tokens.cached", "522"), Check("toy.ratio", "33.9x", "because")])
    done = [articles.Done("work", claims=rows), articles.Done("batch", failure="boom")]
    merged = articles.merged_claims(done)
    assert sorted(claim.key for claim in merged) == sorted(PUBLISHED)
    by_key = {claim.key: claim for claim in merged}
    assert by_key["tokens.cached"].holds is True and by_key["toy.ratio"].holds is False
    assert by_key["step.naive.10"].holds is None and by_key["tokens.cached"].experiment == "work"
    counts = claim_counts(merged)
    assert sum(sum(words.values()) for words in counts.values()) == len(PUBLISHED)
    assert (counts["arithmetic"]["yes"], counts["arithmetic"]["no"]) == (1, 1)
    assert set(counts["statement"]) == set(counts["measured elsewhere"]) == {"not measured"}
    assert done[1].verdict == "failed: boom"


def test_articles_runs_experiments_and_reports_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", "tiny", "--only", "sizing,memory", "--json", "--out", str(tmp_path)]
    assert articles.main(flags) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(result["experiments"]) == ["sizing", "memory"]
    text = (Path(result["run"]) / "report.md").read_text(encoding="utf-8")
    assert "| 4 | one request of 4,096 tokens | 2 GiB | 2 GiB | yes |" in text
    assert "figures/memory.png" in text and "not measured" in text
    assert sum(entry.is_dir() for entry in (Path(result["run"]) / "runs").iterdir()) == 2


def test_articles_says_what_failed_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", str(tmp_path / "none"), "--only", "sizing,memory", "--out", str(tmp_path / "runs")]
    assert articles.main([*flags, "--quiet", "--json"]) == 1
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "neither a folder" in result["experiments"]["memory"]["failure"]
    assert result["experiments"]["sizing"]["failure"] == ""


def test_the_report_needs_a_finished_experiment(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, ContextRecord, "cpu")
    with pytest.raises(UserError, match="still running, or was interrupted"):
        report.build(run.path)
    with pytest.raises(UserError):
        report.build(tmp_path)


@pytest.mark.parametrize("name", [*MEASURING, "generate", "articles"])
def test_help_shows_examples_without_torch(name: str) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['x', '--help']; "
        f"import runpy; runpy.run_module('experiments.{name}', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "examples:" in done.stdout, done.stderr


def test_a_config_that_is_not_the_articles_compares_no_figures(ran: dict[str, RunFolder]) -> None:
    """Times of GPT-2 small say nothing about another model: only the sentences are judged."""
    for name in ("throughput", "context"):
        assert all(claim.kind is ClaimKind.STATEMENT for claim in ran[name].record.claims)


@pytest.mark.parametrize(
    ("new", "rounds", "swing", "judged"),
    [
        ([16, 32, 48], 3, 0.01, []),  # texts alike
        ([16, 64, 128], 1, 0.01, []),  # one round
        ([16, 128], 3, 0.01, []),  # two points are no trend
        ([16, 64, 128], 3, 5.0, []),  # rounds that say both
        ([16, 64, 128], 3, 0.01, [("throughput.flat", False), ("throughput.collapse", True)]),
    ],
)
def test_a_trend_is_judged_from_several_lengths_and_rounds_that_agree(
    new: list[int], rounds: int, swing: float, judged: list[tuple[str, bool]]
) -> None:
    loops = SimpleNamespace(
        new=new,
        workload=Workload(rounds=rounds),
        rate=lambda name, n: 800 / n,
        rates=lambda name, n: [800 / n * (1 + swing * (i + n) ** 2 % (1 + swing)) for i in range(rounds)],
    )
    assert [(check.key, check.holds) for check in throughput._trends(loops)] == judged


def test_the_longest_loop_is_looked_at_step_by_step() -> None:
    """The article's 240 against 20 ms are of the last of 512 tokens, not a mean."""
    record = ThroughputRecord(
        **setting(prompt=10),
        variants={"naive": entry(), "cat": entry()},
        new=[4],
        generations=[
            GenerationSample(round=number, variant=name, prompt=10, tokens_ms=[1.0, 1.0, 1.0, last])
            for number, slow in enumerate((240.0, 250.0))
            for name, last in (("naive", slow), ("cat", 20.0))
        ],
    )
    checks = {check.key: check for check in throughput._longest(Loops(record, PRESETS["gpt2"]), 4)}
    assert (checks["last.naive"].here, checks["last.cached"].here, checks["last.ratio"].here) == (
        "245 ms",
        "20 ms",
        "12x",
    )
    math_ms = 2 * work.step_macs(PRESETS["gpt2"], 12) / PEAKS.matmul_flop_per_s * 1e3
    assert checks["last.math"].here == f"{math_ms:.2f} ms"
    assert checks["throughput.again"].here == "10.6x to 11.0x"
    assert all(check.holds is None for check in checks.values())


def test_bumps_of_the_allocator_are_what_it_holds_above_what_was_requested() -> None:
    above = {64: 0, 512: 9.5 * 2**20, 704: 0, 832: 2**20, 960: 2**21}
    sizes = [CacheSizes(n, n, n + int(bump)) for n, bump in above.items()]
    account = HeldBytes(
        batch=1,
        layers=12,
        contexts=list(above),
        weights=1,
        formula=list(above),
        caches={"cat": sizes},
        masks={},
        warm_up=8_519_680,
        graph_pool=None,
    )
    model = SimpleNamespace(config=PRESETS["gpt2"])
    here = {check.key: check.here for check in memory._figures(account, model)}
    assert here == {"memory.workspace": "8,519,680", "memory.hump": "9.5 MiB", "memory.bumps": "832 and 960"}


def test_the_statement_of_the_copy_says_what_is_read_and_what_is_copied(ran: dict[str, RunFolder]) -> None:
    (flat,) = (claim for claim in ran["context"].record.claims if claim.key == "context.flat")
    more = 14 * kv_bytes_per_token(PRESETS["tiny"], 4) / 1e6
    assert f"reads {more:.0f} MB more of keys and values than at 6" in flat.why
    assert "reads and writes as many once more" in flat.why


@pytest.mark.parametrize(
    ("flop_rate", "read_rate", "holds"),
    [
        (
            0.0015,
            0.14,
            {"batch.prefill": False, "batch.decode": False},
        ),  # the A40's cached step: neither binds
        (0.1, 0.8, {"batch.prefill": False, "batch.decode": True}),
        (0.8, 0.1, {"batch.prefill": True, "batch.decode": False}),
        (0.1, 1.2, {}),  # above a peak the instrument is at fault
    ],
)
def test_a_phase_is_bound_by_what_takes_at_least_half_of_it(
    flop_rate: float, read_rate: float, holds: dict[str, bool]
) -> None:
    phase = SimpleNamespace(name="it", flop_rate=flop_rate, read_rate=read_rate)
    roof = SimpleNamespace(
        flop_rate=1.0, read_rate=1.0, prefills=lambda: [phase], decode=lambda: phase, batches=[]
    )
    assert {check.key: check.holds for check in batch._bounds(roof)} == holds
    said = beyond_peaks(batch._shares(roof))
    assert [sentence.partition(":")[0] for sentence in said] == ["it, read"] * (read_rate > 1)


def test_the_articles_contexts_count_the_new_token_and_ours_do_not() -> None:
    assert context.QUICK.contexts == (9, 99, 499, 999) and set(context.QUICK.contexts) <= set(context.ALL)
