"""Predictions of steps elsewhere: exact bytes, counted launches, published steps, what is out of range."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import predict as command
from experiments import validate
from profiling.cost import work
from profiling.forecast import engines, hosts, table
from profiling.forecast.constants import Constant, fitted, priors
from profiling.forecast.devices import DEVICES, Host, find
from profiling.forecast.engines import ENGINES, Engine, Family, Mode
from profiling.forecast.fit import (
    after_an_anchor,
    anchored_setup,
    cross_validate,
    fit,
    near_in_hindsight,
    rows_in_range,
    with_one_kind_of_host,
)
from profiling.forecast.job import NATIVE_BITS, PACKED_BITS, Job, job_of
from profiling.forecast.step import Limit, Setup, predict, step
from profiling.sizing.read_shape import read_shape
from variants.config import PRESETS
from variants.errors import UserError

VALUES = fitted()
PUBLISHED = Path(__file__).parent.parent.parent / "shared" / "gpu" / "published" / "steps.csv"
GPT2 = job_of(read_shape("gpt2"), "float32", 100)
MODES = [(engine, mode) for engine in ENGINES.values() for mode in engine.modes]
MODES_IDS = [f"{engine.name}-{mode}" for engine, mode in MODES]


# -- devices, models, counts ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelled", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("h100-sxm5", "H100"),
        ("NVIDIA A100-SXM", "A100-80GB"),
        ("A100 80GB PCIe", "A100-80GB PCIe"),
        ("rtx3090", "RTX 3090"),
        ("NVIDIA H200", "H200"),
    ],
)
def test_a_device_is_found_however_it_is_spelled(spelled: str, name: str) -> None:
    assert find(spelled).name == name


def test_a_device_that_is_not_known_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'TPU v5' is not known; known: .*H100"):
        find("TPU v5")


# bytes that the rows of other people's tables state for these models
@pytest.mark.parametrize(
    ("model", "gigabytes", "kv_per_token"),
    [
        ("llama-3-8b", 15.009316864, 131072),
        ("llama-2-7b", 13.214154752, 524288),
        ("qwen2.5-7b", 14.140571648, 57344),
        ("qwen3-0.6b", 1.191968768, 114688),
        ("llama-3.2-1b", 2.471493632, 32768),
    ],
)
def test_a_step_reads_what_published_tables_say(model: str, gigabytes: float, kv_per_token: int) -> None:
    job = job_of(read_shape(model), "bfloat16", 1000)
    assert job.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=2e-4)  # they leave out norms and biases
    assert job.cache_bytes == 1000 * kv_per_token


@pytest.mark.parametrize("filled", [0, 0.1, 1])
@pytest.mark.parametrize("name", list(PRESETS))
def test_a_step_of_our_models_reads_the_exact_count(name: str, filled: float) -> None:
    context = int(filled * PRESETS[name].n_ctx)
    job = job_of(read_shape(name), "float32", context)
    assert job.weight_bytes + job.cache_bytes == work.step_bytes(PRESETS[name], context, 4, 4)


def test_a_mixture_of_experts_is_refused(tmp_path: Path) -> None:
    config = {
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_hidden_layers": 2, "vocab_size": 100, "sliding_window": None, "num_key_value_heads": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="mixture of experts"):
        job_of(read_shape(str(tmp_path)), "bfloat16", 10)


@pytest.mark.parametrize(("precision", "context"), [("int3", 10), ("bfloat16", -1)])
def test_a_job_that_cannot_be_is_refused(precision: str, context: int) -> None:
    with pytest.raises(UserError):
        job_of(read_shape("gpt2"), precision, context)


def counted(run: Any) -> tuple[int, int]:
    """(launches, views) that a call dispatches."""
    from torch.utils._python_dispatch import TorchDispatchMode

    views = ("view", "_unsafe_view", "reshape", "transpose", "t", "slice", "expand", "split", "select")
    views += ("unsqueeze", "permute", "alias", "detach", "as_strided", "squeeze", "split_with_sizes")
    views += ("lift_fresh", "_reshape_alias")
    seen: Counter[bool] = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen[func.overloadpacket.__name__ in views] += 1
            return func(*args, **(kwargs or {}))

    with Count():
        run()
    return seen[False], seen[True]


@pytest.mark.parametrize(
    ("variant", "launches", "views"),
    [("cat", engines.Count(18, 8), engines.Count(10, 1)), ("sdpa", engines.OURS.kernels, None)],
)
def test_our_launches_are_the_counted_ones(
    variant: str, launches: engines.Count, views: engines.Count | None
) -> None:
    import torch

    from variants.decoder import Decoder
    from variants.ladder import ladder
    from variants.model import random_model

    for layers in (1, 3):
        model = random_model(replace(PRESETS["tiny"], n_layer=layers), 1)
        decoder = Decoder.of(ladder()[variant], model, capacity=16)
        decoder.prefill(torch.tensor([[5, 3, 9, 2]]))
        decoder.advance()
        counts = counted(decoder.advance)
        assert counts[0] == launches.of(layers)
        assert views is None or counts[1] == views.of(layers)


@pytest.mark.parametrize("family", [Family.GPT2, Family.LLAMA, Family.QWEN3])
def test_launches_of_hugging_face_models_are_the_counted_ones(family: Family) -> None:
    """Within a few a layer: they change between versions of transformers."""
    transformers = pytest.importorskip("transformers")
    import torch

    sizes = {
        "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 101,
        "intermediate_size": 128, "head_dim": 16, "num_key_value_heads": 2,
    }  # fmt: skip
    if family is Family.GPT2:
        sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 101}
    config = transformers.AutoConfig.for_model(family.value, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).eval()
    ids = torch.randint(3, 100, (1, 8))

    def generate(count: int) -> None:
        with torch.no_grad():
            ones = torch.ones_like(ids)
            length = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False}
            model.generate(ids, attention_mask=ones, pad_token_id=0, **length)

    longer, shorter = counted(lambda: generate(6)), counted(lambda: generate(5))
    kernels = engines.HF.kernels
    assert isinstance(kernels, dict)
    assert longer[0] - shorter[0] == pytest.approx(kernels[family].of(2), rel=0.15)


# -- the model of a step -------------------------------------------------------------------------------


def setup(device: str, engine: Engine = engines.OURS, mode: Mode = Mode.EAGER) -> Setup:
    return Setup(DEVICES[device], engine, mode)


def test_the_article_s_step_is_the_calibration_point(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "gpt2", "--precision", "float32", "--device", "A40", "--engine", "ours"]
    command.main([*flags, "--json", "--quiet"])
    (device,) = json.loads(capsys.readouterr().out)["devices"]
    eager, graph = device["steps"]["eager"], device["steps"]["graph"]
    assert eager["expected_ms"] == pytest.approx(4.95, rel=0.01) and eager["sets_it"] == "host"
    assert eager["low_ms"] < 4.95 < eager["high_ms"]
    assert graph["expected_ms"] < 2 and graph["high_ms"] < eager["low_ms"]
    assert device["memory_floor_ms"] == pytest.approx(0.722, rel=0.01)


@pytest.mark.parametrize("device", list(DEVICES))
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_rungs_come_in_order_and_none_beats_the_memory_floor(device: str, precision: str) -> None:
    job = job_of(read_shape("gpt2"), precision, 100)
    order = (Mode.EAGER, Mode.GRAPH, Mode.COMPILED, Mode.DEPENDENT)
    steps = [predict(job, setup(device, mode=mode), VALUES) for mode in order]
    expected = [one.expected_ms for one in steps]
    assert expected == sorted(expected, reverse=True)
    floor_ms = (job.weight_bytes + job.cache_bytes) / DEVICES[device].bandwidth_gb_per_s / 1e6
    assert all(floor_ms < one.expected_ms and one.low_ms < one.expected_ms < one.high_ms for one in steps)


@given(
    st.sampled_from(MODES),
    st.sampled_from(list(DEVICES.values())),
    st.integers(1, 200),
    st.floats(1e6, 1e11),
    st.floats(0, 1e10),
    st.booleans(),
)
def test_more_work_never_takes_less_time(
    engine_mode: tuple[Engine, Mode], device: Any, layers: int, weights: float, cache: float, packed: bool
) -> None:
    here = Setup(device, *engine_mode)
    job = Job(Family.LLAMA, layers, weights, weights / 2, cache, packed)
    base = step(job, here, VALUES)
    more = [
        replace(job, weight_bytes=2 * weights, weights=weights),
        replace(job, cache_bytes=2 * cache),
        replace(job, layers=2 * layers),
    ]
    assert all(step(other, here, VALUES).total >= base.total for other in more)
    slower = replace(here, device=replace(device, bandwidth_gb_per_s=device.bandwidth_gb_per_s / 2))
    assert step(job, slower, VALUES).total >= base.total > 0
    predicted = predict(job, here, VALUES)
    assert 0 < predicted.low_ms < predicted.expected_ms < predicted.high_ms < math.inf
    assert predicted.expected_ms == pytest.approx(max(base.host, base.device) + base.between)


@pytest.mark.parametrize(("engine", "mode"), MODES, ids=MODES_IDS)
def test_an_anchor_gives_itself_back(engine: Engine, mode: Mode) -> None:
    here = setup("A40", engine, mode)
    step_ms = 1.3 * step(GPT2, here, VALUES).total
    known = anchored_setup(GPT2, here, step_ms, VALUES)
    assert step(GPT2, known, VALUES).total == pytest.approx(step_ms)


def test_an_anchor_that_launches_tells_the_host_and_another_the_device() -> None:
    eager = anchored_setup(GPT2, setup("A40"), 4.95, VALUES)
    assert eager.host_us == pytest.approx(19.47, rel=0.01) and eager.scale == 1
    graph = anchored_setup(GPT2, setup("A40", mode=Mode.GRAPH), 1.6, VALUES)
    assert graph.host_us is None and graph.scale > 1
    narrow, wide = (predict(GPT2, one, VALUES) for one in (eager, setup("A40")))
    assert narrow.high_ms / narrow.low_ms < wide.high_ms / wide.low_ms


def test_an_anchor_of_something_else_is_refused() -> None:
    with pytest.raises(UserError, match="another model, device, precision or mode"):
        anchored_setup(GPT2, setup("A40"), 0.01, VALUES)


def test_a_mode_that_an_engine_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"llama.cpp has no eager step here"):
        step(GPT2, setup("A40", engines.LLAMA_CPP), VALUES)


@pytest.mark.parametrize(
    ("device", "mode", "limit"),
    [
        ("H100", Mode.EAGER, Limit.HOST),
        ("H200", Mode.GRAPH, Limit.CHAIN),
        ("A40", Mode.ONE_LAUNCH, Limit.BYTES),
    ],
)
def test_what_sets_a_step(device: str, mode: Mode, limit: Limit) -> None:
    assert step(GPT2, setup(device, mode=mode), VALUES).sets_it is limit


@pytest.mark.parametrize("device", ["A40", "H200"])
def test_one_launch_without_a_graph_takes_as_long_as_its_launcher_where_that_is_longer(device: str) -> None:
    here = setup(device, mode=Mode.ONE_LAUNCH_EAGER)
    eager, replayed = (step(GPT2, replace(here, mode=m), VALUES) for m in (here.mode, Mode.ONE_LAUNCH))
    known = replace(here, host_us=10.0)
    assert step(GPT2, known, VALUES).host == pytest.approx(VALUES[Constant.TRITON_LAUNCH] / 100)
    assert eager.device == replayed.device and eager.host > replayed.host
    assert eager.total == max(eager.host, replayed.device)
    slower = replace(GPT2, weight_bytes=100 * GPT2.weight_bytes)
    assert step(slower, here, VALUES).sets_it is Limit.BYTES, "a long step hides its launch"


def test_every_constant_has_a_source_and_stands_where_it_may() -> None:
    for constant in Constant:
        known = constant.value
        assert known.source and known.unit and known.spread > 1
        assert known.prior / known.spread**2 < known.fitted < known.prior * known.spread**2, constant


# steps that others published: (device, engine, mode, model, precision, context, ms)
FACTS = [
    (
        "A100-80GB",
        "gpt-fast",
        Mode.COMPILED,
        "llama-2-7b",
        "bf16",
        200,
        9.313,
    ),  # pytorch/ao, benchmark_results
    ("A100-80GB", "gpt-fast", Mode.COMPILED, "llama-2-7b", "int8", 200, 5.854),  # the same
    ("RTX 4090", "native", Mode.ONE_LAUNCH, "llama-2-7b", "fp16", 16, 14.93),  # zeux/calm, README
    ("H100", "native", Mode.ONE_LAUNCH, "llama-3.2-1b", "bf16", 96, 0.973),  # megakernels-vs-cuda-graphs
    ("H100", "native", Mode.DEPENDENT, "llama-3.2-1b", "bf16", 96, 0.980),  # the same
    ("RTX 3090", "llama.cpp", Mode.GRAPH, "llama-2-7b", "q4_0", 64, 7.796),  # llama.cpp#6766
]


@pytest.mark.parametrize(("device", "engine", "mode", "model", "precision", "context", "ms"), FACTS)
def test_published_steps_are_in_their_intervals(
    device: str, engine: str, mode: Mode, model: str, precision: str, context: int, ms: float
) -> None:
    job = job_of(read_shape(model), precision, context)
    predicted = predict(job, setup(device, ENGINES[engine], mode), VALUES)
    assert predicted.low_ms < ms < predicted.high_ms and predicted.expected_ms == pytest.approx(ms, rel=0.15)


# -- tables ----------------------------------------------------------------------------------------------

ROW = {
    "id": "1", "source": "somewhere", "date": "2025-01", "gpu": "H100", "n_gpu": "1", "host_cpu": "",
    "framework": "vLLM 0.9", "model": "Llama-3-8B", "layers": "32", "hidden": "4096", "inter": "14336",
    "vocab": "128256", "mlp": "gated", "precision": "bf16", "batch": "1", "context": "128",
    "weight_bytes": "15009316864", "kv_bytes": "16777216", "mode": "graph", "step_ms": "6.3",
}  # fmt: skip


def write(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows({**ROW, **row} for row in rows)
    return path


def lines(path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    command.main(["--table", str(path)])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"gpu": "TPU"}, "not known"),
        ({"n_gpu": "2"}, "more than one device"),
        ({"batch": "64"}, "batch above"),
        ({"mode": "dreamt"}, "mode 'dreamt'"),
        ({"framework": "something"}, "not known"),
        ({"precision": "nf4"}, "not limited by bytes"),
        ({"precision": "awq", "mode": "eager-hf"}, "not limited by bytes"),
        ({"precision": "awq", "framework": "vLLM 0.4.2"}, "not limited by bytes"),
        ({"precision": "fp32"}, "built for 16 bits"),
        ({"framework": "vLLM 0.4.2 graphs", "context": "16384"}, "runs eager beyond"),
        ({"framework": "gpt-fast", "mode": "eager-torch", "context": "8192"}, "whole static cache"),
    ],
)
def test_what_is_out_of_range_says_why(
    changed: dict[str, str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, out = lines(write(tmp_path / "t.csv", {}, {**changed, "id": "2"}), capsys)
    assert set(known) == {"id", "low_ms", "expected_ms", "high_ms", "sets_it"}
    assert set(out) == {"id", "out_of_range"} and out["id"] == "2" and reason in out["out_of_range"]


def test_the_measured_time_is_not_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = lines(write(tmp_path / "t.csv", {"step_ms": "6.3"}, {"step_ms": "600"}), capsys)
    assert one == other


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"layers": "many"}, r"t.csv, row 3: layers is 'many'"),
        ({"weight_bytes": "nan"}, r"row 3: weight_bytes is 'nan'"),
        ({"kv_bytes": "-1"}, r"row 3: kv_bytes"),
        ({"weight_bytes": "0"}, r"row 3: weight_bytes is 0"),
        ({"kv_bytes": ""}, r"row 3: kv_bytes is ''"),
        ({"weight_bytes": "1e300"}, r"row 3: weight_bytes is '1e300'"),
        ({"context": "-5"}, r"row 3: context is '-5'"),
        ({"layers": "0.5"}, r"row 3: layers is '0.5'; a whole number"),
        ({"batch": "0"}, r"row 3: batch is '0'"),
    ],
)
def test_a_bad_number_names_its_row_and_nothing_is_printed(
    changed: dict[str, str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=said):
        command.main(["--table", str(write(tmp_path / "t.csv", {}, changed))])
    assert capsys.readouterr().out == ""


HEAD = ",".join(ROW)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no column id, .*its first line has none"),
        ("id,gpu\n1,H100\n", "no column source, .*its first line has id, gpu"),
        ("\udcff", "not a readable table"),
        (HEAD + "\n", "no row under its first line"),
        (HEAD + "\n1,somewhere\n", "row 2: 2 fields, not 20 as in the first line"),
    ],
)
def test_a_file_that_is_no_such_table_is_one_line(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=f"t.csv.*{said}"):
        table.read(path)
    with pytest.raises(UserError, match="not a readable"):
        table.read(tmp_path / "missing.csv")


def test_a_spreadsheet_s_mark_before_the_first_column_is_no_part_of_it(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", {})
    plain = table.read(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert table.read(path) == plain


def test_the_engine_and_the_host_of_a_row() -> None:
    def of(**changed: str) -> Setup:
        return table.setup_of(table.Row("here", {**ROW, **changed}))

    assert of(date="2024-08").between and not of().between, "schedulers overlap with the device since 2025"
    assert of(framework="x", mode="llama.cpp-graph").engine is engines.LLAMA_CPP
    assert of(framework="calm", mode="megakernel").engine is engines.NATIVE
    assert of(framework="HF + CUDA graph").engine is engines.HF
    assert of(framework="HF + CUDA graph", date="2024-11").engine is engines.HF_2024
    rome, zen4 = of(gpu="RTX 4090", host_cpu="EPYC 7702P"), of(gpu="RTX 4090", host_cpu="Ryzen 9 7950X")
    assert (rome.device.host, zen4.device.host) == (Host.OLDER, Host.NEWER)
    known = of(source="github QwenLM/Qwen3 @1", gpu="A100-80GB", mode="eager-hf", framework="transformers")
    assert known.host_us == next(m.host_us for m in hosts.MACHINES if "Qwen" in m.source)
    assert of(gpu="A100-80GB", mode="eager-hf", framework="transformers").host_us is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--device A40 --anchor 5", "--anchor '5': a step in ms and its mode"),
        ("--device A40 --anchor 5:dreamt", "modes: eager"),
        ("--device A40 --anchor x:eager", "--anchor 'x:eager'"),
        ("--device A40 --anchor 0:eager", "more than 0 ms"),
        ("--device A40 --anchor 1e9:eager", "us of host time per launch"),
        ("--device A40,H100 --anchor 5:eager", "name it with --device"),
        ("--anchor 5:eager", "name it with --device"),
        ("--device A40 --precision awq --anchor 5:eager", "not limited by bytes"),
        ("--host-us 0", "--host-us must be above 0"),
        ("--context 1025", "gpt2 has 1,024 positions"),
    ],
)
def test_a_bad_flag_is_one_line(flags: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        command.main(flags.split())


def test_a_mode_that_is_out_of_range_is_named_instead_of_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command.main(["--device", "A40", "--precision", "awq", "--json"])
    text, line = capsys.readouterr().out.rsplit("\n{", 1)
    (device,) = json.loads("{" + line)["devices"]
    assert "eager" not in device["steps"] and "graph" in device["steps"]
    assert "not limited by bytes" in device["out_of_range"]["eager"]
    assert "Not predicted, eager" in text


# -- fit and validation ------------------------------------------------------------------------------------


def synthetic(path: Path) -> Path:
    """Rows that a model with other constants than the priors would have measured, on two devices."""
    true = priors() | {Constant.PRODUCT_KERNEL: 6.0, Constant.REACH_HBM3: 0.8, Constant.REACH_GDDR: 0.9}
    rows = []
    for gpu in ("H100", "RTX 4090"):
        for number, layers in enumerate((8, 16, 32, 64, 80)):
            row = {
                "gpu": gpu, "id": f"{gpu} {layers}", "layers": str(layers), "source": f"page {number}",
                "weight_bytes": str(layers**2 * 10_000_000),
            }  # fmt: skip
            given = table.Row("here", {**ROW, **row})
            ms = step(table.job_of(given), table.setup_of(given), true).total
            rows.append({**row, "step_ms": f"{ms:.6f}"})
    return write(path, *rows)


def test_a_fit_finds_the_constants_that_made_the_rows(tmp_path: Path) -> None:
    rows, reasons = rows_in_range(table.read(synthetic(tmp_path / "t.csv")))
    fitted = fit(rows)
    assert len(rows) == 10 and not reasons
    assert fitted[Constant.PRODUCT_KERNEL] > priors()[Constant.PRODUCT_KERNEL]
    assert abs(fitted[Constant.REACH_HBM3] - 0.8) < 0.75 * abs(priors()[Constant.REACH_HBM3] - 0.8)
    assert fitted[Constant.HOST_OLDER] == priors()[Constant.HOST_OLDER], "no row touches it"
    for row in rows:
        assert step(row.job, row.setup, fitted).total == pytest.approx(row.step_ms, rel=0.08)


def test_one_row_that_nothing_explains_does_not_bend_the_others(tmp_path: Path) -> None:
    rows, _ = rows_in_range(table.read(synthetic(tmp_path / "t.csv")))
    plain = fit(rows)
    bent = fit([*rows, replace(rows[0], source="elsewhere", step_ms=20 * rows[0].step_ms)])
    assert all(bent[c] == pytest.approx(plain[c], rel=0.1) for c in Constant)


def test_a_row_is_predicted_without_its_fold(tmp_path: Path) -> None:
    rows, _ = rows_in_range(table.read(synthetic(tmp_path / "t.csv")))
    wrong = [replace(row, step_ms=5 * row.step_ms) if row.device == "H100" else row for row in rows]
    for kept, changed in zip(
        cross_validate(rows, lambda row: row.device),
        cross_validate(wrong, lambda row: row.device),
        strict=True,
    ):
        if kept.row.device == "H100":
            assert kept.prediction == changed.prediction and changed.ratio == pytest.approx(kept.ratio / 5)


def test_eager_rows_are_predicted_after_one_step_of_their_machine(tmp_path: Path) -> None:
    eager = {"mode": "eager-hf", "framework": "transformers 5", "weight_bytes": "100000000"}
    rows = [
        {**eager, "id": str(n), "layers": str(n), "step_ms": f"{(49 * n + 57) * 0.03:.4f}"}
        for n in (8, 16, 32)
    ]
    in_range, _ = rows_in_range(table.read(write(tmp_path / "t.csv", *rows)))
    held = after_an_anchor(in_range)
    assert [one.row.id for one in held] == ["16", "32"]
    assert all(one.ratio == pytest.approx(1, rel=1e-3) for one in held), (
        "30 us a launch, however it is fitted"
    )


def test_the_page_says_where_the_goal_is_missed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    validate.main([str(synthetic(tmp_path / "t.csv")), "--out", str(page), "--quiet", "--json"])
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["Without the device"]["graph, goal"]["rows"] == 10
    text = page.read_text()
    assert "| graph | 10 |" in text and "REACH_GDDR_ECC" in text and "**Without the model**" in text


def test_the_page_tells_whose_host_was_how_fast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    eager = {"mode": "eager-hf", "framework": "transformers 5", "weight_bytes": "100000000"}
    rows = [
        {**eager, "source": page, "id": page, "step_ms": f"{(49 * 32 + 57) * us / 1e3:.4f}"}
        for page, us in (("slow", 30), ("fast", 7))
    ]
    validate.main([str(write(tmp_path / "t.csv", *rows))])
    cells = [line.split() for line in capsys.readouterr().out.splitlines() if " H100 " in line]
    assert ["fast", "H100", "7.0", "1"] in [one[:4] for one in cells]
    assert ["slow", "H100", "30.0", "1"] in [one[:4] for one in cells]


def test_what_a_kind_of_host_can_do_at_best_is_counted_with_the_rows_in_sight(tmp_path: Path) -> None:
    """Three machines of one kind at 10, 12 and 20 us a launch: one number is near two, never three."""
    eager = {"mode": "eager-hf", "framework": "transformers 5", "weight_bytes": "100000000"}
    rows = [
        {**eager, "source": str(us), "id": str(us), "step_ms": f"{(49 * 32 + 57) * us / 1e3:.4f}"}
        for us in (10, 12, 20)
    ]
    in_range, _ = rows_in_range(table.read(write(tmp_path / "t.csv", *rows)))
    assert near_in_hindsight(in_range, VALUES) == 2
    a100 = replace(in_range[2], setup=replace(in_range[2].setup, device=DEVICES["A100-80GB"]))
    assert near_in_hindsight([*in_range[:2], a100], VALUES) == 3, "a number for each kind"
    assert near_in_hindsight(with_one_kind_of_host([*in_range[:2], a100]), VALUES) == 2


def test_a_table_without_a_row_in_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row of it is in range"):
        validate.main([str(write(tmp_path / "t.csv", {"gpu": "TPU"}))])


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the table of published steps is not here")
def test_the_committed_constants_are_the_fitted_ones() -> None:
    rows, _ = rows_in_range(table.read(PUBLISHED))
    fitted = fit(rows)
    assert all(fitted[c] == pytest.approx(c.value.fitted, rel=0.01) for c in Constant)


def test_every_precision_has_its_bits() -> None:
    assert not set(NATIVE_BITS) & set(PACKED_BITS) and all(bits < 16 for bits in PACKED_BITS.values())
