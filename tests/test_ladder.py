"""The ladder's rungs differ in one slot, and impossible or unknown variants are refused."""

from __future__ import annotations

import pytest

from variants.errors import UserError
from variants.executors.executor import EAGER, GRAPH, TAPE, ExecutorOption
from variants.ladder import BASELINE, OURS, THEIRS, Roles, ladder, roles, select, transformers_ladder
from variants.option import Option, declared
from variants.slots.cache import CONCAT, NONE, CacheOption
from variants.slots.mask import SHARED
from variants.spec import SLOTS, Variant

PRECISIONS = ["float64", "float32", "bfloat16"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_rung_is_one_slot_from_its_parent(precision: str) -> None:
    rungs = ladder(precision)
    roots = [v for v in rungs.values() if v.parent is None]
    assert [v.name for v in roots] == ["naive"]
    for variant in rungs.values():
        if variant.parent is not None:
            changed = [slot for slot in SLOTS if variant.slot(slot) is not variant.parent.slot(slot)]
            assert len(changed) == 1
            assert variant.difference == (
                changed[0],
                variant.parent.slot(changed[0]).name,
                variant.slot(changed[0]).name,
            )
            assert rungs[variant.parent.name] is variant.parent


def test_then_refuses_no_change_and_two_changes() -> None:
    root = Variant("root", "nothing")
    changes: list[dict[str, Option]] = [{}, {"cache": NONE}, {"cache": CONCAT, "mask": SHARED}]
    for change in changes:
        with pytest.raises(ValueError, match="exactly one slot"):
            root.then("next", "something", **change)


@pytest.mark.parametrize(
    "executor", [e for e in declared(ExecutorOption).values() if e is not EAGER], ids=lambda e: e.name
)
@pytest.mark.parametrize("cache", [NONE, CONCAT], ids=lambda cache: cache.name)
def test_a_replay_over_a_growing_cache_is_refused(cache: CacheOption, executor: ExecutorOption) -> None:
    with pytest.raises(ValueError, match="fixed shape"):
        Variant("impossible", "nothing", cache=cache, executor=executor)


def test_an_option_of_another_slot_is_refused() -> None:
    with pytest.raises(ValueError, match="cache takes a CacheOption"):
        Variant("odd", "nothing", cache=SHARED)  # type: ignore[arg-type]


def test_selection_adds_what_it_is_compared_with() -> None:
    chosen, added = select(["tape"], ladder())
    names = [v.name for v in chosen]
    assert names[-1] == "tape" and set(added) == set(names) - {"tape"}
    assert BASELINE in added and "sdpa" in added and "naive" not in names


@pytest.mark.parametrize(
    ("trunk", "rungs"), [(OURS, ladder()), (THEIRS, transformers_ladder("float32"))], ids=["ours", "theirs"]
)
def test_the_roles_of_a_trunk_are_played_by_its_rungs(trunk: Roles, rungs: dict[str, Variant]) -> None:
    assert all(roles(variant) is trunk for variant in rungs.values())
    assert rungs[trunk.baseline].cache is CONCAT
    for name in trunk.replays:  # the launches go, everything else stays
        parent = rungs[name].parent
        assert rungs[name].executor in (GRAPH, TAPE) and parent is not None and parent.executor is EAGER


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["hf-tape"], ["hf", "hf-static", "hf-tape"]),
        (["hf", "cat"], ["cat", "hf"]),
        (["hf", "tape"], ["cat", "boolmask", "lasthead", "static", "sdpa", "tape", "hf"]),
        (["all", "hf"], [*ladder(), "hf"]),
    ],
    ids=" ".join,
)
def test_each_trunk_brings_its_own_baseline(asked: list[str], names: list[str]) -> None:
    chosen, added = select(asked, ladder() | transformers_ladder("float32"))
    assert [variant.name for variant in chosen] == names
    assert set(added) == set(names) - {*asked} - ({*ladder()} if "all" in asked else set())


def test_an_unknown_variant_is_named_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown variant turbo; known: naive, cat"):
        select(["turbo"], ladder())


@pytest.mark.parametrize(("name", "counterpart"), [("cudagraph", "tape"), ("compile-cudagraph", "compile")])
def test_cuda_rungs_name_their_counterpart_on_cpu(name: str, counterpart: str) -> None:
    reason = ladder()[name].why_not("cpu")
    assert reason is not None and "CUDA" in reason and counterpart in reason
    assert ladder()[name].why_not("cuda") is None
