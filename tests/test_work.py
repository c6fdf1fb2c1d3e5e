"""Counts: the formulas against torch's own modules, against executed matmuls, and against the articles."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import work as experiment
from experiments.shared.cli import run
from experiments.shared.published import PUBLISHED, Check
from experiments.shared.reproduced import LLAMA, TOY, work_checks
from profiling.cost import work
from profiling.cost.matmul_counter import MatmulCounter
from variants.backends.backend import MODULES
from variants.config import PRESETS, GPTConfig
from variants.decoder import Decoder
from variants.executors.executor import EAGER as EAGER_OPTION
from variants.ladder import ladder
from variants.model import GPT, random_model
from variants.spec import Variant

ODD = GPTConfig(
    n_layer=3, n_head=6, n_embd=42, n_kv_head=2, n_ctx=48, vocab_size=91, n_inner=97, tied_head=False
)
MQA = GPTConfig(n_layer=2, n_head=5, n_embd=40, n_kv_head=1, n_ctx=40, vocab_size=33)
EAGER = [v for v in ladder().values() if v.executor is EAGER_OPTION and v.backend is MODULES]

configs = st.builds(
    lambda layers, heads, group, dim, inner, vocab, tied: GPTConfig(
        layers, heads * group, heads * group * dim, heads, 64, vocab, inner, tied
    ),
    *[st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 8)],
    *[st.integers(1, 50), st.integers(2, 99), st.booleans()],
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads only hinder models this small, the more so where other tests run beside."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("check", work_checks(), ids=lambda check: check.key)
def test_published_figures_are_reproduced_as_printed(check: Check) -> None:
    assert check.here == PUBLISHED[check.key].value


def test_the_headline_figures_without_the_experiment() -> None:
    assert work.macs(TOY, work.naive_loop(1, 64, logits=0)) == 62_566_400
    assert work.macs(TOY, work.cached_loop(1, 64, logits=0)) == 1_839_104
    prefill = work.forward(512, logits=0, skip_future=True)
    assert work.macs(LLAMA, prefill) == 3_332_961_730_560
    assert work.macs(LLAMA, work.forward(1, past=511, logits=0)) == 6_576_668_672


@pytest.mark.parametrize("name", [*PRESETS])
def test_parameters_and_bytes_of_the_presets(name: str) -> None:
    with torch.device("meta"):
        model = GPT(PRESETS[name])
    stored = sum(parameter.numel() for parameter in model.parameters())
    assert work.parameters(PRESETS[name]) == stored
    assert work.weights_stored_bytes(PRESETS[name], 2) == 2 * stored


@settings(max_examples=40)
@given(configs, st.integers(1, 70))
def test_weights_read_are_all_but_the_unread_rows(config: GPTConfig, batch: int) -> None:
    with torch.device("meta"):
        model = GPT(config)
    everything = sum(parameter.numel() for parameter in model.parameters())
    unread = (config.n_ctx - 1) * config.n_embd  # one position's row is read
    if not config.tied_head:
        unread += (config.vocab_size - min(batch, config.vocab_size)) * config.n_embd
    assert work.weights_read_bytes(config, 4, batch) == 4 * (everything - unread)
    vectors = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 1)
    assert work.vector_parameters(config) == vectors


def test_narrow_matrices_leave_the_rest_wide() -> None:
    config = PRESETS["gpt2"]
    whole = work.weights_read_bytes(config, 1, other_dtype_bytes=4)
    others = work.vector_parameters(config) + config.n_embd
    assert whole == work.weights_read_bytes(config, 1) + 3 * others
    assert work.weights_read_bytes(config, 0.5625) == pytest.approx(
        0.5625 * work.weights_read_bytes(config, 1), abs=1
    )


def test_step_bytes_are_weights_and_cache() -> None:
    config = MQA
    per_token = 2 * config.n_layer * config.n_kv_head * config.head_dim
    for context, batch, kv in itertools.product((0, 1, 17), (1, 3), (1, 2, 4)):
        weights = work.weights_read_bytes(config, 4, batch)
        assert work.step_bytes(config, context, 4, kv, batch) == weights + context * batch * per_token * kv


@settings(max_examples=40)
@given(configs, st.integers(1, 9), st.integers(0, 9), st.booleans())
def test_macs_by_brute_force(config: GPTConfig, tokens: int, past: int, skip_future: bool) -> None:
    """Multiply the shapes of every product, one query and head at a time."""
    C, D = config.n_embd, config.head_dim
    linear = [(C, C + 2 * config.n_kv_head * D), (C, C), (C, config.n_inner), (config.n_inner, C)]
    expected = 0
    for query in range(tokens):
        keys = past + query + 1 if skip_future else past + tokens
        expected += config.n_layer * sum(a * b for a, b in linear)
        expected += config.n_layer * config.n_head * 2 * keys * D
        expected += C * config.vocab_size
    assert work.macs(config, work.forward(tokens, past, skip_future=skip_future)) == expected


@settings(max_examples=40)
@given(st.integers(1, 30), st.integers(0, 30))
def test_loops_are_the_sums_of_their_steps(prompt: int, new: int) -> None:
    naive, cached = work.naive_loop(prompt, new), work.cached_loop(prompt, new)
    assert naive.tokens == prompt * new + new * (new - 1) // 2
    assert cached.tokens == (prompt + new - 1 if new else 0)
    assert work.macs(ODD, naive) == sum(work.naive_step_macs(ODD, prompt + k) for k in range(new))
    steps = sum(work.step_macs(ODD, prompt + k) for k in range(new - 1))
    assert work.macs(ODD, cached) == (work.naive_step_macs(ODD, prompt) + steps if new else 0)


@given(configs, st.integers(1, 200))
def test_a_naive_step_is_n_cached_steps(config: GPTConfig, n: int) -> None:
    assert work.naive_step_macs(config, n) == n * work.step_macs(config, n - 1)
    assert work.step_macs(config, n, batch=7) == 7 * work.step_macs(config, n)


def test_attention_share_and_crossover_are_ratios_of_the_counts() -> None:
    config, step = PRESETS["gpt2"], work.forward(1, past=999)
    linear_and_head = work.macs(config, work.Work(1, 0, 1))
    share = 1 - linear_and_head / work.macs(config, step)
    assert work.attention_share(config, step) == pytest.approx(share)
    tokens = work.crossover_tokens(config, 4, 4)
    assert tokens * work.kv_bytes_per_token(config, 4) == pytest.approx(work.weights_stored_bytes(config, 4))


@pytest.mark.parametrize(("config", "batch"), [(PRESETS["tiny"], 1), (ODD, 2), (MQA, 3)])
@pytest.mark.parametrize("variant", EAGER, ids=lambda variant: variant.name)
def test_executed_matmuls_are_the_formula(variant: Variant, config: GPTConfig, batch: int) -> None:
    decoder = Decoder.of(variant, random_model(config), batch=batch, capacity=24, buckets=(9, 16, 24))
    tokens = torch.arange(11 * batch).view(batch, 11) % config.vocab_size
    last = variant.head.logits
    with MatmulCounter() as prefill:
        decoder.prefill(tokens)
    slots = decoder.bucket(10)
    assert prefill.macs == work.macs(config, work.forward(11, past=slots - 11, logits=last) * batch)
    for context in range(11, 18):  # crosses into the last bucket
        with MatmulCounter() as step:
            decoder.advance()
        expected = work.step_work(variant, context, decoder.bucket(context))
        assert step.macs == work.macs(config, expected * batch)
        assert step.calls == work.matmul_calls(config, variant.attention.matmuls)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_the_counter_sees_every_kind_of_product(mode: Callable[[], torch.autograd.grad_mode.no_grad]) -> None:
    a, b, v = torch.randn(3, 4), torch.randn(4, 5), torch.randn(4)
    small = torch.randint(-9, 9, (32, 32), dtype=torch.int8)
    products: list[tuple[Callable[[], torch.Tensor], int]] = [
        (lambda: a @ b, 60),
        (lambda: a @ v, 12),
        (lambda: v @ v, 4),
        (lambda: torch.einsum("ij,jk->ik", a, b), 60),
        (lambda: torch.nn.functional.linear(a, b.t()), 60),
        (lambda: torch.addmv(torch.zeros(3), a, v), 12),
        (lambda: torch._int_mm(small, small), 32**3),
        (lambda: a + 1, 0),
    ]
    for product, macs in products:
        with mode(), MatmulCounter() as counted:
            product()
        assert counted.macs == macs


def test_a_product_without_a_formula_is_refused() -> None:
    with torch.library._scoped_library("decode_floor_test", "FRAGMENT") as library:
        library.define("secret_product(Tensor a, Tensor b) -> Tensor")
        library.impl("secret_product", lambda a, b: a @ b, "CPU")
        with pytest.raises(NotImplementedError, match="secret_product"), MatmulCounter():
            torch.ops.decode_floor_test.secret_product(torch.ones(2, 2), torch.ones(2, 2))
    with pytest.raises(NotImplementedError, match="_addmm_activation"), MatmulCounter():
        torch._addmm_activation(torch.ones(2), torch.ones(2, 2), torch.ones(2, 2))


def test_counting_needs_no_torch() -> None:
    code = "import sys, profiling.cost.work, experiments.work; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "extra", [[], ["--quick"], ["--batch", "2", "--precision", "bfloat16"]], ids=" ".join
)
def test_work_agrees_with_a_real_run(
    extra: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "tiny", "--device", "cpu", "--context", "5,30", "--json"]
    experiment.main([*arguments, "--out", str(tmp_path), *extra])
    *_, verdict, last = capsys.readouterr().out.splitlines()
    printed = json.loads(last)
    assert all(row["agrees"] for row in printed["executed"])
    differing = [row["key"] for row in printed["claims"] if not row["holds"]]
    assert differing == ["intensity.needed"]  # the article's unit is off by 2
    assert {row["context"] for row in printed["executed"]} == ({5} if "--quick" in extra else {5, 30})
    assert printed["steps"]["30"]["naive_macs"] == 31 * printed["steps"]["30"]["cached_macs"]
    (folder,) = tmp_path.iterdir()
    assert json.loads((folder / "run.json").read_bytes())["status"] == "complete"
    assert verdict


@pytest.mark.parametrize(
    "arguments",
    [["--context", "0"], ["--context", "64"], ["--batch", "0"], ["--model", "nothing"]],
    ids=" ".join,
)
def test_work_refuses_bad_input_before_it_writes(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        run(
            experiment.main,
            ["--model", "tiny", "--device", "cpu", "--out", str(tmp_path / "runs"), *arguments],
        )
    printed = capsys.readouterr()
    assert exit_.value.code == 2 and printed.out == "" and printed.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
