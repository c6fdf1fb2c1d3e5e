"""Several tokens per pass: drafts write what greedy decoding writes, and prices are what the record says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from records import entry, setting

from experiments import speculate
from profiling.results.folder import RunFolder
from profiling.results.record import PassSample, SpeculateRecord, WrittenSample
from profiling.results.speculation import Speculation, break_even, expected_tokens
from reports import build as report
from variants.decoder import Decoder
from variants.drafting import PromptLookup, write
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import GPT


@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    most=st.integers(1, 5),
    longest=st.integers(1, 4),
)
def test_a_lookup_proposes_what_followed_the_longest_known_ending(
    text: list[int], most: int, longest: int
) -> None:
    draft = PromptLookup(most, longest)(text)
    known = [
        (size, -at)
        for size in range(1, min(longest, len(text) - 1) + 1)
        for at in range(len(text) - size)
        if text[at : at + size] == text[len(text) - size :]
    ]
    if known:
        size, at = max(known)
        assert draft == text[size - at : size - at + most]
    else:
        assert draft == []


@pytest.mark.parametrize("rung", ["cat", "sdpa", "paged"])
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 6), min_size=1, max_size=12), seed=st.integers(0, 9))
def test_whatever_is_proposed_the_text_is_greedy_decodings(
    tiny: GPT, rung: str, cuts: list[int], seed: int
) -> None:
    """Drafts that are right as far as a drawn place, and wrong behind it."""
    decoder = Decoder.of(ladder()[rung], tiny, capacity=64)
    prompt = torch.randint(101, (1, 5), generator=torch.Generator().manual_seed(seed))
    decoder.prefill(prompt)
    right = [int(decoder.token)]
    while len(right) < 40:
        right += write(decoder, [])
    decoder.prefill(prompt)
    text = [int(decoder.token)]
    for number, cut in enumerate(cuts):
        draft = right[len(text) : len(text) + cut]
        wrong = [(right[len(text) + cut] + 1) % 101, 7][: number % 3] if len(text) + cut < 40 else []
        if len(text) + len(draft) + len(wrong) >= 40:
            break
        written = write(decoder, draft + wrong)
        assert len(written) == len(draft) + 1
        text += written
        assert decoder.length == prompt.size(1) + len(text) - 1 and int(decoder.token) == text[-1]
    assert text == right[: len(text)]


@given(acceptance=st.floats(0, 0.999), tokens=st.integers(2, 16))
def test_a_pass_breaks_even_where_it_writes_what_it_costs(acceptance: float, tokens: int) -> None:
    price = expected_tokens(acceptance, tokens)
    assert price == pytest.approx((1 - acceptance**tokens) / (1 - acceptance))  # Leviathan et al., equation 1
    assert break_even(price, tokens) == pytest.approx(acceptance, abs=1e-5)


def test_a_pass_may_pay_always_or_never() -> None:
    assert break_even(0.9, 4) == 0 and break_even(1, 4) == 0
    assert break_even(4, 4) == pytest.approx(1) and break_even(4.1, 4) is None


def record() -> SpeculateRecord:
    passes = [
        PassSample(round=n, variant="sdpa", context=5, tokens=tokens, ms=[drift * ms])
        for n, drift in enumerate((1.0, 2.0, 1.0))
        for tokens, ms in ((1, 10.0), (4, 15.0))
    ]
    texts = [
        WrittenSample(
            round=n,
            variant="sdpa",
            drafted=drafted,
            passes_ms=ms,
            proposed=proposed,
            tokens=[9, 8, 8, 8, end],
        )
        for n in range(2)
        for drafted, ms, proposed, end in ((False, [10.0] * 4, [0] * 4, 8), (True, [15.0, 10.0], [3, 1], 7))
    ]
    return SpeculateRecord(
        **setting(), variants={"sdpa": entry(status="proven")}, passes=passes, written=texts
    )


def test_prices_are_told_within_rounds() -> None:
    found = Speculation(record())
    assert (found.variants, found.sizes) == (["sdpa"], [1, 4])
    price = found.price("sdpa", 4)
    assert price is not None and tuple(price) == pytest.approx((1.5, 1.5, 1.5))
    needed = found.acceptance_needed("sdpa", 4)
    assert needed is not None and 1 + needed + needed**2 + needed**3 == pytest.approx(1.5)


def test_what_drafts_brought_is_counted() -> None:
    text = Speculation(record()).written("sdpa")
    assert text is not None
    assert (text.new, text.passes, text.proposed, text.kept, text.same) == (4, 2, 4, 2, 3)
    assert (text.plain_per_s, text.drafted_per_s) == pytest.approx((100, 160))
    assert text.speedup is not None and text.speedup.mid == pytest.approx(1.6)


def test_the_experiment_proves_prices_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "tiny", "--quick", "--rounds", "2", "--variant", "cat,sdpa", "--sizes", "2,5"]
    text = ["--prompt-ids", "3,4,5,3,4", "--new", "12", "--draft", "3"]
    assert speculate.main([*flags, *text, "--json", "--quiet", "--out", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(said["prices"]) == {"cat", "sdpa"} and set(said["prices"]["sdpa"]) == {"2", "5"}
    (path,) = tmp_path.iterdir()
    run = RunFolder.load(path, SpeculateRecord)
    assert {one.status for one in run.record.variants.values()} == {"proven"}
    for name in ("cat", "sdpa"):
        written = Speculation(run.record).written(name)
        assert written is not None and written.same == written.new == 11
        assert written.passes + written.kept == 11
    before = (path / "report.md").read_text(encoding="utf-8")
    assert "token for token" in before and "figures/speculate.png" in before
    (path / "report.md").unlink()
    report.main([str(path)])
    assert (path / "report.md").read_text(encoding="utf-8") == before


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--batch", "2"], "batch"),
        (["--context", "5,9"], "one context"),
        (["--sizes", "0,4"], "--sizes"),
        (["--draft", "0"], "--draft"),
        (["--new", "1"], "--new"),
        (["--new", "600"], "room for"),
        (["--variant", "nobody"], "unknown variant"),
    ],
)
def test_what_means_nothing_is_refused(flags: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        speculate.main(["--model", "tiny", *flags, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
