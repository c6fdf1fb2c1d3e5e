"""The queue hands out no slot twice and serves everybody; shared prompts are found, stamped ones are not."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from records import entry, setting

from experiments import paging
from profiling.measure.paging import (
    Blocks,
    Request,
    Slabs,
    eviction,
    lengths,
    prefixes,
    queue,
    routing,
    serve,
)
from profiling.results.record import PagingRecord, PrefixPrompt, Sample, SharedPrefix
from variants.errors import UserError

LIMIT = 64
STORES = {
    "limit": lambda slots: Slabs(slots, LIMIT),
    "final": lambda slots: Slabs(slots, None),
    "blocks": Blocks,
}


@settings(max_examples=30)
@given(
    kind=st.sampled_from(list(STORES)),
    mix=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 34)), min_size=1, max_size=20),
)
def test_everybody_is_served_and_nothing_is_kept(kind: str, mix: list[tuple[int, int]]) -> None:
    store = STORES[kind](2 * LIMIT)
    served = serve([(prompt, prompt + reply) for prompt, reply in mix], store)
    assert served.ticks >= max(reply for _, reply in mix)
    assert store.reserved == 0
    assert served.used <= served.reserved <= 2 * LIMIT


@given(st.lists(st.integers(1, 20), max_size=30))
def test_slabs_never_overlap(sizes: list[int]) -> None:
    store = Slabs(100, None)
    live: list[Request] = []
    for number, size in enumerate(sizes):
        request = Request(1, size, 1)
        if store.admit(request):
            live.append(request)
        elif live:
            store.free(live.pop(number % len(live)))
        places = sorted(store.taken.values())
        assert all(end <= start for (_, end), (start, _) in pairwise(places))
        assert all(0 <= start < end <= 100 for start, end in places)


def test_free_slots_in_two_pieces_do_not_make_one_slab() -> None:
    store = Slabs(30, None)
    first, middle, last, next_ = (Request(1, 10, 1) for _ in range(4))
    for request in (first, middle, last):
        assert store.admit(request)
    store.free(first)
    store.free(last)
    next_.final = 20
    assert store.has_room_in_pieces(next_) and not store.admit(next_)


def test_the_mix_is_the_same_for_a_seed_and_fits_the_model() -> None:
    mix = lengths(300, LIMIT, seed=1)
    assert mix == lengths(300, LIMIT, seed=1) != lengths(300, LIMIT, seed=2)
    assert all(1 <= prompt < final <= LIMIT for prompt, final in mix)


def test_a_timestamp_at_the_front_shares_nothing(tiny) -> None:
    layouts = prefixes(tiny, "float32", paging.LAYOUTS, prompts=4, seed=0)
    plain, end, front = (paging.hit_rate(layouts[layout]) for layout in paging.LAYOUTS)
    shared = 32  # tokens of the system prompt, from the second prompt on; 8 are the question
    assert plain == 3 * shared / (4 * 40)
    assert 0.5 < end <= plain and front == 0
    assert all(layout.bit_equal for layout in layouts.values())
    assert layouts[paging.LAYOUTS[2]].blocks > 2 * layouts[paging.LAYOUTS[0]].blocks


def test_the_experiment_holds_on_the_toy(tmp_path, capsys) -> None:
    flags = ["--model", "tiny", "--quick", "--rounds", "2", "--context", "8,40", "--out", str(tmp_path)]
    assert paging.main(flags) == 0
    assert "Claim holds here" in " ".join(capsys.readouterr().out.split())
    (folder,) = tmp_path.iterdir()
    assert "paging" in (folder / "report.md").read_text()


@pytest.mark.parametrize(("new", "holds"), [(8, True), (30, False)])
def test_unused_slabs_are_judged_from_given_requests_only(new: int, holds: bool) -> None:
    """What follows from a mix that was made up here says nothing of anybody's slabs."""
    mix = [(20, 20 + new)] * 30
    check = paging._unused(queue(mix, LIMIT))
    assert check.holds is holds and f"requests of {20 + new} tokens" in check.why


def test_the_headline_has_every_context_with_its_interval() -> None:
    """1,000 tokens, too, and also in quick mode."""
    assert 1000 in paging.QUICK.contexts
    samples = [
        Sample(
            round=number,
            variant=name,
            width=1,
            context=context,
            batch=1,
            steps_ms=[ms + number / 100],
            pipelined_ms=None,
        )
        for context in (10, 1000)
        for number in range(3)
        for name, ms in (("sdpa", 40.0), ("paged", 42.0))
    ]
    entries = {name: entry() for name in ("sdpa", "paged")}
    kept = PrefixPrompt(tokens=40, shared=32, ms=1.0, bit_equal=True)
    shared = {layout: SharedPrefix(prompts=[kept] * 2, blocks=3) for layout in paging.LAYOUTS}
    record = PagingRecord(
        **setting(contexts=(10, 1000)),
        variants=entries,
        samples=samples,
        queue=queue(lengths(20, LIMIT, 0), LIMIT),
        prefixes=shared,
        routing={"the node that has the cache": kept, "another node": replace(kept, shared=0)},
        eviction={"used again before": kept, "used once": replace(kept, shared=0)},
    )
    outcome = paging.outcome(record, made_up=True)
    assert re.search(r"1\.05 \[.*\] times at 10, 1\.05 \[.*\] times at 1,000", outcome.what)
    assert "paging.unused" not in {check.key for check in outcome.checks}
    assert any("made up here" in note for note in outcome.notes)


def test_another_node_has_to_redo_the_prefill(tiny) -> None:
    same, other = routing(tiny, "float32", seed=0).values()
    assert (same.tokens, same.shared, other.shared) == (40, 32, 0)
    assert same.bit_equal and other.bit_equal


def test_the_prompt_that_was_used_least_recently_makes_room(tiny) -> None:
    again, once = eviction(tiny, "float32", seed=0).values()
    assert (again.shared, once.shared) == (32, 0)
    assert again.bit_equal and once.bit_equal


@pytest.mark.parametrize(
    ("text", "reason"),
    [("5\n", "prompt and new tokens"), ("60,9\n", "at most 64"), ("0,4\n", "at least 1 each")],
)
def test_requests_that_cannot_be_served_are_refused(text: str, reason: str, tmp_path) -> None:
    file = tmp_path / "requests.csv"
    file.write_text(text)
    with pytest.raises(UserError, match=reason):
        paging.main(["--model", "tiny", "--lengths", str(file), "--out", str(tmp_path / "runs")])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "flags", [["--requests", "1"], ["--prompts", "0"], ["--context", "64"], ["--rounds", "0"]]
)
def test_bad_input_is_refused(flags: list[str], tmp_path) -> None:
    with pytest.raises(UserError):
        paging.main(["--model", "tiny", *flags, "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())
