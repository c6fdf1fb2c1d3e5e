"""Where device time comes from: families, the op and module that launched a kernel, what no graph took, waits
that repeat.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.explain import main
from profiling.analysis.explanation import as_json, explain, explain_ranks
from profiling.analysis.sites import call_sites
from profiling.analysis.top import LISTS, family
from profiling.trace import load
from reports.top import tables
from tests.synthetic_trace import Synthetic, eager, on_host
from variants.errors import UserError

LAYERS = ("Attention", "MLP")


def model(steps: int = 3, layers: int = 2, graph: bool = False, extra: int = 0) -> Synthetic:
    """Decode steps of `layers` layers, each a projection in its attention and in its MLP, eager or as one
    replay, with `extra` kernels in front that no graph takes.
    """
    trace = Synthetic()
    at = 1_000_000
    for number in range(steps):
        begin = at
        for n in range(extra):
            with_module(trace, f"nn.Module: Sampler_{n}", at, at + 20_000)
            trace.op("aten::argmax", at + 1_000, at + 15_000)
            trace.launch((at + 5_000, at + 9_000), (at + 10_000, at + 13_000), name="argmax_kernel")
            at += 20_000
        if graph:
            first = at + 10_000
            correlation = trace.call("cudaGraphLaunch", at + 1_000, at + 5_000)
            for k in range(layers * len(LAYERS)):
                trace.work(correlation, first + k * 5_000, first + k * 5_000 + 4_000, name=f"gemm_{k % 2}")
            at = first + layers * len(LAYERS) * 5_000 + 1_000
        else:
            for layer in range(layers):
                outer = at
                for index, part in enumerate(LAYERS):
                    with_module(trace, f"nn.Module: {part}_{layer}", at + 500, at + 18_000)
                    trace.op("aten::linear", at + 1_000, at + 16_000)
                    trace.op("aten::mm", at + 2_000, at + 15_000)
                    trace.launch((at + 5_000, at + 9_000), (at + 10_000, at + 14_000), name=f"gemm_{index}")
                    at += 20_000
                with_module(trace, f"nn.Module: Layer_{layer}", outer, at)
        trace.step(begin, at, f"ProfilerStep#{number}")
        at += 1_000
    return trace


def with_module(trace: Synthetic, name: str, start: int, end: int) -> None:
    trace.event("python_function", name, start, end)


def test_a_kernel_has_the_op_and_the_module_of_its_launch(tmp_path) -> None:
    trace = load(model(steps=1).write(tmp_path / "t.json"))
    sites = call_sites(trace)
    assert sites["op"].tolist() == ["aten::mm"] * 4
    assert sites["module"].tolist() == ["Layer.Attention", "Layer.MLP"] * 2


def test_without_modules_the_frame_of_the_program_stands_for_them(tmp_path) -> None:
    synthetic = Synthetic()
    synthetic.event("python_function", "serve.py(3): decode", 0, 90_000)
    synthetic.event("python_function", "torch/_ops.py(9): __call__", 1_000, 80_000)
    synthetic.launch((5_000, 9_000), (10_000, 14_000))
    sites = call_sites(load(synthetic.write(tmp_path / "t.json")))
    assert sites.iloc[0].tolist() == ["", "serve.py(3): decode"]


@given(steps=st.integers(3, 5), layers=st.integers(1, 4), extra=st.integers(0, 2))
def test_replayed_kernels_get_the_names_of_an_eager_trace(tmp_path_factory, steps, layers, extra) -> None:
    folder = tmp_path_factory.mktemp("t")
    named = explain(model(steps, layers).write(folder / "eager.json"))
    path = model(steps, layers, graph=True, extra=extra).write(folder / "graph.json")
    nameless = as_json(explain(path), "t")
    assert nameless["named_share"] is None
    answered = as_json(explain_ranks(path, names_from=named)[0], "t")
    assert answered["named_share"] == 1
    product = next(row for row in answered["top"]["families"] if row["family"] == "matrix product")
    assert product["count"] == 2 * layers
    assert {site["module"]: site["count"] for site in product["sites"]} == {
        "Layer.Attention": layers,
        "Layer.MLP": layers,
    }
    assert [row["module"] for row in answered["top"]["outside_graphs"]] == ["Sampler"] * bool(extra)


def test_what_the_eager_trace_does_not_settle_stays_nameless(tmp_path) -> None:
    synthetic = model(layers=2)
    for event in synthetic.events:  # one name from two places, and in the graph another number of them
        event["name"] = event["name"].replace("gemm_1", "gemm_0")
    named = explain(synthetic.write(tmp_path / "eager.json"))
    path = model(layers=3, graph=True).write(tmp_path / "graph.json")
    answered = as_json(explain_ranks(path, names_from=named)[0], "t")
    assert answered["named_share"] == 0
    assert any("names none of the replayed kernels" in warning for warning in answered["warnings"])


def test_an_eager_trace_needs_no_names(tmp_path) -> None:
    path = model().write(tmp_path / "t.json")
    answered = as_json(explain_ranks(path, names_from=explain(path))[0], "t")
    assert answered["named_share"] is None
    assert any("--names-from is not used" in warning for warning in answered["warnings"])


def test_each_rank_gets_its_names(tmp_path) -> None:
    named = explain(model().write(tmp_path / "eager.json"))
    synthetic = Synthetic()
    for rank in (0, 1):
        synthetic.events += [e | {"pid": f"[TP0{rank}] {e['pid']}"} for e in model(graph=True).events]
    ranks = explain_ranks(synthetic.write(tmp_path / "t.json"), names_from=named)
    assert [(rank.rank, rank.sites.share) for rank in ranks] == [("[TP00]", 1), ("[TP01]", 1)]


def test_names_from_a_trace_without_kernels_or_no_trace_is_one_line(tmp_path) -> None:
    path = model(graph=True).write(tmp_path / "t.json")
    cpu = on_host().write(tmp_path / "cpu.json")
    for foreign, said in ((cpu, "no device events"), (tmp_path / "missing.json", "cannot be read")):
        with pytest.raises(UserError, match=f"{foreign.name}.*{said}"):
            main([str(path), "--names-from", str(foreign)])


def test_the_host_waits_by_op_and_module(tmp_path, capsys) -> None:
    synthetic = model(steps=3)
    for begin in [event["ts"] * 1000 for event in synthetic.events if event["cat"] == "user_annotation"]:
        with_module(synthetic, "nn.Module: Sampler_0", begin + 18_000, begin + 19_900)
        synthetic.op("aten::item", begin + 18_100, begin + 19_800)
        synthetic.call("cudaStreamSynchronize", begin + 18_200, begin + 19_700)
    (row,) = as_json(explain(synthetic.write(tmp_path / "t.json")), "t")["top"]["host_waits"]
    assert (row["op"], row["module"], row["name"]) == ("aten::item", "Layer.Sampler", "cudaStreamSynchronize")
    assert (row["count"], row["us"]) == (1, pytest.approx(1.5))
    assert main([str(tmp_path / "t.json")]) == 0
    assert "host waits for the device" in capsys.readouterr().out


@given(shift=st.integers(-500_000, 500_000))
@settings(max_examples=20)
def test_what_ran_before_a_wait_is_the_same_wherever_the_clock_stood(tmp_path_factory, shift) -> None:
    folder = tmp_path_factory.mktemp("t")

    def neighbours(synthetic: Synthetic) -> Counter[tuple[str, str]]:
        gaps = as_json(explain(synthetic.write(folder / "t.json")), "t", 99)["top"]["gaps"]
        pairs: Counter[tuple[str, str]] = Counter()
        for gap in gaps:
            pairs[gap["after"], gap["before"]] += gap["count"] * (gap["where"] == "gap")
        return +pairs

    synthetic = eager()
    truth = neighbours(synthetic)
    for event in synthetic.events:
        event["ts"] += shift / 1000 * (event["cat"] == "kernel")
    assert neighbours(synthetic) == truth and len(truth) == 9


def test_waits_between_nodes_are_the_graphs_and_equal_ones_are_one(tmp_path, capsys) -> None:
    path = model(steps=4, layers=2, graph=True).write(tmp_path / "t.json")
    gaps = as_json(explain(path), "t")["top"]["gaps"]
    inside = [gap for gap in gaps if gap["waited_for"] == "next graph node"]
    assert [(gap["after"], gap["before"], gap["count"]) for gap in inside] == [
        ("gemm_0", "gemm_1", 2 * 4),
        ("gemm_1", "gemm_0", 4),
    ]
    assert [gap["total_us"] for gap in inside] == [8, 4]
    assert main([str(path)]) == 0
    assert "next graph node" in capsys.readouterr().out


def test_devices_are_listed_with_what_they_are_busy_with(tmp_path, capsys) -> None:
    synthetic = Synthetic()
    synthetic.step(0, 900_000)
    for device in (0, 1):
        synthetic.launch((10_000, 12_000), (13_000, 20_000), device=device)
        synthetic.launch((14_000, 16_000), (20_000, 30_000), name="ncclDevKernel_AllReduce", device=device)
    assert main([str(synthetic.write(tmp_path / "t.json")), "--json"]) == 0
    text = capsys.readouterr().out
    entry = json.loads(text.splitlines()[-1])["files"][0]
    split = {"compute": 7, "communication": 10, "copies": 0}
    assert [d["busy_split_us"] for d in entry["devices"].values()] == [split, split]
    assert main([str(tmp_path / "t.json")]) == 0
    assert "communication" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNN", "matrix product"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x256", "matrix product"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16>", "matrix product"),
        ("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64>>", "attention"),
        ("_ZN4vllm25paged_attention_v1_kernel", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
        ("fused_moe_kernel", "mixture of experts"),
        ("void vllm::rms_norm_kernel<c10::BFloat16>", "norm"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16>", "rotary"),
        ("Memcpy DtoH (Device -> Pageable)", "data movement"),
        ("triton_poi_fused_add_0", "elementwise"),
        ("triton_red_fused_mean_1", "reduction"),
        ("kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNormKernel", "norm"),
        ("bmm_Bfloat16_Bfloat16Bfloat16_Fp32_t128x8x128u2_s6_et128x8_m128x8x16_sm100f", "matrix product"),
        ("something_of_nobody", "other"),
    ],
)
def test_family_of_a_kernel(kernel, expected) -> None:
    assert family(kernel) == expected


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("<built-in method arange of type object at 0x7f462d1f2180>", "`<built-in method arange>`"),
        ("<built-in function linear>", "`<built-in function linear>`"),
        ("/opt/x/vllm/worker/runner.py(8): execute", "`worker/runner.py(8): execute`"),
        ("Model.Layer.Attention", "`Layer.Attention`"),
    ],
)
def test_a_place_is_short_and_has_no_address(place, said) -> None:
    gap = {"op": None, "call": None, "frame": place, "waited_for": "before_call", "count": 1, "total_us": 1}
    (table,) = tables({key: [] for key in LISTS} | {"gaps": [gap | {"length_us": 1}]}, 1)
    assert table.rows[0][0] == said


def test_names_with_markup_are_text_in_the_report(tmp_path) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)> | `a` **b** " + "long" * 200
    synthetic = model()
    for event in synthetic.events:
        event["name"] = event["name"].replace("gemm_", f"{evil} gemm_").replace("Layer_", f"{evil}_")
        event["name"] = event["name"].replace("aten::mm", f"aten::{evil}").replace("ProfilerStep", evil)
    path = synthetic.write(tmp_path / "<b>t.json")
    assert main([str(path), "--step", r"long#\d", "--out", str(tmp_path / "out"), "--quiet"]) == 0
    text = (tmp_path / "out" / "report.html").read_text()
    assert "alert(1)" in text
    assert not any(raw in text for raw in ("<script>alert", "</script><img", "<img src=x", "<b>t"))


spans = st.tuples(st.integers(0, 80), st.integers(1, 40), st.integers(0, 1))
"""Start, length and thread; whatever overlaps in part is no nesting, which the profiler does not write."""


def nested(drawn: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Those of some spans that nest with all before them."""
    nesting: list[tuple[int, int, int]] = []
    for start, length, thread in drawn:
        end = start + length
        apart = all(
            end <= a or start >= b or (a <= start and end <= b) or (start <= a and b <= end)
            for a, b, t in nesting
            if t == thread
        )
        if apart and (start, end, thread) not in nesting:
            nesting.append((start, end, thread))
    return nesting


@given(
    ops=st.lists(spans, max_size=8), modules=st.lists(spans, max_size=6), calls=st.lists(spans, max_size=8)
)
@settings(max_examples=60)
def test_sites_are_those_of_the_innermost_span_at_the_call(tmp_path_factory, ops, modules, calls) -> None:
    """Held against a search through every span; a span holds its start and not its end."""
    synthetic, ops, modules = Synthetic(), nested(ops), nested(modules)
    for number, (start, end, thread) in enumerate(ops):
        synthetic.op(f"mine::op{number}", 1_000 * start, 1_000 * end, tid=thread)
    for number, (start, end, thread) in enumerate(modules):
        synthetic.event("python_function", f"nn.Module: M{number}x_0", 1_000 * start, 1_000 * end, tid=thread)
    synthetic.event("python_function", "serve.py(3): decode", 0, 200_000, tid=1)
    for number, (start, length, thread) in enumerate(calls):
        correlation = synthetic.call("cudaLaunchKernel", 1_000 * start, 1_000 * (start + length), tid=thread)
        synthetic.work(correlation, 1_000 * (start + 1), 1_000 * (start + 2), f"k{number}", stream=number)
    trace = load(synthetic.write(tmp_path_factory.mktemp("t") / "t.json"))
    threads = dict(zip(trace.events["thread"], trace.events["tid"], strict=True))
    for row, call in zip(call_sites(trace).to_dict("records"), trace.calls.to_dict("records"), strict=True):
        at, thread = call["start_ns"] // 1_000, threads[call["thread"]]

        def around(held: list[tuple[int, int, int]], at: int = at, thread: object = thread) -> list[int]:
            inside = [n for n, (a, b, t) in enumerate(held) if a <= at < b and t == thread]
            return sorted(inside, key=lambda n: (held[n][0], -held[n][1]))

        op, path = around(ops), around(modules)
        assert row["op"] == (f"mine::op{op[-1]}" if op else "")
        frame = "serve.py(3): decode" if thread == 1 else ""
        assert row["module"] == (".".join(f"M{n}x" for n in path) or frame)


@pytest.mark.parametrize(
    ("frame", "own"),
    [
        ("serve.py(3): decode", True),
        ("/opt/venv/lib/python3.12/site-packages/vllm/worker.py(8): execute", True),
        ("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py(8): _call_impl", False),
        ("/usr/lib/python3/dist-packages/torch/_ops.py(8): __call__", False),
        ("torch/_ops.py(8): __call__", False),
        ("<built-in method linear of type object at 0x7f>", False),
        ("<frozen importlib>(3): load", False),
        ("nn.Module: Linear_0", False),
    ],
)
def test_frames_of_the_program_are_told_from_torchs(tmp_path, frame, own) -> None:
    synthetic = Synthetic()
    synthetic.event("python_function", frame, 0, 90_000)
    synthetic.launch((5_000, 9_000), (10_000, 14_000))
    module = call_sites(load(synthetic.write(tmp_path / "t.json")))["module"].tolist()
    assert module == ([frame] if own else ["Linear"] if frame.startswith("nn.") else [""])


def chain(modules: list[str], graph: bool, names: list[str], devices: int = 1, steps: int = 3) -> Synthetic:
    """Steps of one kernel per module and device, in order, launched one by one or replayed."""
    synthetic, at = Synthetic(), 1_000_000
    for number in range(steps):
        begin = at
        for device in range(devices):
            if graph:
                launched = synthetic.call("cudaGraphLaunch", at, at + 4_000)
                for k, name in enumerate(names):
                    start = at + 5_000 + 3_000 * k
                    synthetic.work(launched, start, start + 2_000, name, device=device)
                at += 5_000 + 3_000 * len(names)
                continue
            for module, name in zip(modules, names, strict=True):
                with_module(synthetic, f"nn.Module: {module}_0", at, at + 10_000)
                synthetic.launch((at + 1_000, at + 3_000), (at + 4_000, at + 6_000), name=name, device=device)
                at += 11_000
        synthetic.step(begin, at, f"ProfilerStep#{number}")
        at += 1_000
    return synthetic


@pytest.mark.parametrize("devices", [1, 2])
@given(order=st.permutations(["A", "B", "C", "D", "E"]), split=st.integers(1, 5))
@settings(max_examples=15)
def test_names_go_by_order_within_a_name_and_device(tmp_path_factory, devices, order, split) -> None:
    """Five modules launch one kernel or another: the n-th of a name there is the n-th here."""
    folder = tmp_path_factory.mktemp("t")
    names = ["gemm"] * split + ["norm"] * (5 - split)
    eager_trace = explain(chain(order, False, names, devices).write(folder / "eager.json"))
    path = chain(order, True, names, devices).write(folder / "graph.json")
    (found,) = explain_ranks(path, names_from=eager_trace)
    assert found.sites.share == 1
    work = found.trace.device_events.join(found.sites.work)
    for _, rows in work.groupby(["call", "device"], observed=True):
        assert rows["module"].tolist() == list(order)


def test_a_name_is_settled_only_where_op_and_module_are(tmp_path) -> None:
    """Two kernels of a name there and three here: of one place they are named, of two not."""
    one_place = explain(chain(["A", "A", "C"], False, ["gemm", "gemm", "norm"]).write(tmp_path / "a.json"))
    two_places = explain(chain(["A", "B", "C"], False, ["gemm", "gemm", "norm"]).write(tmp_path / "b.json"))
    path = chain([], True, ["gemm", "gemm", "gemm", "norm"]).write(tmp_path / "graph.json")
    for eager_trace, module, share in ((one_place, "A", 1.0), (two_places, "", 0.25)):
        (found,) = explain_ranks(path, names_from=eager_trace)
        assert found.sites.share == share
        work = found.trace.device_events.join(found.sites.work)
        assert set(work.loc[work["name"] == "gemm", "module"]) == {module}
        assert set(work.loc[work["name"] == "norm", "module"]) == {"C"}


def test_what_a_graph_replays_has_no_site_of_its_own(tmp_path) -> None:
    synthetic = chain([], True, ["gemm"])
    synthetic.op("mine::replay", 999_000, 1_020_000)
    explanation = explain(synthetic.write(tmp_path / "t.json"))
    assert set(explanation.sites.work["op"]) == {""}
    assert explanation.sites.calls["op"].tolist()[0] == "mine::replay"
