"""The mask is the licence for the cache: exact with it, broken without it, and the experiment says so."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from experiments import purity
from experiments.shared.demo import attentive
from experiments.shared.published import PUBLISHED
from profiling.gate.purity import SequenceNorm, agreement, greedy, measure, norms_of_queries, run
from profiling.results.folder import RunFolder
from profiling.results.record import PurityRecord
from tests.conftest import CONFIGS
from variants.config import PRESETS
from variants.decoder import Decoder
from variants.errors import UserError
from variants.ladder import ladder
from variants.model import random_model


@pytest.fixture(scope="module", params=list(CONFIGS))
def toy(request: pytest.FixtureRequest):
    return attentive(random_model(CONFIGS[request.param], 1, torch.float64))


@pytest.mark.parametrize("context", [2, 4, 9, 31])
def test_with_the_mask_no_earlier_state_changes(toy, context: int) -> None:
    purity = measure(toy, "causal", context, seed=0)
    assert purity.replaced == 0.0  # the article's exact zero
    assert purity.appended < 1e-14 and purity.drift < 1e-13 and purity.flips == 0


@pytest.mark.parametrize("kind", ["unmasked", "norm"])
def test_without_the_licence_earlier_states_change(toy, kind: str) -> None:
    purity = measure(toy, kind, 4, seed=0)
    assert purity.appended > 1e-4 and purity.replaced > 1e-4
    if kind == "norm" or toy.config.n_layer > 1:
        assert purity.drift > 1e-4


def test_one_layer_without_a_mask_still_has_pure_keys_and_values() -> None:
    """Keys of layer 0 depend on their own token only: the new token's logits agree even without a mask."""
    model = attentive(random_model(CONFIGS["one-kv-head"], 1, torch.float64))
    assert measure(model, "unmasked", 8, seed=0).drift < 1e-13


def test_the_pass_is_the_model(toy) -> None:
    tokens = torch.arange(7)[None] * 5
    whole = run(toy, tokens).logits
    decoder = Decoder.of(ladder("float64")["cat"], toy)
    assert (decoder.extend(tokens)[0] - whole).abs().max() < 1e-13
    first = run(toy, tokens[:, :4])
    assert (run(toy, tokens[:, 4:], first.kv).logits - whole[4:]).abs().max() < 1e-13


def test_the_norm_over_the_sequence_is_one() -> None:
    x = torch.randn(1, 50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norm = torch.nn.LayerNorm(6, dtype=torch.float64)
    y = SequenceNorm(norm)(3 * x + 5)
    assert y.mean(dim=1).abs().max() < 1e-12 and (y.std(dim=1, correction=0) - 1).abs().max() < 1e-3


def test_cached_and_naive_logits_agree_in_float64_as_the_article_says() -> None:
    model = attentive(random_model(CONFIGS["tiny"], 0, torch.float64))
    rungs = agreement(model, "float64", 4, 12, seed=0)
    assert {"cat", "static", "sdpa", "tape", "paged"} <= set(rungs) and "kv-int8" not in rungs
    published = float(PUBLISHED["purity.float64"].value)
    assert all(rung.max < 10 * published and rung.same_tokens for rung in rungs.values())


def test_the_experiment_holds_on_the_toy_and_writes_its_folder(tmp_path, capsys) -> None:
    assert purity.main(["--quick", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "Claim holds here" in " ".join(out.split())
    before_the_answer = out.partition("Report: ")[0]  # a path and the answer are one line each
    assert max(map(len, before_the_answer.splitlines())) <= 100
    (folder,) = tmp_path.iterdir()
    report = (folder / "report.md").read_text()
    assert "0.000e+00" in report and (folder / "run.json").exists()


def test_the_articles_numbers_stand_beside_those_of_one_text_and_head(tmp_path) -> None:
    """Not beside a maximum over texts and heads, and on the article's toy."""
    assert purity.main(["--context", "4", "--quiet", "--out", str(tmp_path)]) == 0
    (folder,) = tmp_path.iterdir()
    record = RunFolder.load(folder, PurityRecord).record
    assert record.model.name == "toy" and record.model.shape == PRESETS["toy"]
    (row,) = record.purity["unmasked"]
    here = {claim.key: claim.here for claim in record.claims}
    before, after = (torch.tensor(rows, dtype=torch.float64) for rows in (row.before, row.after))
    assert here["purity.unmasked"] == f"{float((after[:, :4] - before).abs().max()):.3e}"
    assert len(row.shown) == len(row.drifts) == row.texts == 32
    assert row.shown[0] < row.appended and max(row.drifts) == row.drift
    assert here["purity.drift"] == f"{row.drifts[0]:.4f}"
    assert here["purity.list"].startswith("[3, 17, 42, 8, ") and len(record.tokens) == 16
    assert "purity.exact" in here


def test_every_step_has_a_query_of_its_own(toy) -> None:
    prompt = torch.tensor([[3, 7, 5]])
    tokens, norms = norms_of_queries(toy, prompt, 4)
    decoder = Decoder.of(ladder("float64")["naive"], toy)
    assert torch.equal(tokens[None, 3:], greedy(decoder, prompt, 4)[0]) and len(set(norms)) == 4
    assert purity._queries([5.4, 5.6, 5.4]).holds is False


def test_keys_and_values_that_change_refute_the_statement() -> None:
    rows = [measure(attentive(random_model(PRESETS["toy"], 1, torch.float64)), "causal", 4, seed=0)]
    (exact,) = purity._recomputed(rows, "float64")
    assert exact.holds and exact.key == "purity.exact"
    (changed,) = purity._recomputed([replace(rows[0], kv=1e-6)], "float64")
    assert changed.holds is False


@pytest.mark.parametrize(
    "flags", [["--context", "1"], ["--context", "128"], ["--batch", "2"], ["--model", "nowhere"]]
)
def test_bad_input_is_refused(flags: list[str], tmp_path) -> None:
    with pytest.raises(UserError):
        purity.main([*flags, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
