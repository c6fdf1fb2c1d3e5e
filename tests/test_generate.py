"""experiments.generate: text with a tokenizer, ids without, sampling, streaming, and where it stops."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from experiments import generate
from experiments.shared import cli, text
from profiling.results.folder import RunFolder
from profiling.results.record import GenerateRecord
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import random_model
from variants.sampling import Sampler

tokenizers = pytest.importorskip("tokenizers")
TINY = PRESETS["tiny"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of the tiny model in GPT-2's layout, with a byte-level tokenizer of its 101 tokens."""
    folder = tmp_path_factory.mktemp("weights")
    model = random_model(TINY, seed=3)
    names = {
        "blocks": "h",
        "qkv": "attn.c_attn",
        "out": "attn.c_proj",
        "up": "mlp.c_fc",
        "down": "mlp.c_proj",
    }
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        parts = [names.get(part, part) for part in name.split(".")]
        linear = parts[-1] == "weight" and any(part.startswith(("attn", "mlp")) for part in parts)
        tensors[".".join(parts)] = (tensor.t() if linear else tensor).contiguous()
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": "gpt2",
        "n_layer": 2,
        "n_head": 3,
        "n_embd": 48,
        "n_positions": 64,
        "vocab_size": 101,
    }
    (folder / "config.json").write_text(json.dumps(config))
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {letter: i for i, letter in enumerate(sorted(letters)[:101])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def run(flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, dict]:
    assert generate.main([*flags, "--out", str(tmp_path), "--json"]) == 0
    out = capsys.readouterr().out
    return out, json.loads(out.splitlines()[-1])


def test_text_goes_in_and_out_with_a_tokenizer(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, result = run(["--model", str(folder), "--prompt", "HELLO", "--new", "12"], tmp_path, capsys)
    assert out.startswith("HELLO") and len(result["ids"]) == 12
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    whole = tokenizer.decode(result["prompt_ids"] + result["ids"], skip_special_tokens=False)
    assert out.startswith(whole + "\n")
    assert "TTFT" in out and "TPOT" in out and "sync" in out


def test_it_stops_where_the_text_ends(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--prompt", "HELLO", "--new", "12", "--temperature", "5", "--seed", "1"]
    _, whole = run(["--model", str(folder), *flags], tmp_path, capsys)
    last = next(n for n, token in enumerate(whole["ids"]) if n and token not in whole["ids"][:n])
    ending = shutil.copytree(folder, tmp_path / "ending")
    tokenizer = json.loads((ending / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    letter = next(letter for letter, token in vocabulary.items() if token == whole["ids"][last])
    vocabulary["<|endoftext|>"] = vocabulary.pop(letter)
    (ending / "tokenizer.json").write_text(json.dumps(tokenizer))
    out, stopped = run(["--model", str(ending), *flags], tmp_path, capsys)
    assert stopped["ids"] == whole["ids"][: last + 1]
    assert f"{last + 1} of 12 tokens: the text ended." in out


@pytest.mark.parametrize("several", [False, True])
def test_the_generation_config_says_where_a_text_ends(
    several: bool, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompt.txt").write_text("HELLO", encoding="utf-8")
    flags = ["--prompt", f"@{tmp_path / 'prompt.txt'}", "--new", "12", "--temperature", "5", "--seed", "1"]
    _, whole = run(["--model", str(folder), *flags], tmp_path, capsys)
    last = next(n for n, token in enumerate(whole["ids"]) if n and token not in whole["ids"][:n])
    ending, token = shutil.copytree(folder, tmp_path / "ending"), whole["ids"][last]
    ids = [10**6, token] if several else token
    (ending / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    out, stopped = run(["--model", str(ending), *flags], tmp_path, capsys)
    assert stopped["prompt_ids"] == whole["prompt_ids"] and stopped["ids"] == whole["ids"][: last + 1]
    assert f"{last + 1} of 12 tokens: the text ended." in out


@pytest.mark.parametrize("end", ["2", [1, None], True, -1, 0.5, {}])
def test_an_end_that_is_no_token_is_refused(end: object, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    with pytest.raises(UserError, match="eos_token_id"):
        text.ends_of_text(tmp_path, None)


def test_a_prompt_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("none", "binary"):
        with pytest.raises(UserError, match=r"--prompt @.*not a readable text file"):
            text.prompt_text(f"@{tmp_path / name}")


def test_the_mark_that_windows_sets_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Grüße", encoding="utf-8-sig")
    assert text.prompt_text(f"@{tmp_path / 'prompt.txt'}") == "Grüße"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="a file without end is needed")
def test_a_prompt_without_end_is_refused() -> None:
    with pytest.raises(UserError, match="more than 16,777,216 characters"):
        text.prompt_text("@/dev/zero")


def test_ids_without_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "tiny", "--prompt-ids", "5,7,9", "--new", "6"]
    out, result = run(flags, tmp_path, capsys)
    assert out.splitlines()[0].split() == [str(i) for i in [5, 7, 9, *result["ids"]]]
    record = RunFolder.load(Path(result["run"]), GenerateRecord).record
    assert record.status == "complete" and len(record.generate.tokens_ms) == 6


@pytest.mark.parametrize("variant", ["naive", "cat", "sdpa", "tape"])
def test_greedy_text_is_the_models(variant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "tiny", "--prompt-ids", "5,7,9", "--new", "20", "--variant", variant, "--seed", "4"]
    _, result = run(flags, tmp_path, capsys)
    decoder = Decoder.of(ladder()["cat"], random_model(TINY, seed=4))
    decoder.prefill(torch.tensor([[5, 7, 9]]))
    expected = [int(decoder.token)]
    for _ in range(19):
        decoder.advance()
        expected.append(int(decoder.token))
    assert result["ids"] == expected


def test_a_drawn_token_is_the_one_that_is_fed_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", "tiny", "--prompt-ids", "5,7,9", "--new", "8", "--temperature", "30", "--seed", "4"]
    _, first = run(flags, tmp_path, capsys)
    _, again = run(flags, tmp_path, capsys)
    assert first["ids"] == again["ids"] and len(set(first["ids"])) > 3
    decoder, sampler = Decoder.of(ladder()["cat"], random_model(TINY, seed=4)), Sampler(temperature=30)
    generator = torch.Generator().manual_seed(4)
    logits, expected = decoder.prefill(torch.tensor([[5, 7, 9]])), []
    for _ in range(8):
        token = sampler(logits, generator)
        expected.append(int(token))
        logits = decoder.step(token)
    assert first["ids"] == expected


def test_several_temperatures_write_a_text_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "tiny", "--prompt-ids", "5,7", "--new", "12", "--no-proof", "--json"]
    assert generate.main([*flags, "--temperature", "0,30", "--out", str(tmp_path)]) == 0
    *printed, said = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("-- ")] == ["-- temperature 0", "-- temperature 30"]
    result = json.loads(said)
    (other,) = result["further"]
    assert len(set(result["ids"])) < len(set(other["ids"])) and other["sampling"][0] == 30
    report = (Path(result["run"]) / "report.md").read_text(encoding="utf-8")
    assert "At temperature 30" in report and "distinct tokens of 12" in report


def test_it_stops_at_the_models_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, result = run(["--model", "tiny", "--prompt-ids", "1,2,3", "--new", "500"], tmp_path, capsys)
    assert len(result["ids"]) == 64 - 3 + 1  # the last one is written and need not be fed back
    assert "62 of 500 tokens: the model's limit of 64 is reached." in out


def test_a_prompt_that_fills_the_model_gives_one_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ",".join("7" for _ in range(64))
    out, result = run(["--model", "tiny", "--prompt-ids", ids, "--new", "5"], tmp_path, capsys)
    assert len(result["ids"]) == 1 and result["tpot_ms"] is None and "TPOT unknown" in out


def test_without_a_proof_there_are_no_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, result = run(["--model", "tiny", "--new", "4", "--no-proof"], tmp_path, capsys)
    assert result["ttft_ms"] is None and result["tokens_ms"] is None and not re.search(r"TTFT \d", out)


def test_a_wrong_variant_writes_nothing(tmp_path: Path, mask_turned_over: None, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.run(generate.main, ["--model", "tiny", "--new", "4", "--out", str(tmp_path)])
    captured = capsys.readouterr()
    assert stopped.value.code == 2 and captured.out == "" and "does not compute" in captured.err


def test_characters_of_several_tokens_wait_for_their_last(folder: Path) -> None:
    full = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {letter: i for i, letter in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}, []
        )
    )
    full.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    full.decoder = tokenizers.decoders.ByteLevel()
    pieces, written_out = text.Pieces(full), "a£€𝄞b"
    written = [pieces.of([i]) for i in full.encode(written_out).ids]
    assert "".join(written) + pieces.rest() == written_out
    assert text.UNFINISHED not in "".join(written)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompt", "hi"], "needs a tokenizer.json"),
        (["--prompt-ids", "101"], "outside this model's vocabulary, 0 to 100"),
        (["--prompt-ids", ",".join(["1"] * 65)], "takes 1 to 64"),
        (["--new", "0"], "--new must be at least 1"),
        (["--top-p", "0"], "top-p"),
        (["--top-k", "-1"], "top-k"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "0,hot"], "temperature"),
        (["--variant", "nonsense"], "unknown variant"),
        (["--batch", "2"], "--batch"),
        (["--rounds", "2"], "--rounds has no meaning here"),
        (["--context", "2"], "--context has no meaning here"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.run(generate.main, ["--model", "tiny", *flags, "--out", str(tmp_path / "runs")])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.startswith("error: ") and message in error
    assert len(error.splitlines()) == 1 and not (tmp_path / "runs").exists()


def test_a_broken_tokenizer_is_one_line(folder: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(SystemExit) as stopped:
        cli.run(generate.main, ["--model", str(tmp_path), "--out", str(tmp_path / "runs")])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and "tokenizer.json is not a tokenizer" in error


def test_without_the_package_ids_are_printed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert generate.main(["--model", str(folder), "--new", "3", "--out", str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert "pip install tokenizers" in captured.err
    assert all(word.isdigit() for word in captured.out.splitlines()[0].split())
