"""Our decoder computes what transformers computes, for every model type that it reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from hf_checkpoints import CASES, SHAPE, checkpoint

from experiments.shared import cli
from experiments.shared.setup import limit_of, model_for
from profiling.gate import Gate, purity
from profiling.sizing.read_shape import shape_from_config
from variants.backends.backend import why_no_one_launch
from variants.config import GPTConfig
from variants.decoder import Decoder
from variants.described import gpt_config
from variants.errors import UserError
from variants.hf_config import HfConfig
from variants.known_configs import KNOWN_CONFIGS
from variants.ladder import ladder
from variants.model import random_model
from variants.weights import load_model

TOKENS = torch.randint(199, (2, 200), generator=torch.Generator().manual_seed(3))
EXACT = ["cat", "sdpa", "tape", "paged"]
ONE_LAUNCH = ["onelaunch", "onelaunch-bf16", "onelaunch-int8", "onelaunch-int4"]


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    theirs = checkpoint(tmp_path, name)
    model = load_model(tmp_path)
    with torch.inference_mode():
        expected = theirs(TOKENS).logits
    whole = Decoder.of(ladder()["naive"], model, batch=2).extend(TOKENS)
    cached = Decoder.of(ladder()["cat"], model, batch=2)
    cached.prefill(TOKENS[:, :50])
    steps = torch.stack([cached.step(TOKENS[:, i : i + 1]) for i in range(50, 200)], dim=1)
    assert (whole - expected).abs().max() < 1e-5
    assert (steps - expected[:, 50:]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("name", "threads"),
    [(name, threads) for name in ("llama3", "qwen2", "qwen3") for threads in (1, 2)]
    + [("mistral windows", 2), ("smollm3 windows", 1), ("gemma3", 2)],
)
def test_every_rung_of_the_cpu_passes_the_gate(name: str, threads: int, tmp_path: Path) -> None:
    checkpoint(tmp_path, name)
    model = load_model(tmp_path)
    gate = Gate(model, "float32", capacity=256, steps=24, forced=24)
    one_launch = model.config.alike and not why_no_one_launch("cpu")
    rungs = EXACT + (ONE_LAUNCH if one_launch else [])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        results = {rung: gate.check(Decoder.of(ladder()[rung], model)) for rung in rungs}
    finally:
        torch.set_num_threads(before)
    assert {rung: result.reason for rung, result in results.items() if result.status != "pass"} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-3.2-1b", "qwen3-0.6b"])
def test_one_layer_of_a_real_shape_passes_the_gate(name: str) -> None:
    raw = KNOWN_CONFIGS[name] | {"num_hidden_layers": 1, "vocab_size": 1000}
    model = random_model(gpt_config(HfConfig.of(raw, name), positions=512))
    gate = Gate(model, "float32", capacity=512, steps=16, forced=16)
    for rung in EXACT + ([] if why_no_one_launch("cpu") else ONE_LAUNCH):
        result = gate.check(Decoder.of(ladder()[rung], model))
        assert result.status == "pass", f"{rung}: {result.reason}"


@pytest.mark.parametrize("name", CASES)
def test_config_and_weights_agree_on_the_number_of_parameters(name: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, name)
    raw = json.loads((tmp_path / "config.json").read_text())
    model = load_model(tmp_path)
    assert shape_from_config(raw, name).parameters == sum(p.numel() for p in model.parameters())


def test_the_first_positions_only(tmp_path: Path) -> None:
    """Context is the run's choice: a table of 131,072 positions is not made for a run of 1,000."""
    checkpoint(tmp_path, "llama yarn")
    whole, part = load_model(tmp_path), load_model(tmp_path, positions=100)
    assert part.config.n_ctx == 100 and torch.equal(part.rope, whole.rope[:100])


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_narrow_checkpoints_in_pieces_load(stored: torch.dtype, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    checkpoint(tmp_path / "plain", "llama").to(stored).save_pretrained(
        tmp_path / "shards", max_shard_size="50KB"
    )
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    model = load_model(tmp_path / "shards")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "shards", dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = theirs(TOKENS).logits
    assert (Decoder.of(ladder()["naive"], model, batch=2).extend(TOKENS) - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "granite"}, "--variant hf"),
        ({"model_type": "mixtral"}, "--variant hf"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor is missing"),
        ({"rope_scaling": [1]}, "an object is needed"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"num_attention_heads": 6.0}, "num_attention_heads is 6.0"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"head_dim": 7}, "turn pairs of channels"),
        ({"model_type": "gemma3_text", "head_dim": 8}, "query_pre_attn_scalar = 256"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "a 0 or 1 per layer"),
    ],
    ids=str,
)
def test_what_would_be_computed_wrongly_is_refused(change: dict[str, object], said: str) -> None:
    raw = SHAPE | {"model_type": "llama"} | change
    with pytest.raises(UserError) as refused:
        gpt_config(HfConfig.of(raw, "some/config.json"))
    assert said in str(refused.value) and str(refused.value).startswith("some/config.json: ")


def test_a_piece_that_is_missing_wrong_or_not_finite_is_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    checkpoint(tmp_path, "llama")
    file = tmp_path / "model.safetensors"
    tensors, key = load_file(file), "model.layers.1.self_attn.k_proj.weight"
    for damaged, said in (
        ({n: t for n, t in tensors.items() if n != key}, "the first is blocks.1.qkv.weight k"),
        (tensors | {key: tensors[key][:8]}, rf"{key} has shape (8, 48), config.json asks for (16, 48)"),
        (tensors | {key: tensors[key] / 0}, f"{key} holds NaN or infinite values"),
        (tensors | {key: tensors[key].long()}, f"{key} holds torch.int64"),
        (
            tensors | {"model.layers.1.extra.weight": tensors[key]},
            "unknown tensor model.layers.1.extra.weight",
        ),
    ):
        save_file({n: t.clone() for n, t in damaged.items()}, file)
        with pytest.raises(UserError) as refused:
            load_model(tmp_path)
        assert said in str(refused.value)


def test_what_spans_the_sequence_breaks_causality_in_any_family(tmp_path: Path) -> None:
    checkpoint(tmp_path, "llama")
    model = load_model(tmp_path)
    causal, mixing = (purity.measure(model, kind, 16, seed=0) for kind in ("causal", "norm"))
    assert causal.replaced == 0 < mixing.replaced


def test_an_unset_head_width_follows_the_heads() -> None:
    from dataclasses import replace

    config = GPTConfig(n_layer=1, n_head=4, n_embd=64)
    assert replace(config, n_embd=128).head_dim == 32
    assert replace(config, head_width=24, n_embd=128).q_dim == 96


@pytest.mark.parametrize("shape", ["smollm2-135m", "qwen2.5-0.5b", "llama-3.2-1b", "a config.json"])
def test_a_shape_by_name_or_file_is_built_for_the_positions_of_the_run(shape: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SHAPE | {"model_type": "llama", "max_position_embeddings": 10**6}))
    name = str(file) if shape == "a config.json" else shape
    flags = ["--shape", name, "--context", "3000"]
    arguments = cli.common_parser("experiments.floor", "").parse_args(flags)
    with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("profiling.measure.models.random_model", lambda config, *_: config)
        config = model_for(arguments, torch.device("cpu"))
    assert config.n_ctx == 3064 and limit_of(arguments) > 3064  # type: ignore[attr-defined]


@pytest.mark.parametrize("flags", [["--shape", "nothing"], ["--model", "tiny", "--shape", "smollm2-135m"]])
def test_a_shape_that_is_none_or_one_too_many_is_refused(flags: list[str]) -> None:
    with pytest.raises(UserError, match="--shape"):
        model_for(cli.common_parser("experiments.floor", "").parse_args(flags), torch.device("cpu"))
