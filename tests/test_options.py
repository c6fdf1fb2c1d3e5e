"""An option carries all that is said of it: one that lacks a fact cannot be made, a whole one just works."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from experiments import floor
from profiling.gate import Gate
from profiling.measure.expect import floor_bytes
from tests.conftest import CONFIGS
from variants import ladder as rungs_of
from variants.config import DTYPE_BYTES
from variants.decoder import Decoder
from variants.ladder import ladder, select
from variants.model import GPT, random_model
from variants.option import Option, declared
from variants.slots import attention, kv
from variants.slots.cache import STATIC
from variants.slots.kv import KV_BFLOAT16, KvOption
from variants.slots.mask import COMPUTED
from variants.slots.precision import PrecisionOption
from variants.spec import SLOTS, Variant, option_named

ROOT = Path(__file__).parent.parent
RECIPE = re.search(
    r"```python\n(from variants.slots.kv.*?)```", (ROOT / "docs/adding.md").read_text("utf-8"), re.S
)
FACTS = [(kind, field.name) for kind in SLOTS.values() for field in fields(kind)]


@pytest.mark.parametrize(("kind", "fact"), FACTS, ids=lambda value: getattr(value, "__name__", value))
def test_an_option_that_lacks_a_fact_cannot_be_made(kind: type[Option], fact: str) -> None:
    whole = next(iter(declared(kind).values()))
    facts = {field.name: getattr(whole, field.name) for field in fields(kind)}
    assert isinstance(kind(**facts), kind)
    del facts[fact]
    with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{fact}'"):
        kind(**facts)


def test_every_option_is_found_by_the_name_that_records_have() -> None:
    for slot, kind in SLOTS.items():
        assert declared(kind)
        for name, option in declared(kind).items():
            assert option_named(slot, name) is option and isinstance(option, kind)
    assert option_named("cache", "ring") is None and option_named("paging", "huge") is None


def test_two_options_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "TWICE", replace(attention.FUSED), raising=False)
    with pytest.raises(ValueError, match="one name"):
        declared(attention.AttentionOption)


def test_slots_executors_and_backends_say_what_they_have_without_torch() -> None:
    modules = {kind.__module__ for kind in SLOTS.values()} | {"variants.ladder", "profiling.cost.work"}
    code = f"import sys; sys.modules['torch'] = None; import {', '.join(sorted(modules))}"
    code += "; from variants.ladder import ladder; [v.why_not('cpu') for v in ladder().values()]"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


@pytest.mark.parametrize("precision", list(declared(PrecisionOption).values()), ids=lambda p: p.name)
def test_a_plain_precision_has_the_width_and_rounding_of_its_type(precision: PrecisionOption) -> None:
    if precision.plain:
        dtype = getattr(torch, precision.dtype)
        assert precision.bytes_per_weight == dtype.itemsize == DTYPE_BYTES[precision.name]
        assert precision.rounding == pytest.approx(torch.finfo(dtype).eps, rel=0.5)
    assert precision.build(random_model(CONFIGS["tiny"])).dtype == getattr(torch, precision.dtype)


def test_the_recipe_of_the_docs_adds_a_whole_option(monkeypatch: pytest.MonkeyPatch, tiny: GPT) -> None:
    """A cache of float16 values, added as the page says: known, proven, of its own width."""
    assert RECIPE
    scope: dict[str, object] = {}
    exec(RECIPE[1], scope)
    option = scope["KV_FLOAT16"]
    assert isinstance(option, KvOption)
    monkeypatch.setattr(kv, "KV_FLOAT16", option, raising=False)
    assert option_named("kv", "float16") is option
    variant = ladder()["sdpa"].then("kv-fp16", "bytes of the cache", kv=option)
    assert variant.cache is STATIC and variant.difference == ("kv", "as precision", "float16")
    result = Gate(tiny, "float32", steps=8, forced=14).check(Decoder.of(variant, tiny))
    assert (result.status, result.reason) == ("pass", "")
    sizes = [floor_bytes(Decoder.of(rung, tiny), 10) for rung in (variant, ladder()["kv-bf16"])]
    assert sizes[0] == sizes[1] and KV_BFLOAT16.element_bytes(tiny.config, 4) == 2
    with pytest.raises(ValueError, match="written for cache 'static'"):
        ladder()["paged"].then("odd", "nothing", kv=option)


def test_a_rung_is_one_line_of_the_ladder(monkeypatch: pytest.MonkeyPatch, tiny: GPT) -> None:
    """Listed, chosen with what it is compared with, and proven; without another file that knows of it."""
    plain = rungs_of._on_modules

    def with_one_more(sdpa: Variant) -> list[Variant]:
        return [*plain(sdpa), sdpa.then("my-rung", "the stored mask table", mask=COMPUTED)]

    monkeypatch.setattr(rungs_of, "_on_modules", with_one_more)
    chosen, added = select(["my-rung"], ladder())
    (mine,) = (variant for variant in chosen if variant.name not in added)
    assert mine.difference == ("mask", "shared bool", "computed") and "sdpa" in added
    assert ("my-rung", "sdpa") in [tuple(row[:2]) for row in floor._list(ladder(), "cpu").rows]
    assert Gate(tiny, "float32", steps=8, forced=14).check(Decoder.of(mine, tiny)).status == "pass"
